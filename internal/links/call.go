package links

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Call waits for an answer.
type Call struct {
	links  *Links
	began  time.Time
	parent context.Context
	ctx    context.Context         // context of the attempt
	cancel context.CancelCauseFunc // cancels the attempt
	late   bool                    // made by WatchLate

	mu     sync.Mutex
	since  time.Time     // guarded by mu; connections that have delivered nothing since are condemned
	moment time.Duration // guarded by mu; how much later the second look is; 0: the next look is the second
	timer  *time.Timer   // guarded by mu
	over   bool          // guarded by mu
}

// Begin returns the context of one attempt. The context ends with [ErrSilent] if connections
// were condemned because the attempt had no answer. End must follow.
func (l *Links) Begin(ctx context.Context) (context.Context, *Call) {
	if l == nil {
		return ctx, nil
	}
	attempt, cancel := context.WithCancelCause(ctx)
	return attempt, l.watch(ctx, attempt, cancel, false)
}

// Watch is Begin for an attempt that cancel ends. cancel is called with [ErrSilent] at most once
// before End, and by End with nil.
func (l *Links) Watch(ctx context.Context, cancel context.CancelCauseFunc) *Call {
	return l.watch(ctx, ctx, cancel, false)
}

// WatchLate is Watch for an attempt whose outcome another attempt cannot determine. It waits for
// half of its caller's time, or without a bound if that has none.
func (l *Links) WatchLate(ctx context.Context, cancel context.CancelCauseFunc) *Call {
	if _, bounded := ctx.Deadline(); !bounded {
		return nil
	}
	return l.watch(ctx, ctx, cancel, true)
}

func (l *Links) watch(parent, ctx context.Context, cancel context.CancelCauseFunc, late bool) *Call {
	c, ok := l.spare.Get().(*Call)
	if !ok {
		c = new(Call)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.links, c.parent, c.ctx, c.cancel, c.late, c.over = l, parent, ctx, cancel, late, false
	c.began = time.Now()
	c.since = c.began
	if first := c.firstLook(); c.timer == nil {
		c.timer = time.AfterFunc(first, c.look)
	} else {
		c.timer.Reset(first)
	}
	return c
}

// firstLook sets up the second look, and returns how long the first one waits. Requires c.mu.
func (c *Call) firstLook() time.Duration {
	d := c.patience()
	c.moment = d / 4
	return d - c.moment
}

// patience returns how long to wait for an answer from now on.
func (c *Call) patience() time.Duration {
	if d, bounded := c.links.patience.ForLate(c.parent); c.late && bounded {
		return d
	}
	return c.links.patience.For(c.parent)
}

// look condemns connections at the second of two looks. If this process stood still, the answer may
// have arrived already; between the looks it can be read.
func (c *Call) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	if moment := c.moment; moment > 0 {
		c.moment = 0
		c.timer.Reset(moment)
		return
	}
	switch dead := c.dead(); {
	case c.over:
	case dead:
		c.cancel(ErrSilent)
	default:
		c.timer.Reset(c.firstLook())
	}
}

// dead reports whether connections that the attempt may use are condemned. Otherwise the wait
// starts again, now or at the last answer to another call. Requires c.mu, which it unlocks while it
// asks.
func (c *Call) dead() bool {
	l, since := c.links, c.since
	c.since = time.Now()
	if l.Ask == nil {
		return l.condemn(since)
	}
	if l.condemnedSince(since) {
		return true
	}
	if last := l.Answers.Last(); last.After(since) {
		c.since = last
		return false
	}
	asked, stop := context.WithTimeout(c.ctx, l.patience.For(c.parent))
	defer stop()
	c.mu.Unlock()
	defer c.mu.Lock()
	l.Condemn(since) // so that the answer comes over another connection
	return l.Ask(asked) == nil && l.condemn(since)
}

// End ends the attempt with its error. If it returns an error that matches [ErrSilent], another
// attempt uses other connections.
func (c *Call) End(err error) error {
	if c == nil {
		return err
	}
	l := c.links
	c.mu.Lock()
	c.over = true
	unused := c.timer.Stop()
	c.mu.Unlock()
	c.cancel(nil)
	switch {
	case err == nil:
		l.patience.Answered(c.began)
	case c.parent.Err() == nil && !errors.Is(err, ErrSilent) && l.condemnedSince(c.began):
		err = fmt.Errorf("%w: %w", ErrSilent, err)
	}
	if unused {
		c.links, c.parent, c.ctx, c.cancel = nil, nil, nil, nil
		l.spare.Put(c)
	}
	return err
}

// Again reports whether to repeat a call that ended in err, because no connection answered. The
// call must be one that may be served twice: the former attempt may have been served, or may be
// served later.
func Again(ctx context.Context, err error) bool {
	return errors.Is(err, ErrSilent) && ctx.Err() == nil
}
