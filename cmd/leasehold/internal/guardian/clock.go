//go:build unix

package guardian

import (
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"golang.org/x/sys/unix"
)

// An instant is a reading of the machine's clock that counts sleep (on Linux CLOCK_BOOTTIME). It
// means the same in every process of this machine and nothing elsewhere.
type instant time.Duration

// Tests replace it.
var (
	now   = readClock
	sleep = boottime.Machine()
)

func readClock() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic(err) // no machine that runs this is without the clock
	}
	return instant(ts.Nano())
}

// instantOf converts what deadline returns. The clock is read first: a pause or a sleep before
// the second reading makes the result earlier than the deadline, never later.
func instantOf(deadline func() time.Time) instant {
	t := now()
	return t.add(time.Until(deadline()))
}

func (t instant) add(d time.Duration) instant     { return t + instant(d) }
func (t instant) sub(other instant) time.Duration { return time.Duration(t - other) }

// time is the same instant as this process's clock has it.
func (t instant) time() time.Time { return time.Now().Add(t.sub(now())) }
