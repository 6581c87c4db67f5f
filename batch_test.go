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
		calls.Go(func() { r := &renewals[i]; r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL) })
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
		locks := newLocker(t, parts{Driver: memory.New()}, &leasehold.Options{Trace: &leasehold.Trace{
			Renewed: func(name string, _ uint64, slack time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				least = min(least, slack)
			},
		}})
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
		locks := newLocker(t, parts{Driver: memory.New(), trip: trip}, &leasehold.Options{Trace: &leasehold.Trace{
			Renewed: func(name string, _ uint64, slack time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				if name == "long" {
					least, renewed = min(least, slack), renewed+1
				}
			},
		}})
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
