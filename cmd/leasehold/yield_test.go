//go:build linux

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A command gets the signal of --yield once, finishes its step and exits by itself. The step does
// not get it: it would die of it.
func TestYield(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "-v", "--ttl", "3s", "--yield", "usr1", "x", "--", "sh", "-c", `trap 'echo >> got' USR1
		sh -c 'echo > step; while ! [ -e go ]; do sleep 0.02; done; echo done > step'
		while ! [ -e got ]; do sleep 0.02; done; exit 3`)
	c.read("step")
	next := c.start("run", "x", "--", "sh", "-c", "cat step > next")
	j.says("others wait for x")
	j.says("the command got SIGUSR1")
	write(t, filepath.Join(c.dir, "go"), nil)
	if code := j.code(); code != 3 {
		t.Errorf("exit code %d, want the command's: %s", code, j.errors())
	}
	if code := next.code(); code != 0 || c.read("next") != "done" {
		t.Errorf("the next: exit code %d, step %q: %s", code, c.file("next"), next.errors())
	}
	if got := strings.Count(c.file("got"), "\n"); got != 1 {
		t.Errorf("got it %d times", got)
	}
}

// A command that is wanted before it catches the signal does not die of it. --on-wanted runs once,
// whichever of the names is waited for.
func TestYieldWaitsForTheHandler(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--ttl", "3s", "--yield", "SIGTERM", "--on-wanted", "echo $LEASEHOLD_WANTED $LEASEHOLD_NAME >> wanted", "--also", "y", "x", "--",
		"sh", "-c", `echo > ready; while ! [ -e go ]; do sleep 0.02; done; trap 'echo > got; exit 0' TERM; while :; do sleep 0.02; done`)
	c.read("ready")
	next := []*job{c.start("run", "y", "--", "true"), c.start("run", "y", "--", "true")}
	j.says("others wait for x, but the command does not catch SIGTERM yet")
	c.missing("got")
	write(t, filepath.Join(c.dir, "go"), nil)
	for _, j := range append(next, j) {
		if code := j.code(); code != 0 {
			t.Errorf("exit code %d: %s", code, j.errors())
		}
	}
	c.read("got")
	if wanted := c.file("wanted"); wanted != "y x\n" {
		t.Errorf("--on-wanted saw %q", wanted)
	}
}

// Nobody yields to who does not wait.
func TestYieldRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{"--yield KILL x", "--yield stop x", "--yield 10 x", "--yield x x", "--on-wanted true --once-per 1h x", "--yield USR1 --once-per 1h x"} {
		contains(t, c.want(64, append([]string{"run"}, append(strings.Fields(line), "--", "true")...)...).stderr, "leasehold: --")
	}
}

// A signal that ends the campaign while an outranked leader's command is being ended decides the exit
// code: the command ends as the term does, not by the signal.
func TestSignalEndsTheCampaignOfAnOutrankedLeader(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	a := c.start("lead", "--ttl", "1m", "--grace", "25s", "--preference", "1", "sched", "--", "sh", "-c",
		"trap 'echo >> got' TERM; echo > ready; while ! [ -e go ]; do sleep 0.02; done; exit 0")
	c.read("ready")
	c.start("lead", "--preference", "2", "sched", "--", "sleep", "60")
	c.read("got")
	a.signal(syscall.SIGTERM)
	eventually(t, "the signal", func() bool { return strings.Count(c.file("got"), "\n") == 2 })
	write(t, filepath.Join(c.dir, "go"), nil)
	if code := a.code(); code != 143 {
		t.Errorf("exit code %d: %s", code, a.errors())
	}
}

// A leader steps down for a candidate of higher preference, says so, and campaigns again.
func TestLeaderIsOutranked(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	a := c.candidate("a", "--preference", "1")
	c.terms(1)
	b := c.candidate("b", "--preference", "2")
	if who := c.terms(2); who[1] != "b" {
		t.Errorf("led: %q", who)
	}
	a.says("sched: a candidate of higher preference waits; the command was ended")
	eventually(t, "a campaigns again", func() bool { return len(c.shown("sched").Waiters) == 1 })
	b.signal(syscall.SIGTERM)
	if code := b.code(); code != 143 {
		t.Errorf("exit code %d: %s", code, b.errors())
	}
	if who := c.terms(3); who[2] != "a" {
		t.Errorf("led: %q", who)
	}
	c.want(64, "lead", "--preference", "1000000001", "x", "--", "true")
}
