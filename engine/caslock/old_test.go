package caslock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A lagging store answers reads with what the name had before.
type lagging struct {
	*counting
	mu  sync.Mutex
	old map[string]caslock.Item // guarded by mu
}

// lag is less than all pauses of a call.
const lag = 5 * time.Millisecond

// lagFor has reads of i's name answer i for that long.
func (s *lagging) lagFor(i caslock.Item, d time.Duration) {
	s.lag(func() { s.old[i.Name] = i })
	time.AfterFunc(d, func() { s.lag(func() { delete(s.old, i.Name) }) })
}

func (s *lagging) lag(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *lagging) Read(ctx context.Context, name string) (caslock.Item, error) {
	s.mu.Lock()
	i, ok := s.old[name]
	s.mu.Unlock()
	if ok {
		travel()
		return i, nil
	}
	return s.counting.Read(ctx, name)
}

// A read that is older than the lease does not end it, nor tell that there is nothing to release.
func TestOldReadEndsNoLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &lagging{counting: &counting{}, old: map[string]caslock.Item{}}
		d, other := process(t, store), process(t, store)
		before, _ := store.counting.Read(t.Context(), "r")
		c := claimOf(t, d, driver.Request{Owner: "a"})
		claimtest.Granted(t, c)
		lags := func(call func() error) error { // after somebody else has written
			claimtest.Granted(t, claimOf(t, other, driver.Request{Owner: "a"}))
			store.lagFor(before, lag)
			return call()
		}
		for what, call := range map[string]func() error{
			"Renew": func() error { _, err := c.Renew(t.Context(), ttl); return err },
			"Note":  func() error { return c.Note(t.Context(), "note") },
		} {
			if err := lags(call); errors.Is(err, driver.ErrLost) {
				t.Errorf("%s after an old read: %v", what, err)
			}
		}
		if err := lags(func() error { return c.Release(t.Context(), driver.End{}) }); errors.Is(err, driver.ErrLost) {
			t.Errorf("Release after an old read: %v", err)
		}
	})
}

// Nor does it hide one that another process was granted from who goes on with it, or evicts it.
func TestOldReadHidesNoLeaseOfAnotherProcess(t *testing.T) {
	one := func(call func(ctx context.Context, c driver.Claim) error) func(context.Context, driver.Driver, driver.Claim) error {
		return func(ctx context.Context, _ driver.Driver, c driver.Claim) error { return call(ctx, c) }
	}
	for what, call := range map[string]func(ctx context.Context, d driver.Driver, c driver.Claim) error{
		"Renew":   one(func(ctx context.Context, c driver.Claim) error { _, err := c.Renew(ctx, ttl); return err }),
		"Note":    one(func(ctx context.Context, c driver.Claim) error { return c.Note(ctx, "note") }),
		"Release": one(func(ctx context.Context, c driver.Claim) error { return c.Release(ctx, driver.End{}) }),
		"Linger":  one(func(ctx context.Context, c driver.Claim) error { return c.Release(ctx, driver.End{Linger: ttl}) }),
		"RenewAll": func(ctx context.Context, d driver.Driver, c driver.Claim) error {
			all := []driver.Renewal{{Claim: c, TTL: ttl}, {Claim: claimOf(t, d, driver.Request{Owner: "b"}), TTL: ttl}}
			d.(driver.BatchRenewer).RenewAll(ctx, all)
			return all[0].Err
		},
		"Evict": func(ctx context.Context, d driver.Driver, _ driver.Claim) error {
			return d.(driver.Operator).Evict(ctx, "r", "a", "because")
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := &lagging{counting: &counting{}, old: map[string]caslock.Item{}}
				before, _ := store.counting.Read(t.Context(), "r")
				claimtest.Granted(t, claimOf(t, process(t, store), driver.Request{Owner: "a"}))
				d := process(t, store)
				store.lagFor(before, lag)
				if err := call(t.Context(), d, claimOf(t, d, driver.Request{Owner: "a"})); err != nil {
					t.Errorf("%s after an old read: %v", what, err)
				}
			})
		})
	}
}

