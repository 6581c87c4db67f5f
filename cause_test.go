package leasehold_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// An unanswered driver makes the attempts for one name, and never answers.
type unanswered struct {
	driver.Driver
	name string
}

func (d unanswered) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	if err != nil || req.Resource != d.name {
		return c, err
	}
	return unansweredClaim{c}, nil
}

type unansweredClaim struct{ driver.Claim }

func (c unansweredClaim) Try(ctx context.Context) (driver.Grant, error) {
	if g, err := c.Claim.Try(ctx); err != nil {
		return g, err
	}
	<-ctx.Done()
	return driver.Grant{}, context.Cause(ctx)
}

// The cause of a context is its caller's, such as the refusal of another goroutine of its group: it does not say that an
// attempt without an answer was refused.
func TestCauseThatIsBusyLeavesNothing(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, l *leasehold.Locker) error{
		"Do": func(ctx context.Context, l *leasehold.Locker) error {
			return l.Do(ctx, "second", func(context.Context) error { return nil }, leasehold.OncePer(24*time.Hour))
		},
		"TryAcquire": func(ctx context.Context, l *leasehold.Locker) error {
			_, err := l.TryAcquire(ctx, "second")
			return err
		},
		"AcquireAll": func(ctx context.Context, l *leasehold.Locker) error {
			_, err := l.AcquireAll(ctx, []string{"first", "second"}, leasehold.TTL(time.Hour))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				other := newLocker(t, server.Connect(), nil)
				acquire(t, other, "taken")
				l := newLocker(t, unanswered{server.Connect(), "second"}, nil)
				ctx, cancel := context.WithCancelCause(t.Context())
				done := make(chan error)
				go func() { done <- ask(ctx, l) }()
				synctest.Wait()
				_, busy := l.TryAcquire(ctx, "taken")
				if !errors.Is(busy, leasehold.ErrBusy) {
					t.Fatal(busy)
				}
				cancel(busy)
				if err := <-done; !errors.Is(err, leasehold.ErrBusy) {
					t.Errorf("%v, want the cause", err)
				}
				time.Sleep(time.Second)
				for _, name := range []string{"first", "second"} {
					if state, err := other.Inspect(t.Context(), name); err != nil || len(state.Holders) > 0 {
						t.Errorf("%s: left behind: %v, %v", name, state.Holders, err)
					}
				}
			})
		})
	}
}
