package httplock

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A task is a goroutine of a claim that runs between calls.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// begin starts a task. The end of the driver ends it too.
func (d *service) begin(run func(ctx context.Context)) *task {
	ctx, cancel := context.WithCancel(d.life)
	t := &task{cancel, make(chan struct{})}
	ran := d.life.Go(func() {
		defer close(t.done)
		run(ctx)
	})
	if !ran {
		close(t.done)
	}
	return t
}

// stop ends the task and returns when it has ended.
func (t *task) stop() {
	t.cancel()
	<-t.done
}

const (
	// waitFor is how long a waiter's call stays open.
	waitFor = 25 * time.Second
	// answerLate is how late the answer to such a call may be before its connection counts as
	// silent.
	answerLate = 5 * time.Second
	// A waiter calls again at once, unless the last call ended so soon that it would spin.
	spinBelow             = 50 * time.Millisecond
	pauseFirst, pauseLast = 10 * time.Millisecond, 500 * time.Millisecond
)

// A wait keeps a call open until its claim is granted. If the call ends otherwise, it makes
// another.
type wait struct {
	claim   *claim
	caller  context.Context // of the Try that was refused; used for its values
	began   time.Time       // before the Try that was refused
	wake    chan struct{}   // closed when the claim is granted, or another Try would bring news
	granted chan driver.Grant
}

func (w *wait) run(ctx context.Context) {
	for early := 0; ; {
		sent := time.Now()
		g, err := w.call(ctx, sent)
		switch {
		case err == nil:
			w.bring(g, sent)
		case w.claim.d.life.Err() != nil: // waiters find the driver closed
		case ctx.Err() != nil:
			return
		case isFinal(err):
			w.claim.removed = removal(err)
			w.claim.d.watch.remove(w.claim)
		case time.Since(sent) < spinBelow:
			_ = pause.For(ctx, waiting.Backoff(early, pauseFirst, pauseLast))
			early++
			continue
		default:
			early = 0
			continue
		}
		close(w.wake)
		return
	}
}

// call makes one call that waits.
func (w *wait) call(ctx context.Context, sent time.Time) (wire.Grant, error) {
	if ctx.Err() != nil { // nobody waits any more, and a grant would have to be given back
		return wire.Grant{}, ctx.Err()
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(w.caller), waitFor+answerLate)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	g, err := w.claim.acquire(call, patient, waitFor)
	if call.Err() == context.DeadlineExceeded {
		w.claim.d.links.Hung(sent)
	}
	return g, err
}

// bring delivers the grant. Its TTL counts from before the Try that was refused.
func (w *wait) bring(g wire.Grant, sent time.Time) {
	grant, err := grantOf(g)
	if err != nil {
		return // the next Try reports it
	}
	grant.TTL += sent.Sub(w.began) + wire.Duration(g.Waited)
	w.claim.d.watch.add(w.claim, g.Token)
	w.granted <- grant
	w.claim.recall(g.Wanted)
}

// A removed is the error of a waiter that an operator has removed. No attempt of its owner must be
// granted.
type removed struct{ *reply }

// Unwrap returns ErrBarred and ErrEvicted.
func (removed) Unwrap() []error { return []error{driver.ErrBarred, driver.ErrEvicted} }

// removal returns the error if err says that the waiter was removed, and otherwise nil.
func removal(err error) error {
	if r, answered := errors.AsType[*reply](err); answered && r.Outcome == wire.Lost && r.Code == wire.CodeEvicted {
		return removed{r}
	}
	return nil
}

// isFinal reports whether waiting is useless after err.
func isFinal(err error) bool {
	r, answered := errors.AsType[*reply](err)
	return answered && (r.Outcome == wire.Lost || r.Outcome == wire.Refused && r.Code != wire.CodeLimit && r.Code != wire.CodeReadOnly && r.Code != wire.CodeFull)
}