// What a release wrote that found the lease over is no release when it is found again.
func TestWriteOfALossIsNoRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &link{Store: &hashed{}}
		c := claimOf(t, process(t, l), driver.Request{Owner: "a"})
		claimtest.Granted(t, c)
		time.Sleep(2 * ttl)
		l.next = "lose answer"
		if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, errCut) {
			t.Fatalf("Release: %v; want its outcome to be unknown", err)
		}
		if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of what was over: %v; want ErrLost", err)
		}
	})
}

// Nor does one that comes after a write that was sent twice.
func TestOldReadAfterARepeatedWrite(t *testing.T) {
	for what, call := range map[string]func(ctx context.Context, c driver.Claim) error{
		"Try":     func(ctx context.Context, c driver.Claim) error { _, err := c.Try(ctx); return err },
		"Renew":   func(ctx context.Context, c driver.Claim) error { _, err := c.Renew(ctx, ttl); return err },
		"Release": func(ctx context.Context, c driver.Claim) error { return c.Release(ctx, driver.End{}) },
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := &lagging{counting: &counting{}, old: map[string]caslock.Item{}}
				l := &link{Store: store}
				other := claimOf(t, process(t, store), driver.Request{Owner: "b", Mode: driver.Shared})
				claimtest.Granted(t, other) // so that no record is removed
				before, _ := store.counting.Read(t.Context(), "r")
				c := claimOf(t, process(t, l), driver.Request{Owner: "a", Mode: driver.Shared})
				claimtest.Granted(t, c)
				l.next, l.between = "repeat", func() { store.lagFor(before, lag) }
				if err := call(t.Context(), c); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		})
	}
}

// A numbered link is to a store that numbers its writes.
type numbered struct{ *link }

func (numbered) Number(v caslock.Version) uint64 { return new(counting).Number(v) }

// An old read does not show that a write without an answer is never served, nor does a write upon it.
func TestOldReadDecidesNoOpenWrite(t *testing.T) {
	for what, call := range map[string]func(ctx context.Context, l *link, c driver.Claim) error{
		"Release": func(ctx context.Context, _ *link, c driver.Claim) error { return c.Release(ctx, driver.End{}) },
		"Renew":   func(ctx context.Context, _ *link, c driver.Claim) error { _, err := c.Renew(ctx, ttl); return err },
		"Try without an answer, Release": func(ctx context.Context, l *link, c driver.Claim) error {
			late := l.late
			l.next = "hold up"
			_, err := c.Try(ctx)
			l.late = late
			if !errors.Is(err, errCut) {
				return err
			}
			time.Sleep(lag)
			return c.Release(ctx, driver.End{})
		},
	} {
		test := func(t *testing.T, open func(*link) caslock.Store) {
			bubble(t, func(t *testing.T) {
				store := &lagging{counting: &counting{}, old: map[string]caslock.Item{}}
				l := &link{Store: store}
				d, other := process(t, open(l)), claimOf(t, process(t, store), driver.Request{Owner: "b", Mode: driver.Shared})
				claimtest.Granted(t, other)
				before, _ := store.counting.Read(t.Context(), "r")
				if _, err := other.Renew(t.Context(), ttl); err != nil {
					t.Fatal(err)
				}
				c := claimOf(t, d, driver.Request{Owner: "a", Mode: driver.Shared})
				l.next = "hold up"
				if _, err := c.Try(t.Context()); !errors.Is(err, errCut) {
					t.Fatalf("Try: %v; want its outcome to be unknown", err)
				}
				store.lagFor(before, lag)
				if err := call(t.Context(), l, c); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Fatalf("%s: %v", what, err)
				}
				time.Sleep(lag)
				l.late()
				st, err := d.(driver.Operator).Inspect(t.Context(), "r")
				if err != nil || len(st.Holders) != 1 {
					t.Errorf("%d holders after %s, %v; want the other one", len(st.Holders), what, err)
				}
			})
		}
		t.Run(what, func(t *testing.T) { test(t, func(l *link) caslock.Store { return l }) })
		t.Run(what+", numbered", func(t *testing.T) { test(t, func(l *link) caslock.Store { return numbered{l} }) })
	}
}
