//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKillByNameLeavesNobodyBeside: who kills "leasehold" by its name, or by its command
// line, does not kill the guardian with it.
func TestKillByNameLeavesNobodyBeside(t *testing.T) {
	t.Parallel()
	for i, kill := range [][]string{{"killall", "-9"}, {"pkill", "-9"}, {"pkill", "-9", "-f"}} {
		t.Run(fmt.Sprint(kill), func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(kill[0]); err != nil {
				t.Skip(err)
			}
			c := newCLI(t)
			name := fmt.Sprintf("lh%d-%d", os.Getpid(), i) // no other process of this machine
			c.binary = filepath.Join(c.dir, name)
			if err := os.Link(binary, c.binary); err != nil {
				t.Fatal(err)
			}
			c.tree(deaf, "--ttl", "10s")
			if out, err := exec.Command(kill[0], append(kill[1:], name)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			c.successor()
		})
	}
}

// TestGuardiansLineTellsNothing: neither the command, whose name somebody may kill by, nor
// anything secret is on it.
func TestGuardiansLineTellsNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.start("run", "job", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
	guardian := parent(t, c.readInt("pid"))
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", guardian))
	if err != nil {
		t.Fatal(err)
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", guardian))
	if err != nil || strings.Contains(string(environ), "LEASEHOLD_OWNER=") {
		t.Errorf("the guardian's environment tells the owner: %v", err)
	}
	if want := "lock-guardian\x00guard\x00"; len(line) > len(want)+8 || string(line[:len(want)]) != want {
		t.Errorf("the guardian's line is %q", line)
	}
}

// TestGuardianStartsNoEngine: only one that has something to release needs the engines' clients, whose
// packages cost more to initialise than all else that it does.
func TestGuardianStartsNoEngine(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.env = append(c.env, "GODEBUG=inittrace=1")
	trace := c.wantRun(0, "x", "--", "true").stderr
	if n := strings.Count(trace, "init os @"); n != 2 {
		t.Fatalf("%d processes have told of their start, want a run and its guardian", n)
	}
	for _, late := range []string{"google.golang.org/protobuf/reflect/protodesc", "k8s.io/client-go/rest", "modernc.org/sqlite/lib", "github.com/leasehold-go/leasehold/stores"} {
		if n := strings.Count(trace, "init "+late+" @"); n != 1 {
			t.Errorf("%s was initialised by %d of a run and its guardian, want the run alone", late, n)
		}
	}
}

// TestKilledRunIsReleased: as soon as all of it is dead, not when the TTL is over.
func TestKilledRunIsReleased(t *testing.T) {
	t.Parallel()
	for name, prologue := range map[string]string{"obedient": "", "deaf": deaf} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j := c.tree(prologue, "--ttl", "24h", "--grace", "1", "--also", "y")
			j.signal(syscall.SIGKILL)
			c.successor()
			c.wantRun(0, "-w", "20", "y", "--", "true")
		})
	}
}

func TestKilledLeadIsReleased(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("lead", "--ttl", "24h", "x", "--", "sh", "-c", "echo > leading; exec sleep 60")
	c.read("leading")
	j.signal(syscall.SIGKILL)
	c.wantRun(0, "-w", "20", "x", "--", "true")
}

// TestKilledRunKeepsItsLeast: --at-least is for what comes after the command.
func TestKilledRunKeepsItsLeast(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	began := time.Now()
	j := c.hold("x", "--ttl", "24h", "--at-least", "5s")
	j.signal(syscall.SIGKILL)
	c.wantRun(0, "-w", "30", "x", "--", "true")
	if took := time.Since(began); took < 5*time.Second {
		t.Errorf("another ran after %v", took)
	}
}

// guardian returns the pid of a job's guardian.
func (j *job) guardian() int {
	j.t.Helper()
	var pid int
	eventually(j.t, "guardian", func() bool {
		out, _ := exec.Command("pgrep", "-P", fmt.Sprint(j.cmd.Process.Pid)).Output()
		_, err := fmt.Sscan(string(out), &pid)
		return err == nil
	})
	return pid
}

