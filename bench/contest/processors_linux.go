package contest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"unsafe"
)

const awakePart = "awake"

// KeepAwake keeps all processors from sleeping until rest is called: idle ones take long to wake up, which
// hides what a lock costs. What keeps them awake gives way to whatever else there is to do.
func KeepAwake(tb testing.TB) (rest func()) {
	tb.Helper()
	c := startChild(tb, awakePart, order{})
	var ready bool
	c.hear(&ready)
	return c.end
}

// keepAwake is the process that does.
func keepAwake(p *parent) error {
	n := runtime.NumCPU()
	runtime.GOMAXPROCS(n + 1)
	ready := make(chan error, n)
	for range n {
		go func() {
			runtime.LockOSThread()
			const idle = 5 // SCHED_IDLE of sched(7)
			var priority int32
			_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETSCHEDULER, 0, idle, uintptr(unsafe.Pointer(&priority)))
			if errno != 0 {
				ready <- fmt.Errorf("give way to others: %w", errno)
				return
			}
			ready <- nil
			for n := 0; ; n++ {
			}
		}()
	}
	for range n {
		if err := <-ready; err != nil {
			return err
		}
	}
	if err := p.tell(true); err != nil {
		return err
	}
	p.wait()
	return nil
}

// Pin has this process run on one processor alone, with one thread of Go's at a time, and the process pid
// on the same, or on the next if it is to be apart, until undo is called.
func Pin(tb testing.TB, pid int, apart bool) (undo func()) {
	tb.Helper()
	all := allowed(tb)
	first := all.least()
	server := first
	if rest := all.without(first); apart && rest != (processors{}) {
		server = rest.least()
	}
	was := runtime.GOMAXPROCS(1)
	pin(tb, os.Getpid(), first)
	pin(tb, pid, server)
	return func() {
		pin(tb, os.Getpid(), all)
		pin(tb, pid, all)
		runtime.GOMAXPROCS(was)
	}
}

// processors are a set of them, a bit each.
type processors [16]uint64

// least is the first of them alone.
func (p processors) least() (one processors) {
	for i, w := range p {
		if w != 0 {
			one[i] = w & -w
			break
		}
	}
	return one
}

func (p processors) without(q processors) processors {
	for i := range p {
		p[i] &^= q[i]
	}
	return p
}

// allowed are those that this process may use.
func allowed(tb testing.TB) (p processors) {
	tb.Helper()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(p), uintptr(unsafe.Pointer(&p))); errno != 0 {
		tb.Fatalf("which processors there are: %v", errno)
	}
	return p
}

// pin has all threads of a process run on some processors.
func pin(tb testing.TB, pid int, on processors) {
	tb.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			tb.Fatal(err)
		}
		_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(id), unsafe.Sizeof(on), uintptr(unsafe.Pointer(&on)))
		if errno != 0 && errno != syscall.ESRCH { // a thread that has ended
			tb.Fatalf("pin thread %d: %v", id, errno)
		}
	}
}
