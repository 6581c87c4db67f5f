package databases

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// LockedRowsHoldUpNoOthers has somebody keep the rows of two leases of many locked, one of
// them shared, until these have ended, and checks that the others are renewed as if nothing
// were: over a pool of one connection, which whoever waits for a row would keep.
func LockedRowsHoldUpNoOthers(t *testing.T, s Server) {
	const leases, ttl = 30, 20 * time.Second
	d := s.migrated(t, s.Address)
	d.DB.SetMaxOpenConns(1)
	l := Locker(t, d, leasehold.Options{TTL: ttl})
	var stuck, free []*leasehold.Lease
	for i := range leases {
		var opts []leasehold.Option
		if i%2 == 0 {
			opts = append(opts, leasehold.Shared())
		}
		lease, err := l.Acquire(t.Context(), fmt.Sprint("row/", i), opts...)
		if err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			stuck = append(stuck, lease)
		} else {
			free = append(free, lease)
		}
	}
	tx := begin(t, s.open(t, s.Address, nil).DB)
	for _, lease := range stuck {
		lockRow(t, tx, lease.Name())
	}
	least := ttl
	for since := time.Now(); time.Since(since) < ttl*3/2; time.Sleep(ttl / 100) {
		for _, lease := range free {
			if err := context.Cause(lease.Context()); err != nil {
				t.Fatalf("the lease of %s ended although others' rows were locked: %v", lease.Name(), err)
			}
			least = min(least, time.Until(lease.Deadline()))
		}
	}
	t.Logf("at least %v of %v were left", least, ttl)
	if least < ttl/4 { // it is 2/3 where nobody is late
		t.Errorf("only %v of %v were left of some lease", least, ttl)
	}
	for _, lease := range stuck {
		if lease.Context().Err() == nil {
			t.Errorf("the lease of %s goes on, whose row is locked", lease.Name())
		}
	}
}
