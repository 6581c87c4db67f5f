package quorum

import "github.com/leasehold-go/leasehold/internal/boottime"

// SleepBy has d's machine be one that sleeps when clock says so. It comes before the first call.
func SleepBy(d *Driver, clock *boottime.Clock) { d.clock = clock }
