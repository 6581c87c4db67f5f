package leasehold

import (
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// NewOnClock is New with a clock that sleeps when the test says so.
func NewOnClock(d driver.Driver, opts *Options, clock *boottime.Clock) (*Locker, error) {
	return newLocker(d, opts, clock)
}

// ReleaseAsDeadlineFires releases a lease of several of one hold, between the deadline's timer and
// what it starts.
func (le *Lease) ReleaseAsDeadlineFires() {
	h := le.hold
	h.locker.deadlines.remove(h)
	h.mu.Lock()
	h.deadline.watched = 0
	h.drop(le)
	h.mu.Unlock()
	h.expire()
}