// TestTTLStandsWhenTheGuardianIsKilledToo: nobody is left who could know that all is dead.
func TestTTLStandsWhenTheGuardianIsKilledToo(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.hold("x", "--ttl", "24h")
	guardian := j.guardian()
	j.stop()
	syscall.Kill(guardian, syscall.SIGKILL)
	j.signal(syscall.SIGKILL)
	c.wantRun(1, "-w", "1", "x", "--", "true")
}

// TestStoppedRunIsNotReleased: it may go on, and then goes on under its lease.
func TestStoppedRunIsNotReleased(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--ttl", "24h", "x", "--", "sh", "-c", "echo > held; while ! [ -e go ]; do sleep 0.02; done; exit 3")
	c.read("held")
	j.stop()
	write(t, filepath.Join(c.dir, "go"), nil) // the command ends, and its run does not hear of it
	c.wantRun(1, "-w", "1", "x", "--", "true")
	j.signal(syscall.SIGCONT)
	if code := j.code(); code != 3 {
		t.Errorf("exit code %d, want 3: %s", code, j.errors())
	}
	c.wantRun(0, "-n", "x", "--", "true")
}

// TestRunKilledWithItsCommand: the guardian learns of the command's end first.
func TestRunKilledWithItsCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--ttl", "24h", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
	child, guardian := c.readInt("pid"), j.guardian()
	j.stop()
	syscall.Kill(child, syscall.SIGKILL)
	eventually(t, "end of the command", func() bool { return syscall.Kill(child, 0) != nil })
	if syscall.Kill(guardian, 0) != nil {
		t.Error("the guardian did not wait for its run")
	}
	j.signal(syscall.SIGKILL)
	c.wantRun(0, "-w", "20", "x", "--", "true")
}

// TestKilledWhileItReleases: the command has come to its end, and the store does not answer until
// the run is dead.
func TestKilledWhileItReleases(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"run", "lead"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j := c.start(verb, "--ttl", "24h", "x", "--", "sh", "-c", "echo $$ > pid; while ! [ -e go ]; do sleep 0.02; done")
			child := c.readInt("pid")
			unlock := c.lockStore()
			write(t, filepath.Join(c.dir, "go"), nil)
			eventually(t, "end of the command", func() bool { return syscall.Kill(child, 0) != nil })
			time.Sleep(200 * time.Millisecond) // it is about to release by now, or is killed before
			j.signal(syscall.SIGKILL)
			unlock()
			c.wantRun(0, "-w", "20", "x", "--", "true")
		})
	}
}

// TestLateReleaseHarmsNoSuccessor: the lease was evicted, and another holds x, when the run
// is killed.
func TestLateReleaseHarmsNoSuccessor(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	first := c.hold("x", "--ttl", "24h")
	guardian := first.guardian()
	first.stop()
	var state stateView
	c.want(0, "show", "--json", "x").json(t, &state)
	c.want(0, "evict", "x", "--owner", state.Holders[0].Owner, "--reason", "maintenance", "--yes")
	c.start("run", "-w", "20", "x", "--", "sh", "-c", "echo > second; exec sleep 60")
	c.read("second")
	first.signal(syscall.SIGKILL)
	eventually(t, "end of the guardian", func() bool { return syscall.Kill(guardian, 0) != nil })
	c.wantRun(1, "-n", "x", "--", "true")
}

// TestGuardianWaitsForTheStore: somebody keeps the store's file locked for longer than a
// call may take. It keeps no file of the caller's open meanwhile.
func TestGuardianWaitsForTheStore(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--ttl", "24h", "x", "--", "sh", "-c", "echo > held; exec sleep 60")
	c.read("held")
	guardian := j.guardian()
	unlock := c.lockStore()
	j.signal(syscall.SIGKILL)
	eventually(t, "the guardian without our files", func() bool {
		file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", guardian))
		return err == nil && file == os.DevNull
	})
	time.Sleep(6 * time.Second) // its first call has failed
	unlock()
	c.wantRun(0, "-w", "30", "x", "--", "true")
}
