package servers

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// ahead returns how far r's clock is ahead of ours.
func ahead(t *testing.T, r *Redis) time.Duration {
	t.Helper()
	s, us, _ := strings.Cut(r.Must(t, "TIME"), "\n")
	sec, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	micro, err := strconv.ParseInt(us, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Until(time.UnixMicro(sec*1e6 + micro))
}

// Keys expire by the clock that a test moves, at once and after a restart.
func TestRedisGoesByItsClock(t *testing.T) {
	t.Parallel()
	r, clock := StartRedisWithClock(t)
	const slow = 10 * time.Second // of this machine
	for _, offset := range []time.Duration{time.Hour + 1234567*time.Microsecond, -time.Hour - 7654321*time.Microsecond, 0} {
		clock.Set(offset)
		if off := ahead(t, r) - offset; off > time.Second || off < -slow {
			t.Errorf("set to %v, off by %v", offset, off)
		}
	}
	clock.Set(-time.Hour)
	r.Must(t, "SET", "k", "v", "PX", "60000")
	clock.Set(0)
	if n := r.Must(t, "EXISTS", "k"); n != "0" {
		t.Error("a key outlives the hour by which the clock was set forward")
	}
	r.Must(t, "SET", "k", "v", "PX", "60000")
	clock.Set(-time.Hour)
	if ms, err := strconv.Atoi(r.Must(t, "PTTL", "k")); err != nil || time.Duration(ms)*time.Millisecond < time.Hour {
		t.Errorf("once the clock is an hour back, a key of a minute has %d ms left", ms)
	}
	r.Kill()
	r.Start(t)
	if off := ahead(t, r) + time.Hour; off > time.Second || off < -slow {
		t.Errorf("after a restart off by %v", off)
	}
}
