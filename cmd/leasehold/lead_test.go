//go:build linux

package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// candidate starts a leasehold lead that notes its terms in the file terms, as "WHO TOKEN".
func (c *cli) candidate(who string, flags ...string) *job {
	c.t.Helper()
	args := append([]string{"lead", "-v", "--ttl", "5s"}, flags...)
	return c.start(append(args, "sched", "--", "sh", "-c", "echo "+who+" $LEASEHOLD_TOKEN >> terms; exec sleep 60")...)
}

// terms waits for n terms and returns who led, checking that tokens grow.
func (c *cli) terms(n int) []string {
	c.t.Helper()
	var lines []string
	eventually(c.t, strconv.Itoa(n)+" terms", func() bool {
		text, _ := os.ReadFile(filepath.Join(c.dir, "terms"))
		lines = strings.Split(strings.TrimSpace(string(text)), "\n")
		return strings.Count(string(text), "\n") >= n
	})
	who, last := []string{}, uint64(0)
	for _, line := range lines {
		name, text, _ := strings.Cut(line, " ")
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil || token <= last {
			c.t.Errorf("token %q after %d: %v", text, last, err)
		}
		who, last = append(who, name), token
	}
	return who
}

// waits waits until a candidate is in the queue.
func (c *cli) waits(j *job) {
	c.t.Helper()
	eventually(c.t, "wait", func() bool { return strings.Contains(j.errors(), "waiting") })
}

func TestNextLeadsAfterAKill(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	a := c.candidate("a")
	c.terms(1)
	b := c.candidate("b")
	c.waits(b)
	a.signal(syscall.SIGKILL)
	if who := c.terms(2); who[1] != "b" {
		t.Errorf("led: %q", who)
	}
}

// The leader that is asked to stop lets its command finish, exits as that does, and only
// then another leads.
func TestLeaderStepsDownWhenItsCommandHasEnded(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	a := c.start("lead", "sched", "--", "sh", "-c", `trap 'echo >> got; [ "$(wc -l < got)" = 2 ] && { echo > done; exit 7; }' TERM
		echo a $LEASEHOLD_TOKEN >> terms; while :; do sleep 0.02; done`)
	c.terms(1)
	b := c.start("lead", "-v", "sched", "--", "sh", "-c", "test -e done && echo b $LEASEHOLD_TOKEN >> terms; exec sleep 60")
	c.waits(b)
	a.signal(syscall.SIGTERM)
	c.read("got")
	a.signal(syscall.SIGTERM) // a second one reaches it too
	if code := a.code(); code != 7 {
		t.Errorf("exit code %d, want the command's: %s", code, a.errors())
	}
	if who := c.terms(2); who[1] != "b" {
		t.Errorf("led: %q", who)
	}
	b.signal(syscall.SIGTERM)
	if code := b.code(); code != 143 {
		t.Errorf("exit code %d: %s", code, b.errors())
	}
}

// A signal that comes with the grant is taken for one from before the term. Nothing may be
// started then: it would not hear of it any more.
func TestSignalThatComesWithTheGrantStartsNothing(t *testing.T) {
	l := &lead{child: newChild(nil), lastTerm: lastTerm{leave: func() {}}}
	l.heirless = true // there is no lease to leave
	campaign, end := context.WithCancel(t.Context())
	end()
	l.signals <- syscall.SIGTERM
	if err := l.serve(t.Context(), campaign); err != nil { // there is no lease: a start panics
		t.Error(err)
	}
}

func TestEachTermStartsTheCommandAnew(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("lead", "sched", "--", "sh", "-c", `echo a $LEASEHOLD_TOKEN >> terms; [ "$(wc -l < terms)" -lt 3 ] && exit 3; exec sleep 60`)
	c.terms(3)
	j.signal(syscall.SIGTERM)
	if code := j.code(); code != 143 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
}

// A term whose release has no answer says so: nobody else leads until the lease ends.
func TestLeaderTellsOfAReleaseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("lead", "--ttl", "1m", "sched", "--", "sh", "-c", "echo > ready; while ! [ -e go ]; do sleep 0.02; done; exit 3")
	c.read("ready")
	c.lockStore()
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.says("It ends by itself within 1m")
}

