package boottime

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The next reading after a sleep includes it, because a sleep moves the wall clock against the
// monotonic one.
func TestReadingShowsASleep(t *testing.T) {
	c := Clock{real: true, before: asleep()}
	woken := make(chan struct{})
	before := c.Now()
	c.before -= time.Hour
	c.watches = map[*watch]struct{}{{func() { close(woken) }}: {}} // without the timer, which looks as well
	if d := c.Now().Sub(before); d > time.Minute {
		t.Errorf("asked the kernel although no clock has moved")
	}
	for _, moved := range []time.Duration{time.Hour, -time.Hour} {
		ahead.Add(-int64(moved))
		if d := (c.Now().Sub(before) - time.Hour).Abs(); d > time.Minute { // two clocks are not read at one instant
			t.Errorf("%v from an hour after an hour's sleep", d)
		}
	}
	<-woken
}

// Setting the wall clock does not count as a sleep.
func TestSettingTheClockIsNoSleep(t *testing.T) {
	c := Clock{real: true, before: asleep()}
	before := c.Now()
	ahead.Add(-int64(time.Hour))
	if d := c.Now().Sub(before); d > time.Minute {
		t.Errorf("%v after the wall clock was set", d)
	}
}

// timers returns the files with which this process waits for resumes.
func timers(t *testing.T) (found []string) {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range infos {
		info, err := os.ReadFile(path)
		if text := string(info); err == nil && strings.Contains(text, "clockid: 0") && strings.Contains(text, "settime flags: 03") {
			found = append(found, path)
		}
	}
	return found
}

// While somebody watches, there is one timer that a resume cancels. Afterwards there is none.
func TestOneTimerWhileWatched(t *testing.T) {
	before := len(timers(t))
	c := Clock{real: true, before: asleep()}
	first, second := c.Watch(func() {}), c.Watch(func() {})
	if n := len(timers(t)) - before; n != 1 {
		t.Errorf("two who watch have %d timers", n)
	}
	first()
	if n := len(timers(t)) - before; n != 1 {
		t.Errorf("one who watches has %d timers", n)
	}
	second()
	if n := len(timers(t)) - before; n != 0 {
		t.Errorf("%d timers are left", n)
	}
}

// If there is no file left for the timer, the next who watches sets it.
func TestTimerIsSetLater(t *testing.T) {
	before := len(timers(t))
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	c := Clock{real: true, before: asleep()}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	first := c.Watch(func() {})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if n := len(timers(t)) - before; n != 0 {
		t.Fatalf("%d timers without a file", n)
	}
	second := c.Watch(func() {})
	if n := len(timers(t)) - before; n != 1 {
		t.Errorf("two who watch have %d timers", n)
	}
	first()
	second()
	if n := len(timers(t)) - before; n != 0 {
		t.Errorf("%d timers are left", n)
	}
}

// A sleep before the timer was set is noticed too.
func TestWatchFindsAnEarlierSleep(t *testing.T) {
	c := Clock{real: true, before: asleep() - time.Hour}
	woken := make(chan struct{})
	defer c.Watch(func() { close(woken) })()
	select {
	case <-woken:
	case <-time.After(10 * time.Second):
		t.Error("who watches was not called")
	}
}
