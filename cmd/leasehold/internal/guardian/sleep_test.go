//go:build linux

package guardian

import (
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// pretend gives this process a machine that sleeps when the test says so.
func pretend(t *testing.T) *boottime.Clock {
	t.Helper()
	var clock boottime.Clock
	now, sleep = func() instant { return readClock().add(clock.Slept()) }, &clock
	t.Cleanup(func() { now, sleep = readClock, boottime.Machine() })
	return &clock
}

// The deadline passes while the machine sleeps: the guardian, which this process is here, ends
// the command when it wakes up.
func TestSleepEndsTheCommand(t *testing.T) {
	clock := pretend(t)
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[1])
	c, err := newConn(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.file.Close()
	d, memory, err := newDeadline()
	if err != nil {
		t.Fatal(err)
	}
	defer d.unmap()
	defer memory.Close()
	d.set(instantOf(func() time.Time { return time.Now().Add(time.Hour) }))
	runtime.LockOSThread() // the child gets its death signal when this thread ends
	defer runtime.UnlockOSThread()
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)

	file := filepath.Join(t.TempDir(), "pid")
	s := &start{
		Path: []byte("/bin/sh"), Argv: newTexts([]string{"sh", "-c", "echo $$ > " + file + "; exec sleep 1000"}),
		Env: newTexts(os.Environ()), Grace: time.Second, Margin: time.Second,
	}
	go func() {
		for { // a command that hangs fails the test by its timeout
			if text, err := os.ReadFile(file); err == nil && len(text) > 0 && text[len(text)-1] == '\n' {
				clock.Sleep(2 * time.Hour)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	if m := newGuardian(c, d, s).serve(s, make(chan message), died); m.Verb != gotExit || !m.Cut {
		t.Errorf("%+v, want a command that was cut", m)
	}
	if alive(t, file) {
		t.Error("the command is alive")
	}
}

// A sleep between the lease's answer and ours makes the deadline earlier, never later.
func TestDeadlineAcrossASleep(t *testing.T) {
	clock := pretend(t)
	before := now()
	at := instantOf(func() time.Time {
		deadline := time.Now().Add(time.Hour)
		clock.Sleep(30 * time.Minute)
		return deadline
	})
	if left := at.sub(before); left < 59*time.Minute || left > 61*time.Minute {
		t.Errorf("the deadline in an hour is in %v", left)
	}
}
