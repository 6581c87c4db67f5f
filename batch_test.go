package leasehold_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// parts is an engine of two servers, as BatchRenewer has it: what has a name with "hung" in it
// gets no answer, and all else does, each call after a while.
type parts struct {
	*memory.Driver
	trip time.Duration
}

type part struct {
	driver.Claim
	parts parts
	hung  bool
}

func (p parts) Claim(req driver.Request) (driver.Claim, error) {
	c, err := p.Driver.Claim(req)
	return &part{c, p, strings.Contains(req.Resource, "hung")}, err
}

func (p *part) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if !p.hung {
		time.Sleep(p.parts.trip)
	} else {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return driver.Grant{}, ctx.Err()
	}
	return p.Claim.Renew(ctx, ttl)
}

func (p parts) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	var calls sync.WaitGroup
	for i := range renewals {
		calls.Go(func() { r := &renewals[i]; r.Answer(r.Claim.Renew(ctx, r.TTL)) })
	}
	calls.Wait()
}

// A part of the engine that hangs costs the leases elsewhere none of their time, however
// many are there.
func TestHungPartSparesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hung, healthy = 20 * 500, 100
		var mu sync.Mutex // the hook is called by several workers at once
		least := 10 * ttl
		locks := newLocker(t, parts{Driver: memory.New()}, &leasehold.Options{Trace: locktest.On(leasehold.StepRenewed, func(e leasehold.Event) {
			mu.Lock()
			defer mu.Unlock()
			least = min(least, e.Left)
		})})
		var held []*leasehold.Lease
		for i := range hung + healthy {
			name := fmt.Sprint("lease ", i)
			if i%(hung/healthy) != 0 || i/(hung/healthy) >= healthy {
				name = fmt.Sprint("hung ", i)
			}
			lease := acquire(t, locks, name)
			if strings.HasPrefix(name, "lease") {
				held = append(held, lease)
			}
		}
		time.Sleep(10 * ttl)
		for _, lease := range held {
			if err := context.Cause(lease.Context()); err != nil {
				t.Errorf("%s: %v", lease.Name(), err)
			}
			lease.Release(t.Context())
		}
		mu.Lock()
		defer mu.Unlock()
		if least < ttl/4 {
			t.Errorf("a lease was renewed %v before its end, want at least %v", least, ttl/4)
		}
	})
}

// Short leases do not bound the calls that renew long ones.
func TestShortLeasesLeaveLongOnesTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 60 * time.Millisecond
		var mu sync.Mutex
		least, renewed := ttl, 0
		locks := newLocker(t, parts{Driver: memory.New(), trip: trip}, &leasehold.Options{Trace: locktest.On(leasehold.StepRenewed, func(e leasehold.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Name == "long" {
				least, renewed = min(least, e.Left), renewed+1
			}
		})})
		long := acquire(t, locks, "long")
		for start := time.Now(); time.Since(start) < 5*ttl; time.Sleep(trip / 20) {
			if _, err := locks.Acquire(t.Context(), fmt.Sprint("short ", time.Since(start)), leasehold.TTL(2*trip)); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if renewed < 10 || least < ttl/2 {
			t.Errorf("renewed %d times, and once with %v left; want that at once, with %v", renewed, least, ttl*2/3-trip)
		}
		long.Release(t.Context())
	})
}

// A call that is to change a lease does not wait for the other leases of a batch, of which one
// hangs.
func TestCallsDoNotWaitForOthersOfTheirBatch(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(*leasehold.Lease) error
	}{
		{"Extend", func(le *leasehold.Lease) error { return le.Extend(context.Background(), ttl) }},
		{"Release", func(le *leasehold.Lease) error { return le.Release(context.Background()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := newLocker(t, parts{Driver: memory.New()}, nil)
				var healthy []*leasehold.Lease
				acquire(t, locks, "hung")
				for i := range 10 {
					healthy = append(healthy, acquire(t, locks, fmt.Sprint(i)))
				}
				time.Sleep(ttl / 3) // they are renewed, and one hangs
				start := time.Now()
				for _, lease := range healthy {
					if err := c.call(lease); err != nil {
						t.Error(err)
					}
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("they took %v", took)
				}
			})
		})
	}
}
