//go:build linux

package guardian

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// leasehold lead calls leave again before the next term. By then the kernel may have mapped something else at
// the address of the deadline.
func TestLeaveUnmapsTheDeadlineOnce(t *testing.T) {
	_, leave, err := Run(newLease(time.Minute).plan("exit 0"))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	var at uint64
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "/memfd:"+Name) {
			first, _, _ := strings.Cut(line, "-")
			if at, err = strconv.ParseUint(first, 16, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	leave()
	page, size := uintptr(at), uintptr(os.Getpagesize())
	got, _, errno := unix.Syscall6(unix.SYS_MMAP, page, size, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
	if at == 0 || errno != 0 || got != page {
		t.Fatalf("map a page at %#x: %#x, %v", at, got, errno)
	}
	defer unix.Syscall(unix.SYS_MUNMAP, page, size, 0)
	leave()
	if _, _, errno := unix.Syscall(unix.SYS_MSYNC, page, size, unix.MS_ASYNC); errno != 0 {
		t.Errorf("the page of another is gone: %v", errno)
	}
}

// The number of a guardian that kill has reaped may be another process's.
func TestLeaveKnowsThatTheGuardianIsReaped(t *testing.T) {
	h := &holder{plan: newLease(time.Minute).plan("exit 0"), term: homeTerminal()}
	if err := h.start(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.serve(); err != nil {
		t.Fatal(err)
	}
	h.kill()
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	h.guardian = other.Process.Pid
	h.leave()
	if !running(other.Process.Pid) {
		t.Error("leave has killed another process")
	}
	other.Process.Kill()
	other.Wait()
}
