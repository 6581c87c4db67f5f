//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// endsAway starts a run whose command ends, with exit code 0, after the store has gone away.
func (c *cli) endsAway(args ...string) (j *job, back func(changes ...string)) {
	c.t.Helper()
	args = append(append([]string{"run"}, args...), "--", "sh", "-c", "echo $$ > pid; while ! [ -e go ]; do sleep 0.02; done")
	j = c.start(args...)
	pid, guardian := c.readInt("pid"), j.guardian()
	c.t.Cleanup(func() { // it writes the store's files when that is back
		eventually(c.t, "end of the guardian", func() bool { return syscall.Kill(guardian, 0) != nil })
	})
	back = c.lockStore()
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "end of the command", func() bool { return syscall.Kill(pid, 0) != nil })
	return j, back
}

// says waits for a text on standard error.
func (j *job) says(text string) {
	j.t.Helper()
	eventually(j.t, text, func() bool { return strings.Contains(j.errors(), text) })
}

// A store that is away when the command ends hears of it when it is back: else the job would run
// again in its period.
func TestPeriodIsKeptOverAnOutageAtItsEnd(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"once":  {"--once-per", "1h", "--at-most", "2m", "x"},
		"least": {"--at-least", "1h", "--ttl", "2m", "x"},
		"also":  {"--json", "--at-least", "1h", "--ttl", "2m", "--also", "y", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j, back := c.endsAway(args...)
			j.says("Trying again until ")
			back()
			if code := j.code(); code != 0 {
				t.Errorf("exit code %d: %s", code, j.errors())
			}
			var state stateView
			c.want(0, "show", "--json", "x").json(t, &state)
			if len(state.Holders) != 1 || state.Holders[0].Owner != "" || state.Holders[0].Left < 2000 || !strings.Contains(state.Holders[0].Note, "(exit code 0 after ") {
				t.Errorf("the record is %+v", state.Holders)
			}
		})
	}
}

// A job that has failed is given back although the store was away at its end.
func TestFailedJobIsGivenBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--once-per", "1h", "--at-most", "2m", "--retry-on-failure", "x", "--", "sh", "-c", "echo > ready; while ! [ -e go ]; do sleep 0.02; done; exit 3")
	c.read("ready")
	back := c.lockStore()
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.says("Trying again until ")
	back()
	if code := j.code(); code != 3 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	c.wantRun(0, "-n", "--once-per", "1h", "x", "--", "true")
}

// What ends after the command does is no loss: it was covered. But its period is not kept, also where the
// store is back before anybody looks.
func TestLeaseThatEndsAfterTheCommandIsNotLost(t *testing.T) {
	t.Parallel()
	for name, returns := range map[string]bool{"away": false, "back": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j, back := c.endsAway("--at-least", "1h", "--ttl", "8s", "--also", "y", "--also", "z", "--on-lost", "echo > lost", "x")
			if returns {
				time.Sleep(9 * time.Second)
				back()
			}
			if code := j.code(); code != 0 {
				t.Errorf("exit code %d: %s", code, j.errors())
			}
			c.missing("lost")
			contains(t, j.errors(), "may run again before its time")
		})
	}
}

// A store that is back without its data has lost the lease and knows of no period.
func TestStoreComesBackEmptyAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"once":  {"--once-per", "1h", "--at-most", "2m", "x"},
		"least": {"--at-least", "1h", "--ttl", "2m", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j, back := c.endsAway(args...)
			j.says("Trying again until ")
			back("DELETE FROM leasehold_locks")
			if code := j.code(); code != 75 {
				t.Errorf("exit code %d: %s", code, j.errors())
			}
		})
	}
}

// The end of the leases is the end of trying, however many calls wait for the store.
func TestLeasesEndWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j, back := c.endsAway("--at-least", "1h", "--ttl", "13s", "--also", "y", "--also", "z", "x")
	defer back()
	if code := j.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	over := time.Now()
	contains(t, j.errors(), "may run again before its time")
	_, until, told := strings.Cut(j.errors(), "Trying again until ")
	if !told {
		t.Fatal(j.errors())
	}
	end, err := time.ParseInLocation(time.DateTime, over.Format(time.DateOnly)+" "+until[:len("15:04:05")], time.Local)
	if err != nil {
		t.Fatal(err)
	}
	if late := over.Sub(end); late > 10*time.Second && late < 12*time.Hour { // calls in flight end by their own bounds; it may be midnight
		t.Errorf("ends %v after the time that it told: %s", late, j.errors())
	}
}

