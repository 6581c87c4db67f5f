//go:build linux

// Command suspend is process 1 of a virtual machine. It makes the machine sleep and checks what
// happens to leases meanwhile, of the library and of `leasehold run`. Then it turns the machine
// off. See the script run beside it.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

const (
	ttl   = 10 * time.Second
	nap   = 25 * time.Second
	rtc   = "/sys/class/rtc/rtc0/wakealarm"
	store = "sqlite:/tmp/locks.db"
	// soon is how long after the resume a lease may look live. It is long because this machine is
	// emulated, and slow.
	soon = 500 * time.Millisecond
)

var failed atomic.Bool

func report(ok bool, format string, args ...any) {
	verdict := "ok  "
	if !ok {
		verdict = "FAIL"
		failed.Store(true)
	}
	fmt.Printf("%s %s\n", verdict, fmt.Sprintf(format, args...))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "work" { // this process is the COMMAND of leasehold run
		fmt.Println(os.Getpid())
		time.Sleep(time.Hour)
		return
	}
	defer off()
	for _, fs := range [][3]string{{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"tmpfs", "/tmp", "tmpfs"}, {"devtmpfs", "/dev", "devtmpfs"}} {
		must(os.MkdirAll(fs[1], 0o755))
		if err := unix.Mount(fs[0], fs[1], fs[2], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			panic(err)
		}
	}
	var host unix.Utsname
	must(unix.Uname(&host))
	fmt.Printf("\nLinux %s\n", unix.ByteSliceToString(host.Release[:]))
	for range 2 {
		library()
	}
	short()
	set()
	command()
}

// off turns the machine off.
func off() {
	if p := recover(); p != nil {
		report(false, "%v", p)
	}
	verdict := "passed"
	if failed.Load() {
		verdict = "failed"
	}
	fmt.Println(verdict)
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func read(clock int32) time.Duration {
	var ts unix.Timespec
	must(unix.ClockGettime(clock, &ts))
	return time.Duration(ts.Nano())
}

// sleep makes the machine sleep for d. It returns when the machine woke up and how long it had
// slept. It uses "mem", which is ACPI S3, because an emulated machine does not return from
// "freeze".
func sleep(d time.Duration) (woke, slept time.Duration) {
	must(os.WriteFile(rtc, []byte("0"), 0))
	must(os.WriteFile(rtc, fmt.Appendf(nil, "+%d", d/time.Second), 0))
	asleep := read(unix.CLOCK_BOOTTIME) - read(unix.CLOCK_MONOTONIC)
	must(os.WriteFile("/sys/power/state", []byte("mem"), 0))
	woke = read(unix.CLOCK_BOOTTIME)
	return woke, woke - read(unix.CLOCK_MONOTONIC) - asleep
}

func acquire(opts ...leasehold.Option) (*leasehold.Lease, func()) {
	locks, err := leasehold.New(memory.New(), &leasehold.Options{TTL: ttl})
	must(err)
	lease, err := locks.Acquire(context.Background(), "job", opts...)
	must(err)
	return lease, func() { must(locks.Close()) }
}

// library: a lease that ends in a sleep says so.
func library() {
	lease, end := acquire()
	defer end()
	ended := make(chan time.Duration, 1)
	go func() {
		<-lease.Context().Done()
		ended <- read(unix.CLOCK_BOOTTIME)
	}()
	woke, slept := sleep(nap)
	err := lease.Context().Err()
	report(slept > ttl && err != nil, "mem for %v: Err: %v", slept.Round(time.Millisecond), context.Cause(lease.Context()))
	select {
	case at := <-ended:
		report(at-woke < soon, "mem: Done %v after the resume", (at - woke).Round(10*time.Microsecond))
	case <-time.After(ttl / 2):
		report(false, "mem: the lease looks live %v after the resume", ttl/2)
	}
	err = lease.Release(context.Background())
	report(errors.Is(err, leasehold.ErrLost), "mem: Release: %v", err)
}

// short: a sleep that is shorter than the time left ends no lease.
func short() {
	lease, end := acquire(leasehold.TTL(time.Minute))
	defer end()
	_, slept := sleep(5 * time.Second)
	left := time.Until(lease.Deadline())
	report(slept > time.Second && lease.Context().Err() == nil, "mem for %v of a minute: %v are left", slept.Round(time.Millisecond), left.Round(time.Second))
	report(lease.Release(context.Background()) == nil, "mem: released")
}

// set: setting the wall clock does not count as a sleep.
func set() {
	lease, end := acquire()
	defer end()
	now := unix.NsecToTimespec(time.Now().Add(24 * time.Hour).UnixNano())
	must(unix.ClockSettime(unix.CLOCK_REALTIME, &now))
	time.Sleep(time.Second)
	report(lease.Context().Err() == nil, "the wall clock is set by a day: %v are left", time.Until(lease.Deadline()).Round(time.Second))
	report(lease.Release(context.Background()) == nil, "set: released")
}

// run returns the command leasehold run for this program as COMMAND.
func run(args ...string) *exec.Cmd {
	c := exec.Command("/leasehold", append([]string{"run", "--store", store, "--ttl", ttl.String(), "job", "--"}, args...)...)
	c.Env = []string{"HOME=/tmp", "PATH=/"}
	return c
}

// command: the guardian ends what runs under a lease, even if the holder is stopped.
func command() {
	for _, stopped := range []bool{false, true} {
		c := run("/init", "work")
		out, err := c.StdoutPipe()
		must(err)
		var said bytes.Buffer
		c.Stderr = &said
		must(c.Start())
		lines := bufio.NewReader(out)
		line, err := lines.ReadString('\n')
		must(err)
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		must(err)
		if stopped {
			must(c.Process.Signal(syscall.SIGSTOP))
		}
		ended := make(chan time.Duration, 1)
		go func() {
			for syscall.Kill(pid, 0) == nil {
				time.Sleep(time.Millisecond)
			}
			ended <- read(unix.CLOCK_BOOTTIME)
		}()
		woke, slept := sleep(nap)
		select {
		case at := <-ended:
			report(slept > ttl && at-woke > -time.Second && at-woke < 2*time.Second, "run, holder stopped %t: COMMAND ended %v after the resume from %v", stopped, (at - woke).Round(time.Millisecond), slept.Round(time.Millisecond))
		case <-time.After(ttl / 2):
			report(false, "run, holder stopped %t: COMMAND runs %v after the resume", stopped, ttl/2)
		}
		must(c.Process.Signal(syscall.SIGCONT))
		err = c.Wait()
		report(err != nil, "run: %v: %s", err, strings.TrimSpace(said.String()))
	}
}
