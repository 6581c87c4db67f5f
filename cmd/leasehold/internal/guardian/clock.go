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

// now and sleep are variables, so that tests can replace them.
var (
	now   = readClock
	sleep = boottime.Machine()
)

func readClock() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic(err) // every supported system has this clock
	}
	return instant(ts.Nano())
}

// instantOf converts the result of deadline. It reads the clock first. So a pause or a sleep before
// the second reading makes the result earlier than the deadline, never later.
func instantOf(deadline func() time.Time) instant {
	t := now()
	return t.add(time.Until(deadline()))
}

func (t instant) add(d time.Duration) instant     { return t + instant(d) }
func (t instant) sub(other instant) time.Duration { return time.Duration(t - other) }

// time returns the same instant by this process's clock.
func (t instant) time() time.Time { return time.Now().Add(t.sub(now())) }
