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

// KeepAwake keeps all processors awake until rest is called. An idle processor takes long to wake
// up, which would hide the costs of a lock. The process that keeps them awake has the lowest
// priority.
func KeepAwake(tb testing.TB) (rest func()) {
	tb.Helper()
	c := startChild(tb, awakePart, order{})
	var ready bool
	c.hear(&ready)
	return c.end
}

// keepAwake is that process.
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

// Pin binds this process to one processor, with one running thread of Go at a time, until undo is
// called. It binds the process pid to the same processor or, if apart is true, to the next.
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

// processors is a set of processors, one bit each.
type processors [16]uint64

// least returns a set with only the first of them.
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

// allowed returns the processors that this process may use.
func allowed(tb testing.TB) (p processors) {
	tb.Helper()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(p), uintptr(unsafe.Pointer(&p))); errno != 0 {
		tb.Fatalf("which processors there are: %v", errno)
	}
	return p
}

// pin binds all threads of a process to some processors.
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
		if errno != 0 && errno != syscall.ESRCH { // ESRCH: the thread has ended
			tb.Fatalf("pin thread %d: %v", id, errno)
		}
	}
}
