package httplock

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A task is what a claim does beside calls.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// begin starts a task that the end of the driver ends as well.
func (d *service) begin(run func(ctx context.Context)) *task {
	ctx, cancel := context.WithCancel(d.life)
	t := &task{cancel, make(chan struct{})}
	ran := d.start(func() {
		defer close(t.done)
		run(ctx)
	})
	if !ran {
		close(t.done)
	}
	return t
}

// stop returns when the task has ended.
func (t *task) stop() {
	t.cancel()
	<-t.done
}

const (
	// waitFor is how long one call of a waiter is open.
	waitFor = 25 * time.Second
	// answerLate is how much later its answer may come: then nobody answers over that connection any more.
	answerLate = 5 * time.Second
	// A waiter calls again at once, unless the last call ended so soon that it would spin.
	spinBelow             = 50 * time.Millisecond
	pauseFirst, pauseLast = 10 * time.Millisecond, 500 * time.Millisecond
)

// A wait is a call that is open until its claim is granted, made again when it ends otherwise.
type wait struct {
	claim   *claim
	caller  context.Context // of the Try that was refused; for its values
	began   time.Time       // before the Try that was refused
	wake    chan struct{}   // closed when granted, or when another Try tells more
	granted chan driver.Grant
	pauses  int // in a row
}

func (w *wait) run(ctx context.Context) {
	for {
		sent := time.Now()
		g, err := w.call(ctx)
		if ctx.Err() != nil && err != nil {
			if w.claim.d.life.Err() != nil {
				close(w.wake) // so that they find the driver closed
			}
			return
		}
		if err == nil || isFinal(err) {
			if err == nil {
				w.bring(g, sent)
			} else {
				w.claim.removed = removal(err)
				w.claim.d.watch.remove(w.claim)
			}
			close(w.wake)
			return
		}
		w.rest(ctx, time.Since(sent) < spinBelow)
	}
}

// valuesOf is a context with the values of another, such as its trace.
type valuesOf struct {
	context.Context
	other context.Context
}

// Value implements context.Context.
func (v valuesOf) Value(key any) any {
	if value := v.Context.Value(key); value != nil {
		return value
	}
	return v.other.Value(key)
}

// call makes one call that waits.
func (w *wait) call(ctx context.Context) (wire.Grant, error) {
	sent := time.Now()
	ctx, cancel := context.WithTimeout(valuesOf{ctx, w.caller}, waitFor+answerLate)
	defer cancel()
	g, err := w.claim.acquire(ctx, patient, waitFor)
	if ctx.Err() == context.DeadlineExceeded {
		w.claim.d.links.Hung(sent)
	}
	return g, err
}

// bring hands the grant over. Its TTL counts from before the Try that was refused.
func (w *wait) bring(g wire.Grant, sent time.Time) {
	grant, err := grantOf(g)
	if err != nil {
		return // the next Try tells
	}
	grant.TTL += sent.Sub(w.began) + wire.Duration(g.Waited)
	w.claim.d.watch.add(w.claim, g.Token)
	w.granted <- grant
	w.claim.recall(g.Wanted)
}

// A removed waiter was sent away by the service: no attempt of its owner is to be granted.
type removed struct{ *reply }

// Unwrap is why.
func (removed) Unwrap() []error { return []error{driver.ErrBarred, driver.ErrEvicted} }

// removal says that the service has sent a waiter away; nil: it has not.
func removal(err error) error {
	if r, answered := errors.AsType[*reply](err); answered && r.Outcome == wire.Lost && r.Code == wire.CodeEvicted {
		return removed{r}
	}
	return nil
}

// isFinal reports whether there is no use in waiting after err.
func isFinal(err error) bool {
	r, answered := errors.AsType[*reply](err)
	return answered && (r.Outcome == wire.Lost || r.Outcome == wire.Refused && r.Code != wire.CodeLimit && r.Code != wire.CodeReadOnly && r.Code != wire.CodeFull)
}

// rest waits a little, and longer each time, when calls end too soon.
func (w *wait) rest(ctx context.Context, soon bool) {
	if !soon {
		w.pauses = 0
		return
	}
	_ = pause.For(ctx, min(pauseFirst<<min(w.pauses, 10), pauseLast))
	w.pauses++
}
