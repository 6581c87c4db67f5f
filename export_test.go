package leasehold

import (
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// NewOnClock is New with a clock that sleeps when the test says so.
func NewOnClock(d driver.Driver, opts *Options, clock *boottime.Clock) (*Locker, error) {
	return newLocker(d, opts, clock)
}
