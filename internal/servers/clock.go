package servers

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A Clock is the wall clock of a server, which a test can move while the server runs. The
// server's monotonic clock stays. It keeps its setting when the server starts again.
type Clock struct {
	t      testing.TB
	lib    string
	file   string        // mapped by the server, and here
	offset *atomic.Int64 // in it, in microseconds
	stands *atomic.Int64 // in it: where the clock stands; 0: it goes on
	left   *atomic.Int64 // in it: how many readings it takes until the clock steps; 0: it does not
	next   *atomic.Int64 // in it: the offset from then on
}

// StartRedisWithClock starts a Redis as StartRedis does, with a clock that starts right.
func StartRedisWithClock(t testing.TB, args ...string) (*Redis, *Clock) {
	t.Helper()
	c := newClock(t)
	return startRedisAt(t, FreePorts(t, 1)[0], c.env(), args...), c
}

const clockSize = 32 // bytes of the clock's file

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
	c := &Clock{t: t, lib: lib, file: filepath.Join(dir, "offset")}
	if err := os.WriteFile(c.file, make([]byte, clockSize), 0o600); err != nil {
		t.Fatalf("make the clock's file: %v", err)
	}
	file, err := os.OpenFile(c.file, os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("open the clock's file: %v", err)
	}
	defer file.Close()
	mapped, err := syscall.Mmap(int(file.Fd()), 0, clockSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatalf("map the clock's file: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mapped) })
	words := (*[clockSize / 8]atomic.Int64)(unsafe.Pointer(&mapped[0]))
	c.offset, c.stands, c.left, c.next = &words[0], &words[1], &words[2], &words[3]
	return c
}

// env is what a server with this clock has in its environment.
func (c *Clock) env() []string {
	return append(os.Environ(), "LD_PRELOAD="+c.lib, "MOVED_CLOCK="+c.file)
}

// Set sets the clock ahead of the right time by offset, which may be negative. Redis goes
// by it from the next command on.
func (c *Clock) Set(offset time.Duration) {
	c.offset.Store(offset.Microseconds()) // at once: half of it would be another time
	c.stands.Store(0)
}

// Stop has the clock stand at an instant.
func (c *Clock) Stop(at time.Time) { c.stands.Store(at.UnixMicro()) }

// StepAt sets the clock to another offset when the server reads it for the n-th time from now:
// in the middle of what it is told next.
func (c *Clock) StepAt(n int, offset time.Duration) {
	c.next.Store(offset.Microseconds())
	c.left.Store(int64(n))
}

// Stepped reports whether the step of StepAt has come, and calls it off otherwise.
func (c *Clock) Stepped() bool { return c.left.Swap(0) == 0 }
