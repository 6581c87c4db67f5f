package servers

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A Clock is the wall clock of a server, which a test can move while the server runs. The
// server's monotonic clock stays. It keeps its setting when the server starts again.
type Clock struct {
	t      testing.TB
	lib    string
	offset *os.File // mapped by the server
}

// StartRedisWithClock starts a Redis as StartRedis does, with a clock that starts right.
func StartRedisWithClock(t testing.TB, args ...string) (*Redis, *Clock) {
	t.Helper()
	c := newClock(t)
	return startRedisAt(t, FreePorts(t, 1)[0], c.env(), args...), c
}

//go:embed clock/clock.c
var clockSource []byte

// newClock compiles what the server is to load.
func newClock(t testing.TB) *Clock {
	t.Helper()
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatalf("write the source of the clock: %v", err)
	}
	cc := exec.Command(Need(t, "compiler", "cc"), "-shared", "-fPIC", "-O2", "-o", lib, source)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compile the clock: %v\n%s", err, out)
	}
	offset, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		t.Fatalf("make the clock's file: %v", err)
	}
	t.Cleanup(func() { offset.Close() })
	c := &Clock{t: t, lib: lib, offset: offset}
	c.Set(0)
	return c
}

// env is what a server with this clock has in its environment.
func (c *Clock) env() []string {
	return append(os.Environ(), "LD_PRELOAD="+c.lib, "MOVED_CLOCK="+c.offset.Name())
}

// Set sets the clock ahead of the right time by offset, which may be negative. Redis goes
// by it from the next command on.
func (c *Clock) Set(offset time.Duration) { c.write(offset.Microseconds(), 0) }

// Stop has the clock stand at an instant.
func (c *Clock) Stop(at time.Time) { c.write(0, at.UnixMicro()) }

func (c *Clock) write(offset, at int64) {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:8], uint64(offset))
	binary.NativeEndian.PutUint64(b[8:], uint64(at))
	if _, err := c.offset.WriteAt(b[:], 0); err != nil {
		c.t.Errorf("set the clock: %v", err)
	}
}
