package lanes_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/lanes"
	"github.com/leasehold-go/leasehold/internal/links"
)

func unanswered(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// silent returns a call that gets no answer.
func silent(ctx context.Context) func() error {
	return func() error {
		<-ctx.Done()
		return ctx.Err()
	}
}

// ask makes a call of a waiter for name.
func ask(ctx context.Context, l *lanes.Lanes, name string, call func() error) error {
	asking, err := l.Begin(ctx, name)
	if err == nil {
		err = call()
	}
	return asking.End(err)
}

// A call without an answer was delayed by others if the engine has answered those, or a probe.
func TestAnswersToOthersTellACrowd(t *testing.T) {
	for name, c := range map[string]struct {
		probe func(context.Context) error
		other error // the result of another call; nil: an answer
		crowd bool
	}{
		"others were answered":   {nil, nil, true},
		"nobody was answered":    {nil, context.DeadlineExceeded, false},
		"the probe was answered": {func(context.Context) error { return nil }, context.DeadlineExceeded, true},
		"nor was the probe":      {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := lanes.New(new(links.Answers), unanswered, c.probe)
				l.Answered(nil) // before it began
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				time.AfterFunc(time.Second, func() { l.Answered(c.other) })
				err := ask(ctx, l, "r", silent(ctx))
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrNotYet) != c.crowd {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// The engine's answers are passed on, and waiters of a name take turns.
func TestWaitersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lanes.New(new(links.Answers), unanswered, nil)
		errFull := errors.New("full")
		var asking, most atomic.Int32
		for range 100 {
			go func() {
				err := ask(t.Context(), l, "r", func() error {
					most.Store(max(most.Load(), asking.Add(1)))
					time.Sleep(time.Second)
					asking.Add(-1)
					l.Answered(errFull)
					return errFull
				})
				if err != errFull {
					t.Errorf("%v", err)
				}
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := ask(ctx, l, "r", func() error { panic("out of turn") }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Minute)
		if n := most.Load(); n < 2 || n > 10 {
			t.Errorf("%d waiters asked at once", n)
		}
	})
}

// If the engine does not answer for a name, waiters of other names do not wait.
func TestNamesWaitForNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lanes.New(new(links.Answers), unanswered, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for range 100 {
			go ask(ctx, l, "locked", silent(ctx))
		}
		synctest.Wait()
		start := time.Now()
		for i := range 1000 {
			if err := ask(ctx, l, fmt.Sprint(i), func() error { return nil }); err != nil || time.Since(start) > 0 {
				t.Fatalf("name %d: %v after %v", i, err, time.Since(start))
			}
		}
	})
}

// The probe is for all calls that wait. It goes on when the call that sent it gives up.
func TestProbeOutlivesItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lanes.New(new(links.Answers), unanswered, func(ctx context.Context) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return context.DeadlineExceeded
			}
		})
		call := func(limit time.Duration) <-chan error {
			ended := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			time.AfterFunc(limit, cancel)
			go func() { ended <- ask(ctx, l, "r", silent(ctx)) }()
			synctest.Wait()
			return ended
		}
		first := call(3 * time.Second) // the probe takes from 2.5 s to 3.5 s
		time.Sleep(100 * time.Millisecond)
		second := call(time.Minute)
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the first: %v", err)
		}
		if err := <-second; !errors.Is(err, driver.ErrNotYet) {
			t.Errorf("the second, although the probe was answered: %v", err)
		}
	})
}
