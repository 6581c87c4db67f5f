package etcdlock

import "github.com/leasehold-go/leasehold/internal/boottime"

// SleepBy has d's machine be one that sleeps when clock says so. It comes before the first call.
func SleepBy(d *Driver, clock *boottime.Clock) { d.clock = clock }

// HangAfter is how long a call waits for its answer before it is sent again.
const HangAfter = hangAfter