// A note that has no room for the exit code is shortened.
func TestLongNoteAtTheEnd(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	long := strings.Repeat("\u00e4", 2048)
	began := time.Now()
	c.wantRun(0, "--once-per", "1h", "--at-most", "5m", "--note", long, "x", "--", "true")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %v", took)
	}
	var state stateView
	c.want(0, "show", "--json", "x").json(t, &state)
	if len(state.Holders) != 1 || !strings.Contains(state.Holders[0].Note, "\u00e4 (exit code 0 after ") {
		t.Errorf("the record is %+v", state.Holders)
	}
}

// Where the store is refused for good, nothing is tried again, and what follows is said too.
func TestStoreIsNoneAnyMoreAtTheEnd(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--at-least", "1h", "--ttl", "2m", "x", "--", "sh", "-c", "mkdir away; mv locks.db* away")
	if code := j.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	contains(t, j.errors(), "The command has ended with exit code 0, and may run again before its time")
}

// Who does not want to wait for the store at the end need not.
func TestSignalEndsTheRelease(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"period": {"--once-per", "1h", "--at-most", "30m", "x"},
		"least":  {"--at-least", "1h", "--ttl", "30m", "x"},
		"plain":  {"--ttl", "30m", "x"},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				t.Parallel()
				c := newCLI(t)
				j, back := c.endsAway(args...)
				for {
					select {
					case <-j.exited:
					case <-time.After(100 * time.Millisecond): // the command may not be known to be over yet
						j.signal(sig)
						continue
					}
					break
				}
				if code := j.code(); code != 128+int(sig) {
					t.Errorf("exit code %d: %s", code, j.errors())
				}
				contains(t, j.errors(), "exit code 0")
				_, text, _ := strings.Cut(j.errors(), "It ends by itself within ")
				// A release that was applied without an answer keeps the name for longer than the lease.
				if left, err := time.ParseDuration(strings.TrimSpace(text)); err != nil || name != "plain" && left <= 30*time.Minute {
					t.Errorf("it says %s", j.errors())
				}
				back()
				if name == "plain" { // the guardian goes on with it
					c.wantRun(0, "-w", "60", "x", "--", "true")
				}
			})
		}
	}
}

// A plain lock is freed by the guardian when the store is back.
func TestGuardianReleasesAfterAnOutage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j, back := c.endsAway("--json", "--ttl", "30m", "x")
	if code := j.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	contains(t, j.errors(), `"event":"error","name":"x","text":"`, "It ends by itself within")
	back()
	c.wantRun(0, "-w", "60", "x", "--", "true")
}

// So is a leader's, which ends while the store is away.
func TestGuardianReleasesALeaderAfterAnOutage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("lead", "--ttl", "2m", "x", "--", "sh", "-c", "echo $$ > pid; while :; do sleep 0.02; done")
	c.read("pid")
	guardian := j.guardian()
	t.Cleanup(func() {
		eventually(t, "end of the guardian", func() bool { return syscall.Kill(guardian, 0) != nil })
	})
	back := c.lockStore()
	j.signal(syscall.SIGTERM)
	if code := j.code(); code != 143 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	contains(t, j.errors(), "It ends by itself within")
	back()
	c.wantRun(0, "-w", "60", "x", "--", "true")
}

// A leader that continues releases its last term when the store is back.
func TestLeaderReleasesItsLastTermAfterAnOutage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("lead", "--ttl", "3m", "x", "--", "sh", "-c", "echo >> ready; while ! [ -e go ]; do sleep 0.02; done; exec sleep 0.1")
	c.read("ready")
	back := c.lockStore()
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.says("It ends by itself within")
	back()
	c.wantRun(0, "-w", "60", "x", "--", "true")
	j.signal(syscall.SIGTERM)
	j.code()
}
