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

// A dueContext ends a little after its deadline, as the timers of a busy process do.
type dueContext struct {
	context.Context
	deadline time.Time
}

func (c dueContext) Deadline() (time.Time, bool) { return c.deadline, true }

// A punctual driver gives up at the deadline of a call, as a connection does.
type punctual struct {
	driver.Driver
	grants bool // Try answers all the same
}

func (d punctual) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return punctualClaim{c, d.grants}, err
}

type punctualClaim struct {
	driver.Claim
	grants bool
}

var errTimeout = errors.New("i/o timeout")

func giveUpAtDeadline(ctx context.Context) error {
	end, _ := ctx.Deadline()
	time.Sleep(time.Until(end))
	return errTimeout
}

func (c punctualClaim) Try(ctx context.Context) (driver.Grant, error) {
	if c.grants {
		return c.Claim.Try(ctx)
	}
	return driver.Grant{}, giveUpAtDeadline(ctx)
}

func (c punctualClaim) Renew(ctx context.Context, _ time.Duration) (driver.Grant, error) {
	return driver.Grant{}, giveUpAtDeadline(ctx)
}

func (c punctualClaim) Note(ctx context.Context, _ string) error { return giveUpAtDeadline(ctx) }

// If a connection gives up at the deadline of a context before the context's timer has run, callers get the context's error.
func TestConnectionEndsBeforeTheContext(t *testing.T) {
	held := func(ask func(ctx context.Context, le *leasehold.Lease) error) func(context.Context, *leasehold.Locker) error {
		return func(ctx context.Context, l *leasehold.Locker) error {
			le, err := l.Acquire(context.WithoutCancel(ctx), "x", leasehold.NoRenew(), leasehold.TTL(time.Minute))
			if err != nil {
				return err
			}
			defer le.Release(context.WithoutCancel(ctx))
			return ask(ctx, le)
		}
	}
	for name, c := range map[string]struct {
		grants bool
		ask    func(ctx context.Context, l *leasehold.Locker) error
	}{
		"Acquire":    {false, func(ctx context.Context, l *leasehold.Locker) error { _, err := l.Acquire(ctx, "x"); return err }},
		"TryAcquire": {false, func(ctx context.Context, l *leasehold.Locker) error { _, err := l.TryAcquire(ctx, "x"); return err }},
		"Resume":     {false, func(ctx context.Context, l *leasehold.Locker) error { _, err := l.Resume(ctx, "x", "me"); return err }},
		"Extend":     {true, held(func(ctx context.Context, le *leasehold.Lease) error { return le.Extend(ctx, time.Minute) })},
		"SetNote":    {true, held(func(ctx context.Context, le *leasehold.Lease) error { return le.SetNote(ctx, "me") })},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLocker(t, punctual{memory.New(), c.grants}, nil)
				const d, late = time.Second, 5 * time.Millisecond
				parent, end := context.WithCancel(t.Context())
				defer time.AfterFunc(d+late, end).Stop()
				if err := c.ask(dueContext{parent, time.Now().Add(d)}, l); !errors.Is(err, context.Canceled) {
					t.Errorf("%v; want the context's", err)
				}
				// An engine that gives up before the deadline is not the context's end.
				if err := c.ask(t.Context(), l); !errors.Is(err, errTimeout) {
					t.Errorf("without an end of the context: %v; want %v", err, errTimeout)
				}
			})
		})
	}
}