func TestCrashingCommandIsStartedLessAndLess(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	a := c.start("lead", "sched", "--", "sh", "-c", "echo a $LEASEHOLD_TOKEN >> terms; exit 3")
	eventually(t, "a long pause", func() bool { return strings.Contains(a.errors(), "again in 2s") })
	b := c.candidate("b") // is not kept waiting
	eventually(t, "a term of b", func() bool { return strings.Contains(c.file("terms"), "b ") })
	b.signal(syscall.SIGTERM)
	b.code()
	eventually(t, "a longer pause", func() bool { return strings.HasSuffix(a.errors(), "again in 8s\n") })
	stopped := time.Now()
	a.signal(syscall.SIGTERM)
	if code := a.code(); code != 143 {
		t.Errorf("exit code %d: %s", code, a.errors())
	}
	if took := time.Since(stopped); took > 7*time.Second {
		t.Errorf("a signal ends the pause after %v", took)
	}
	wantPauses(t, a.errors())
}

// wantPauses checks the pauses against how long each command has lived, on a busy machine
// as long as a pause perhaps.
func wantPauses(t *testing.T, told string) {
	t.Helper()
	var last time.Duration
	for line := range strings.Lines(told) {
		_, times, ok := strings.Cut(line, "exit code 3 after ")
		lived, away, cut := strings.Cut(strings.TrimSpace(times), "; campaigning again in ")
		l, err := time.ParseDuration(lived)
		d, err2 := time.ParseDuration(away)
		if !ok || !cut || err != nil || err2 != nil {
			t.Fatalf("it says %q", line)
		}
		want := firstAway
		if l <= last {
			want = min(2*last, lastAway)
		}
		if last = d; d != want {
			t.Errorf("a pause of %v after a life of %v, want %v:\n%s", d, l, want, told)
		}
	}
}

// file is what a script has written so far.
func (c *cli) file(name string) string {
	text, _ := os.ReadFile(filepath.Join(c.dir, name)) // none yet
	return string(text)
}

func TestPausesOfALeader(t *testing.T) {
	t.Parallel()
	l := &lead{child: newChild(&app{stderr: io.Discard})}
	for _, step := range []struct{ lived, away time.Duration }{
		{time.Millisecond, firstAway}, {time.Millisecond, time.Second}, {time.Second, 2 * time.Second}, {3 * time.Second, firstAway},
		{time.Hour, firstAway}, {0, time.Second}, {0, 2 * time.Second}, {0, 4 * time.Second}, {0, 8 * time.Second}, {0, 16 * time.Second},
		{16 * time.Second, lastAway}, {lastAway, lastAway}, {lastAway + 1, firstAway},
	} {
		if l.stayAway(step.lived); l.away != step.away {
			t.Errorf("away for %v after a life of %v, want %v", l.away, step.lived, step.away)
		}
	}
}

func TestEvictedLeaderCampaignsAgain(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	a := c.candidate("a")
	c.terms(1)
	b := c.candidate("b")
	c.waits(b)
	c.evict("sched")
	if who := c.terms(2); who[1] != "b" {
		t.Errorf("led: %q", who)
	}
	c.waits(a)
	b.signal(syscall.SIGKILL)
	if who := c.terms(3); who[2] != "a" {
		t.Errorf("led: %q", who)
	}
	contains(t, a.errors(), "evicted: test")
}

func TestSignalsEndTheCampaign(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.candidate("a")
	c.terms(1)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		j := c.candidate("b")
		c.waits(j)
		j.signal(syscall.SIGUSR1) // is nobody's yet
		j.signal(sig)
		if code := j.code(); code != 128+int(sig) {
			t.Errorf("%v: exit code %d: %s", sig, code, j.errors())
		}
	}
	var state stateView
	c.want(0, "show", "--json", "sched").json(t, &state)
	if len(state.Waiters) != 0 {
		t.Errorf("left in the queue: %+v", state.Waiters)
	}
}

func TestLeadRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{"", "x", "x --", "x -c true -- true", "--ttl 0.9 x -- true", "--ttl 2s --grace 1s x -- true", "-n x -- true"} {
		contains(t, c.want(64, append([]string{"lead"}, strings.Fields(line)...)...).stderr, "leasehold: ")
	}
	c.want(127, "lead", "x", "--", "./none") // would never be better
	c.want(64, "run", "x", "--", "leasehold", "lead", "x", "--", "true")
	c.store = "sqlite:/proc/none/locks.db"
	c.want(69, "lead", "x", "--", "true")
}
