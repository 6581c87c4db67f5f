package servers

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A Clock is the wall clock of a server. A test can move it while the server runs, without moving
// the server's monotonic clock. The setting survives a restart of the server.
type Clock struct {
	t      testing.TB
	lib    string
	file   string        // mapped by the server and by us; it holds the numbers below
	offset *atomic.Int64 // in microseconds
	stands *atomic.Int64 // the instant at which the clock is stopped; 0: it runs
	left   *atomic.Int64 // number of readings until the clock steps; 0: it does not
	next   *atomic.Int64 // the offset after the step
}

// StartRedisWithClock is like StartRedis, and also returns the server's clock, which starts right.
func StartRedisWithClock(t testing.TB, args ...string) (*Redis, *Clock) {
	t.Helper()
	c := newClock(t)
	return startRedisAt(t, FreePorts(t, 1)[0], c.env(), args...), c
}

const clockSize = 32 // bytes of the clock's file

//go:embed clock/clock.c
var clockSource string

// newClock compiles the library that the server preloads.
func newClock(t testing.TB) *Clock {
	t.Helper()
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	write(t, source, clockSource)
	cc := exec.Command(Need(t, "compiler", "cc"), "-shared", "-fPIC", "-O2", "-o", lib, source)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compile the clock: %v\n%s", err, out)
	}
	c := &Clock{t: t, lib: lib, file: filepath.Join(dir, "offset")}
	write(t, c.file, strings.Repeat("\x00", clockSize))
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

// env returns the environment of a server with this clock.
func (c *Clock) env() []string {
	return append(os.Environ(), "LD_PRELOAD="+c.lib, "MOVED_CLOCK="+c.file)
}

// Set moves the clock ahead of the right time by offset, which may be negative. Redis reads it from
// the next command on.
func (c *Clock) Set(offset time.Duration) {
	c.offset.Store(offset.Microseconds()) // atomically: half an offset would be another time
	c.stands.Store(0)
}

// Stop stops the clock at an instant.
func (c *Clock) Stop(at time.Time) { c.stands.Store(at.UnixMicro()) }

// StepAt moves the clock by another offset when the server reads it for the n-th time from now, in
// the middle of its next command.
func (c *Clock) StepAt(n int, offset time.Duration) {
	c.next.Store(offset.Microseconds())
	c.left.Store(int64(n))
}

// Stepped reports whether the step of StepAt has happened. If not, it cancels the step.
func (c *Clock) Stepped() bool { return c.left.Swap(0) == 0 }
