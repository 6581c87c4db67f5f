package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// State returns who holds, who waits, and who was evicted.
func (r *Record) State(at Clock, resource string) driver.State {
	st := driver.State{Resource: resource, Fence: driver.FenceOf(max(r.Fence, r.Raised)), Limit: r.Limit}
	for i := range r.Claims {
		c := &r.Claims[i]
		switch c.Status {
		case Holding, Lingering:
			st.Holders = append(st.Holders, c.Holder(at))
		case Evicted:
			st.Evicted = append(st.Evicted, driver.Eviction{Owner: driver.OwnerOf(c.Owner), Fence: driver.FenceOf(c.Fence), Reason: c.Note})
		case Waiting:
			st.Waiters = append(st.Waiters, c.Waiter(at))
		}
	}
	slices.SortFunc(st.Holders, func(a, b driver.Holder) int { return cmp.Compare(a.Fence, b.Fence) })
	return st
}

// Holder describes a lease, or a hold that lingers.
func (c *Claim) Holder(at Clock) driver.Holder {
	h := driver.Holder{
		Owner: driver.OwnerOf(c.Owner), Mode: c.Mode, Limit: c.Limit, Weight: c.Mode.Uses(c.Weight), Fence: driver.FenceOf(c.Fence), Note: c.Note, Held: c.lasted(at), Left: at.Left(c),
	}
	if at.Knows(c) {
		h.TTL = c.TTL
	}
	return h
}

// Waiter describes a place.
func (c *Claim) Waiter(at Clock) driver.Waiter {
	return driver.Waiter{Owner: driver.OwnerOf(c.Owner), Mode: c.Mode, Weight: c.Mode.Uses(c.Weight), Note: c.Note, Waited: c.lasted(at)}
}

// lasted returns how long the claim has had its status; 0: unknown, or the clock that set Since is
// ahead.
func (c *Claim) lasted(at Clock) time.Duration {
	if c.Since < 0 {
		return 0
	}
	return time.Duration(max(0, at.Now()-c.Since)) * time.Microsecond
}
