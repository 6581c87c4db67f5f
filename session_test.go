package leasehold_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// sessionDriver is an engine whose leases hang on a session of five seconds.
type sessionDriver struct{ *memory.Driver }

func (d sessionDriver) Features() driver.Features {
	f := d.Driver.Features()
	f.SessionTTL = 5 * time.Second
	return f
}

// A Locker takes over the session's length, and refuses every other TTL before it asks.
func TestSessionsHaveOneTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := sessionDriver{memory.New()}
		for _, ttl := range []time.Duration{time.Second, 5*time.Second + 1, leasehold.DefaultTTL} {
			if _, err := leasehold.New(d, &leasehold.Options{TTL: ttl}); !errors.Is(err, leasehold.ErrUnsupported) {
				t.Errorf("New with a TTL of %v: %v; want ErrUnsupported", ttl, err)
			}
		}
		for _, opts := range []*leasehold.Options{nil, {}, {TTL: 5 * time.Second}} {
			l, err := leasehold.New(d, opts)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			lease, err := l.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if left := lease.Deadline().Sub(start); left > 5*time.Second || left < 4*time.Second {
				t.Errorf("the deadline is after %v", left)
			}
			if err := lease.Extend(t.Context(), 6*time.Second); !errors.Is(err, leasehold.ErrUnsupported) {
				t.Errorf("Extend to another TTL: %v; want ErrUnsupported", err)
			}
			if _, err := l.TryAcquire(t.Context(), "b", leasehold.TTL(time.Second)); !errors.Is(err, leasehold.ErrUnsupported) {
				t.Errorf("TryAcquire with another TTL: %v; want ErrUnsupported", err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
			l.Close()
		}
	})
}
