package boottime

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// A Clock's sleep counts at once, and all watchers are called.
func TestSleepCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		woken := 0
		stop := c.Watch(func() { woken++ })
		before, until := c.Now(), c.Time(c.Now().Add(2*time.Hour))
		time.Sleep(time.Minute)
		c.Sleep(time.Hour)
		synctest.Wait()
		if d := c.Now().Sub(before); d != time.Hour+time.Minute {
			t.Errorf("the clock went on by %v in a minute and an hour's sleep", d)
		}
		if d := until.Sub(c.Time(before.Add(2 * time.Hour))); d != time.Hour {
			t.Errorf("an instant is %v nearer after an hour's sleep", d)
		}
		if woken != 1 {
			t.Errorf("woke was called %d times", woken)
		}
		stop()
		c.Sleep(time.Hour)
		synctest.Wait()
		if woken != 1 {
			t.Error("woke was called after stop")
		}
	})
}

// In a bubble the machine's clock follows the bubble's time. A watch that waited for the kernel
// would end the test as a deadlock.
func TestMachineInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := Now()
		if before <= 0 {
			t.Errorf("the clock reads %d", before)
		}
		Machine().Watch(func() { t.Error("called") })
		time.Sleep(time.Hour)
		if d := Now().Sub(before); d != time.Hour {
			t.Errorf("the clock went on by %v in an hour", d)
		}
	})
}

// Between includes the time that the machine slept. If the wall clock was set meanwhile, the change
// counts only up to that time.
func TestBetweenReadings(t *testing.T) {
	slept := Machine().Slept()
	Machine().Sleep(8 * time.Hour)
	slept += 8 * time.Hour
	now := time.Now()
	for _, c := range []struct{ wall, want time.Duration }{
		{0, time.Hour}, {time.Minute, time.Hour + time.Minute}, {8 * time.Hour, 9 * time.Hour}, {1000 * time.Hour, time.Hour + slept}, {-8 * time.Hour, time.Hour},
	} {
		later := now.Add(time.Hour + c.wall)
		*(*int64)(unsafe.Add(unsafe.Pointer(&later), 8)) -= int64(c.wall) // the monotonic reading
		if d := later.Sub(now); d != time.Hour {
			t.Fatalf("%v later, not an hour: package time has changed", d)
		}
		if d := Between(now, later); d != c.want {
			t.Errorf("%v between readings an hour apart, with the wall clock ahead by %v more; want %v", d, c.wall, c.want)
		}
	}
}

func TestMachineGoesOn(t *testing.T) {
	if !strings.Contains(base.String(), " m=") {
		t.Error("what is read follows the wall clock")
	}
	before, now := Now(), time.Now()
	for time.Since(now) < 10*time.Millisecond {
	}
	after := Now()
	if d := after.Sub(before); before <= 0 || d < 10*time.Millisecond {
		t.Errorf("the clock went from %d to %d in 10 ms", before, after)
	}
	if d := time.Since(Machine().Time(after)); d < 0 || d > time.Minute {
		t.Errorf("what was read is %v ago", d)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}

func BenchmarkTimeNow(b *testing.B) {
	for b.Loop() {
		time.Now()
	}
}
