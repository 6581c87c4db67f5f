//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestOnAcquire(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	o := c.wantRun(3, "--on-acquire", `echo "to stdout"; env > seen; cat > input; echo >&2 "of the hook"`, "job", "--", "sh", "-c", "echo of the command; env > mine; exit 3")
	if o.stdout != "of the command\n" {
		t.Errorf("stdout: %q", o.stdout)
	}
	contains(t, o.stderr, "to stdout", "of the hook")
	if input := c.file("input"); input != "" {
		t.Errorf("it has read %q", input)
	}
	pick := func(text string) (picked []string) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "LEASEHOLD_") {
				picked = append(picked, line)
			}
		}
		slices.Sort(picked)
		return picked
	}
	if seen, mine := pick(c.file("seen")), pick(c.file("mine")); strings.Join(seen, "") != strings.Join(mine, "") || len(seen) < 6 {
		t.Errorf("it sees %q, the command %q", seen, mine)
	}
	// Nobody who is refused is told of, and no loss either.
	l := c.acquire("busy")
	c.wantRun(1, "-n", "--on-acquire", "touch acquired", "--on-lost", "touch lost", "busy", "--", "true")
	c.want(0, "release", "busy", l.Owner)
	c.wantRun(0, "--on-lost", "touch lost", "busy", "--", "true")
	c.missing("acquired")
	c.missing("lost")
}

// A hook that fails, or that nobody can run, changes nothing of the run.
func TestHooksThatFail(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	o := c.wantRun(0, "--on-acquire", "exit 7", "job", "--", "echo", "done")
	contains(t, o.stderr, "warning: --on-acquire has failed: exit status 7")
	c.env = []string{"SHELL=/nonexistent"}
	o = c.wantRun(0, "--on-acquire", "true", "job", "--", "echo", "done")
	contains(t, o.stderr, "warning: --on-acquire has failed", "/nonexistent")
	if o.stdout != "done\n" {
		t.Errorf("stdout: %q", o.stdout)
	}
	c.wantRun(64, "--on-acquire", "", "job", "--", "true")
}

// A hook that hangs holds up neither the command nor its release, and is ended after a while.
func TestHookThatHangs(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const alive = "while [ ! -s hook ]; do sleep 0.02; done; kill -0 $(cat hook)"
	j := c.start("run", "--on-acquire", "sleep 60 & echo $! > sleeper; echo $$ > hook; wait", "job", "--", "sh", "-c", alive)
	c.read("hook")
	if o := c.call("run", "-w", "60", "job", "--", "sh", "-c", alive); o.code != 0 { // it has 10 s
		t.Errorf("the lock was released only after the hook: exit code %d, %s", o.code, o.stderr)
	}
	if code := j.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	contains(t, j.errors(), "warning: --on-acquire has failed: killed after 10s")
	eventually(t, "end of what the hook has started", func() bool { return zombie(c.readInt("sleeper")) })
}

// A signal that has ended the run, such as one during its release, also bounds the wait for its
// hooks.
func TestSignalThatEndedTheRunEndsTheWaitForHooks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want time.Duration
	}{{nil, hookBound}, {&exitError{code: 3}, hookBound}, {bySignal(syscall.SIGTERM, nil), lastWord}} {
		synctest.Test(t, func(t *testing.T) {
			r := &run{child: newChild(&app{})}
			r.hooks.running.Go(func() { time.Sleep(hookBound) })
			began := time.Now()
			r.awaitHooks(c.err)
			if took := time.Since(began); took != c.want {
				t.Errorf("%v: waited for %v, want %v", c.err, took, c.want)
			}
			r.hooks.running.Wait()
		})
	}
}

// A signal that has ended the command, as that of "docker stop", also bounds the wait for the hooks.
func TestSignalThatEndedTheCommandEndsTheWaitForHooks(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"killed": "echo > held; exec sleep 60",
		"caught": "trap 'exit 143' TERM; echo > held; while :; do sleep 0.02; done",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j := c.start("run", "--on-acquire", "echo > hook; exec sleep 60", "job", "--", "sh", "-c", command)
			c.read("held")
			c.read("hook")
			j.signal(syscall.SIGTERM)
			if code := j.code(); code != 143 {
				t.Errorf("exit code %d: %s", code, j.errors())
			}
			if told := j.errors(); strings.Contains(told, "--on-acquire has failed") { // killed after 10 s
				t.Errorf("it has waited for the hook: %s", told)
			}
		})
	}
}

// With a hook that hangs, the command is dead before the next holder is let in, although nothing
// can be renewed and nothing answers.
func TestHooksDoNotDelayTheKill(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.tree(deaf, "--ttl", "3s", "--on-acquire", "trap '' TERM; sleep 60", "--on-lost", "date +%s%N > lost; sleep 60")
	unlock := c.lockStore()
	c.dead(20 * time.Second)
	unlock()
	c.successor()
	c.read("lost")
	j.signal(syscall.SIGKILL) // its hooks need 10 s more
	if _, err := os.Stat(filepath.Join(c.dir, "lost")); err != nil {
		t.Error(err)
	}
}
