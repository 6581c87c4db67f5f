package boottime

import (
	"errors"
	"math"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// From linux/time.h and linux/timerfd.h.
const (
	clockRealtime  = 0
	clockMonotonic = 1
	clockBoottime  = 7

	timerAbsolute    = 1 << 0             // TFD_TIMER_ABSTIME
	timerCancelOnSet = 1 << 1             // TFD_TIMER_CANCEL_ON_SET
	timerNonblock    = syscall.O_NONBLOCK // TFD_NONBLOCK
	timerCloseOnExec = syscall.O_CLOEXEC  // TFD_CLOEXEC
)

// Available reports whether this system reports how long it slept: Linux from 2.6.39 on.
func Available() bool {
	_, ok := read(clockBoottime)
	return ok
}

func read(clock uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}

// asleep returns how long the machine has slept since it booted.
func asleep() time.Duration {
	for {
		before, _ := read(clockMonotonic)
		boot, _ := read(clockBoottime)
		after, _ := read(clockMonotonic)
		if after-before < least/4 { // otherwise this thread was interrupted in between
			return boot - before
		}
	}
}

var monotonicAtBase = func() time.Duration {
	mono, _ := read(clockMonotonic)
	return mono - time.Since(base)
}()

// inBubble reports whether package time's clock differs from the kernel's here.
func inBubble() bool {
	const slack = time.Second // far less than a bubble's clock is off, which starts in the year 2000
	before, _ := read(clockMonotonic)
	now := time.Since(base) + monotonicAtBase
	after, _ := read(clockMonotonic)
	return now < before-slack || now > after+slack
}

// awaitResumes calls woke after each resume, and whenever the wall clock is set: the kernel then
// cancels such a timer. (systemd relies on the same.) It returns a function that ends this, or nil
// if it failed, for example because too many files are open.
func awaitResumes(woke func()) (end func()) {
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockRealtime, timerNonblock|timerCloseOnExec, 0)
	if errno != 0 {
		return nil
	}
	timer := os.NewFile(fd, "timerfd")
	// The timer is due in 2038. That does not matter.
	due := struct{ every, at syscall.Timespec }{at: syscall.Timespec{Sec: math.MaxInt32}}
	_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, timerAbsolute|timerCancelOnSet, uintptr(unsafe.Pointer(&due)), 0, 0, 0)
	if errno != 0 {
		timer.Close()
		return nil
	}
	go func() {
		defer timer.Close()
		for ticks := make([]byte, 8); ; {
			woke() // the first time for a sleep before the timer was set
			if _, err := timer.Read(ticks); err != nil && !errors.Is(err, syscall.ECANCELED) {
				return // end has closed it
			}
		}
	}()
	return func() { timer.Close() }
}
