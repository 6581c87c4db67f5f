//go:build unix

package guard

import (
	"time"

	"golang.org/x/sys/unix"
)

// An instant is a reading of the machine's CLOCK_MONOTONIC. It means the same in every
// process of this machine and nothing elsewhere.
type instant time.Duration

func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no machine that runs this is without the clock
	}
	return instant(ts.Nano())
}

// instantOf converts a deadline of this process. The clock is read first: a pause before
// the second reading makes the result earlier than the deadline, never later.
func instantOf(deadline time.Time) instant {
	t := now()
	return t.add(time.Until(deadline))
}

func (t instant) add(d time.Duration) instant     { return t + instant(d) }
func (t instant) sub(other instant) time.Duration { return time.Duration(t - other) }

// time is the same instant as this process's clock has it.
func (t instant) time() time.Time { return time.Now().Add(t.sub(now())) }
