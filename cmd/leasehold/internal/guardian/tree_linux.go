package guardian

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// clock counts the time that the machine sleeps.
const clock = unix.CLOCK_BOOTTIME

// walks is true: descendants are found even if they have left the child's process group.
const walks = true

// rename gives this process the guardian's name, which ps, killall and pkill show. It is the name
// of the first thread.
func rename() {
	// On an error the program's own name stays. There is no place to report it.
	_ = os.WriteFile("/proc/self/comm", []byte(Name), 0)
}

// adoptOrphans makes this process the parent of every descendant whose own parent dies. If that
// fails, as on older kernels, grandchildren may escape. Everything else works.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// guardianAttr starts the guardian in a process group that no signal of the terminal reaches. If
// this process is killed while the guardian is stopped, the kernel resumes the guardian in time to
// end the child. The kernel also sends SIGCONT when the thread that started the guardian ends. That
// is harmless.
func guardianAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGCONT}
}

// childAttr starts the child in a process group of its own. If the terminal is lent, the group is
// in the foreground. If the guardian is killed, the kernel kills the child at once.
func childAttr(t *terminal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: t.lent, Ctty: t.tty, Pdeathsig: syscall.SIGKILL}
}

// alone reports whether no process of a child's group is left, when the guardian has no child any
// more. On Linux every descendant is below a child of the guardian, which is its subreaper.
func alone(group int) bool { return true }

// A process is an entry of the process table.
type process struct {
	pid, parent int
	started     uint64 // clock ticks since boot
	dead        bool   // it is a zombie, with all of its threads
}

// descendants lists the processes below root. It omits children of root that were started before
// since, and their descendants. The table is not read atomically: a process that forks meanwhile
// may be missed, and is found by the next reading.
func descendants(root int, since uint64) []int {
	children := make(map[int][]process)
	for _, p := range processes() {
		children[p.parent] = append(children[p.parent], p)
	}
	var found []int
	var walk func(parent int)
	walk = func(parent int) {
		for _, p := range children[parent] {
			if parent == root && p.started < since {
				continue
			}
			found = append(found, p.pid)
			walk(p.pid)
		}
	}
	walk(root)
	return found
}

// below lists the descendants that are still alive.
func below(root int, since uint64) (found []int) {
	for _, pid := range descendants(root, since) {
		if running(pid) {
			found = append(found, pid)
		}
	}
	return found
}

// running reports whether a process has not ended. A zombie has ended.
func running(pid int) bool {
	p, ok := readProcess(pid)
	return ok && !p.dead
}

// catches reports whether a process handles sig. proc(5) describes the mask.
func catches(pid int, sig syscall.Signal) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(status), "\nSigCgt:")
	mask, _, _ := strings.Cut(rest, "\n")
	caught, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	return err == nil && caught>>(sig-1)&1 == 1
}

// processes reads the process table, zombies included.
func processes() []process {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	list := make([]process, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readProcess(pid); ok {
				list = append(list, p)
			}
		}
	}
	return list
}

// leftMost is how many of the remaining processes are named.
const leftMost = 10

// leftRunning names the processes below this one, without zombies.
func leftRunning() string { return named(descendants(os.Getpid(), 0)) }

// refusing names those of pids that this process may not end, because they have become another
// user.
func refusing(pids []int) string {
	return named(slices.DeleteFunc(pids, func(pid int) bool { return syscall.Kill(pid, 0) != syscall.EPERM }))
}

// named names processes, without zombies.
func named(pids []int) string {
	var names []string
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		name, err := os.ReadFile(dir + "/comm")
		if args, _ := os.ReadFile(dir + "/cmdline"); err != nil || len(args) == 0 {
			continue // a zombie has no arguments
		}
		names = append(names, fmt.Sprintf("%s[%d]", bytes.TrimSpace(name), pid))
	}
	if more := len(names) - leftMost; more > 0 {
		names = append(names[:leftMost], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// memoryFile returns a file in memory.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate(Name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), Name), nil
}

// startTime returns when a process was started, in clock ticks since boot, or 0.
func startTime(pid int) uint64 {
	p, _ := readProcess(pid)
	return p.started
}

// readProcess reads a process's entry. It returns false if the process is gone. proc(5) describes
// the fields.
func readProcess(pid int) (process, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	// The second field, a name in parentheses, may contain anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const first = 3 // the number of fields[0]
	const state, ppid, threads, starttime = 0, 4 - first, 20 - first, 22 - first
	if len(fields) <= starttime {
		return process{}, false
	}
	// A process whose first thread has ended looks like a zombie while other threads run.
	dead := fields[state][0] == 'Z' && string(fields[threads]) <= "1" || fields[state][0] == 'X'
	parent, err := strconv.Atoi(string(fields[ppid]))
	started, err2 := strconv.ParseUint(string(fields[starttime]), 10, 64)
	return process{pid, parent, started, dead}, err == nil && err2 == nil
}
