//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/locktest"
)

// guardianStopped starts a command that ends with exit code 3 when the file go is there, and stops its guardian. A signal
// that the guardian has passed on shows that it had reported the start before.
func (c *cli) guardianStopped(verb string, flags ...string) (j *job, guardian *os.Process) {
	c.t.Helper()
	j = c.start(append(append([]string{verb, "-v"}, flags...), "x", "--", "sh", "-c",
		"trap 'echo > passed' USR1; echo $$ > pid; while ! [ -e go ]; do sleep 0.02; done; exit 3")...)
	guardian, err := os.FindProcess(parent(c.t, c.readInt("pid")))
	if err != nil {
		c.t.Fatal(err)
	}
	j.signal(syscall.SIGUSR1)
	c.read("passed")
	locktest.PauseProcess(c.t, guardian)
	return j, guardian
}

// end has the command end.
func (c *cli) end() {
	c.t.Helper()
	write(c.t, filepath.Join(c.dir, "go"), nil)
}

// TestGuardianAloneIsStopped: the command ends, and its run hears of it all the same.
func TestGuardianAloneIsStopped(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"renewed":  {"--ttl", "24h"},
		"short":    {"--ttl", "10s"},
		"once per": {"--once-per", "24h", "--at-most", "12h"},
		"at least": {"--at-least", "12h"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j, _ := c.guardianStopped("run", flags...)
			c.end()
			if code := j.code(); code != 3 {
				t.Errorf("exit code %d, want 3: %s", code, j.errors())
			}
			contains(t, j.errors(), "lock-guardian[", "does not answer")
			next := 0
			if name == "once per" || name == "at least" {
				next = exitBusy
			}
			c.wantRun(next, "-n", "x", "--", "true")
		})
	}
}

// TestLeadWithAStoppedGuardian: the next term begins.
func TestLeadWithAStoppedGuardian(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j, _ := c.guardianStopped("lead", "--ttl", "24h")
	c.end()
	j.says("the command ended with exit code 3")
	c.wantRun(0, "-w", "20", "x", "--", "true")
}

// TestSignalPassesAStoppedGuardian: who ends a run does not wait until its silence is noticed.
func TestSignalPassesAStoppedGuardian(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j, _ := c.guardianStopped("run", "--ttl", "24h")
	j.signal(syscall.SIGTERM)
	if code := j.code(); code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
}

// TestRunKilledBesideAStoppedGuardian: the kernel resumes what nobody is left to resume.
func TestRunKilledBesideAStoppedGuardian(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j, _ := c.guardianStopped("run", "--ttl", "24h")
	j.signal(syscall.SIGKILL)
	c.wantRun(0, "-w", "60", "x", "--", "true")
	if syscall.Kill(c.readInt("pid"), 0) == nil {
		t.Error("the command lives")
	}
}

// TestRunKilledInAContainer beside a stopped guardian: the process that takes the guardian over is of the same session, as
// the first process of a container is, so that the kernel does not resume the guardian as the last of its session.
func TestRunKilledInAContainer(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.start("run", "container", "--", "sh", "-c",
		"leasehold run --ttl 2s x -- sh -c 'echo $$ > pid; exec sleep 1000' & echo $! > run; wait; exec sleep 1000")
	command, err := os.FindProcess(c.readInt("pid"))
	if err != nil {
		t.Fatal(err)
	}
	guardian, err := os.FindProcess(parent(t, command.Pid))
	if err != nil {
		t.Fatal(err)
	}
	locktest.PauseProcess(t, guardian)
	syscall.Kill(c.readInt("run"), syscall.SIGKILL)
	c.wantRun(0, "-w", "60", "x", "--", "true")
	if command.Signal(syscall.Signal(0)) == nil && !ended(command.Pid) {
		t.Error("the command lives")
	}
}

// TestGuardianKilledWhileStopped: the exit code of a command that has ended before does not die with it.
func TestGuardianKilledWhileStopped(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j, guardian := c.guardianStopped("run", "--ttl", "24h")
	j.stop()
	c.end()
	eventually(t, "end of the command", func() bool { return ended(c.readInt("pid")) })
	guardian.Kill()
	j.signal(syscall.SIGCONT)
	if code := j.code(); code != 3 {
		t.Errorf("exit code %d, want 3: %s", code, j.errors())
	}
	c.wantRun(0, "-n", "x", "--", "true")
}

// TestBothAreStopped, and the run alone goes on.
func TestBothAreStopped(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j, _ := c.guardianStopped("run", "--ttl", "2s")
	j.stop()
	c.end()
	eventually(t, "end of the command", func() bool { return ended(c.readInt("pid")) })
	c.wantRun(0, "-w", "60", "x", "--", "true")
	j.signal(syscall.SIGCONT)
	if code := j.code(); code != exitLost {
		t.Errorf("exit code %d, want %d: %s", code, exitLost, j.errors())
	}
}

// ended reports whether a process has ended that nobody has waited for.
func ended(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " Z")
}
