package leasehold_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// An unasked engine refuses the first Try of a claim and grants to it some time later,
// without being asked again.
type unasked struct {
	after time.Duration // from the Try to the grant
	ttl   time.Duration // of the grant, from before the Try

	mu                        sync.Mutex
	tries, renewals, releases int // guarded by mu
}

func (u *unasked) Features() driver.Features {
	return driver.Features{Fencing: true, Wakes: true, Tells: true, Keeps: true, MinTTL: time.Millisecond}
}
func (u *unasked) Close() error { return nil }
func (u *unasked) Claim(req driver.Request) (driver.Claim, error) {
	return &unaskedClaim{u: u, req: req}, nil
}

func (u *unasked) counts() (tries, renewals, releases int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.tries, u.renewals, u.releases
}

type unaskedClaim struct {
	u   *unasked
	req driver.Request
}

func (c *unaskedClaim) Try(context.Context) (driver.Grant, error) {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	if c.u.tries++; c.u.tries > 1 {
		return driver.Grant{TTL: c.req.TTL, Fence: 7 * driver.FenceStep}, nil
	}
	wake, granted := make(chan struct{}), make(chan driver.Grant, 1)
	time.AfterFunc(c.u.after, func() {
		granted <- driver.Grant{TTL: c.u.ttl, Fence: 7 * driver.FenceStep}
		close(wake)
	})
	return driver.Grant{}, &driver.Busy{Wake: wake, Granted: granted}
}

func (c *unaskedClaim) Renew(_ context.Context, ttl time.Duration) (driver.Grant, error) {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	c.u.renewals++
	return driver.Grant{TTL: ttl, Fence: 7 * driver.FenceStep}, nil
}

func (*unaskedClaim) Note(context.Context, string) error { return driver.ErrUnsupported }

func (c *unaskedClaim) Release(context.Context, driver.End) error {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	c.u.releases++
	return nil
}

// A grant that came without another Try counts from the Try that was refused, and is
// renewed to its whole TTL soon.
func TestUnaskedGrantCountsFromTheTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &unasked{after: time.Second, ttl: 3 * time.Second}
		locks := newLocker(t, engine, &leasehold.Options{TTL: 10 * time.Second})
		start := time.Now()
		lease := acquire(t, locks, "a")
		if got, want := lease.Deadline().Sub(start), 3*time.Second-30*time.Millisecond-2*time.Millisecond; got != want {
			t.Errorf("the deadline is %v after the Try, want %v", got, want)
		}
		wantDuration(t, "waited", time.Since(start), time.Second, time.Second)
		time.Sleep(50 * time.Millisecond)
		wantDuration(t, "left of the lease", time.Until(lease.Deadline()), 9800*time.Millisecond, 9900*time.Millisecond)
		if tries, renewals, _ := engine.counts(); tries != 1 || renewals != 1 {
			t.Errorf("%d tries and %d renewals, want one of each", tries, renewals)
		}
		lease.Release(t.Context())
	})
}

// A section that is short costs no renewal, and the lease is handed over in the process.
func TestUnaskedGrantOfAShortSection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &unasked{after: time.Second, ttl: 3 * time.Second}
		locks := newLocker(t, engine, &leasehold.Options{TTL: 10 * time.Second})
		_, tokens, wait := queueUp(t, locks, 3, func(*leasehold.Lease) { time.Sleep(time.Millisecond) })
		wait()
		time.Sleep(time.Minute)
		if tries, renewals, releases := engine.counts(); tries != 1 || renewals != 0 || releases != 1 || len(*tokens) != 3 {
			t.Errorf("%d tries, %d renewals, %d releases for %d leases", tries, renewals, releases, len(*tokens))
		}
	})
}

// What is over, or too short for who does not renew, is asked for again.
func TestUnaskedGrantThatWillNotDo(t *testing.T) {
	for what, o := range map[string]struct {
		ttl  time.Duration
		opts []leasehold.Option
	}{"over": {ttl: time.Second}, "not renewed": {ttl: 3 * time.Second, opts: []leasehold.Option{leasehold.NoRenew()}}} {
		synctest.Test(t, func(t *testing.T) {
			engine := &unasked{after: time.Second, ttl: o.ttl}
			lease := acquire(t, newLocker(t, engine, &leasehold.Options{TTL: 10 * time.Second}), "a", o.opts...)
			if tries, _, _ := engine.counts(); tries != 2 {
				t.Errorf("%s: %d tries, want 2", what, tries)
			}
			wantDuration(t, what+": left", time.Until(lease.Deadline()), 9*time.Second, 10*time.Second)
			lease.Release(t.Context())
		})
	}
}

// A waiter that gives up before, or at the very moment, gives the grant back.
func TestUnaskedGrantToAWaiterWhoGivesUp(t *testing.T) {
	for _, wait := range []time.Duration{time.Second / 2, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			engine := &unasked{after: time.Second, ttl: 3 * time.Second}
			lease, err := newLocker(t, engine, nil).Acquire(t.Context(), "a", leasehold.Wait(wait))
			if err == nil {
				err = lease.Release(t.Context())
			}
			if _, _, releases := engine.counts(); releases != 1 {
				t.Errorf("wait %v: %d releases: %v", wait, releases, err)
			}
		})
	}
}

// The message with a grant may have been on its way for as long as the call has waited. Keep counts
// that time.
func TestUnaskedGrantIsKeptFromTheTry(t *testing.T) {
	for keep, want := range map[time.Duration]int{500 * time.Millisecond: 1, 1400 * time.Millisecond: 0} {
		synctest.Test(t, func(t *testing.T) {
			engine := &unasked{after: time.Second, ttl: 10 * time.Second}
			locks := newLocker(t, engine, &leasehold.Options{TTL: 10 * time.Second, Keep: keep})
			if err := acquire(t, locks, "a").Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, _, releases := engine.counts(); releases != want {
				t.Errorf("Keep %v: %d releases, want %d", keep, releases, want)
			}
		})
	}
}
