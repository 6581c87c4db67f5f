// Package waiting decides when waiters try again, and when that cannot help.
package waiting

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// sleepBound is the longest sleep of a waiter whose engine did not say when to return. It
	// bounds the cost of a lost wake-up.
	sleepBound = 5 * time.Second
	// Without Wake, a waiter polls: quickly at first, later every PollLast.
	pollFirst, PollLast = 5 * time.Millisecond, 250 * time.Millisecond
	// After errors, pauses grow from failFirst to failLast: nobody spins while the engine is away,
	// and all are back soon after it.
	failFirst, failLast = 20 * time.Millisecond, 500 * time.Millisecond
	// An engine may wake a waiter at once for no reason. After more than earlyFree times in a row,
	// the waiter pauses, so that it does not spin.
	earlyFree             = 3
	earlyFirst, earlyLast = time.Millisecond, 20 * time.Millisecond
)

// A Pace is the pace of one waiter's tries. The zero value has not tried yet.
type Pace struct {
	Queued bool // the engine has refused it, with a place
	Fails  int  // errors in a row, since then
	polls  int  // refusals without Wake
	early  int  // wake-ups in a row that came at once
}

// GoesOn reports whether to try again after a try that ended in err. If the first try fails, so
// does the wait. If the engine goes away later, the waiter tries again, because its place may
// still be there.
func (p *Pace) GoesOn(err error) bool {
	if _, busy := errors.AsType[*driver.Busy](err); busy || errors.Is(err, driver.ErrNotYet) {
		return true
	}
	return p.Queued && !Final(err) && !errors.Is(err, driver.ErrBarred)
}

// Rest waits until the next try after one that ended in err. It returns the cause of ctx if that
// ends, or driver.ErrClosed if closing is closed.
func (p *Pace) Rest(ctx context.Context, closing <-chan struct{}, err error) error {
	busy, refused := errors.AsType[*driver.Busy](err)
	if !refused {
		p.Fails++
		_, err := Sleep(ctx, closing, nil, Backoff(p.Fails-1, failFirst, failLast))
		return err
	}
	p.Queued, p.Fails = true, 0
	d := busy.Retry + time.Millisecond // the remaining time is over only after it
	if busy.Retry <= 0 || d > sleepBound {
		d = sleepBound
	}
	if busy.Wake == nil {
		d = min(d, Backoff(p.polls, pollFirst, PollLast))
		p.polls++
	}
	start := time.Now()
	woken, err := Sleep(ctx, closing, busy.Wake, d)
	if err != nil || !woken || time.Since(start) > time.Millisecond {
		p.early = 0
		return err
	}
	if p.early++; p.early > earlyFree {
		_, err = Sleep(ctx, closing, nil, Backoff(p.early-earlyFree, earlyFirst, earlyLast))
	}
	return err
}

// Final reports whether repeating a call cannot help after err.
func Final(err error) bool {
	final := []error{driver.ErrUnsupported, driver.ErrClosed, driver.ErrInvalidName, driver.ErrCorrupt, driver.ErrTooHeavy}
	return slices.ContainsFunc(final, func(e error) bool { return errors.Is(err, e) })
}

// Sleep waits for wake or d, whichever comes first. It returns the cause of ctx if that ends, or
// driver.ErrClosed if closing is closed.
func Sleep(ctx context.Context, closing, wake <-chan struct{}, d time.Duration) (woken bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-closing:
		return false, driver.ErrClosed
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// Closed reports whether ch, on which nothing is sent, is closed.
func Closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Backoff returns a pause that doubles from first to last, minus a random quarter, so that
// callers that failed together do not return together.
func Backoff(n int, first, last time.Duration) time.Duration {
	d := last
	if n < 16 && first<<n < last {
		d = first << n
	}
	return d - Jitter(d/4)
}

// Jitter returns a random duration below d.
func Jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}
