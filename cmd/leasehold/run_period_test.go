//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/stores"
)

// crontab starts the same job on ten servers whose clocks differ, and returns how many ran.
func (c *cli) crontab(spread time.Duration, args ...string) int {
	c.t.Helper()
	var jobs []*job
	for i := range 10 {
		jobs = append(jobs, c.start(append([]string{"run", "--ok-if-busy"}, args...)...))
		time.Sleep(spread * time.Duration(i%3) / 10)
	}
	for _, j := range jobs {
		if code := j.code(); code != 0 || j.errors() != "" {
			c.t.Errorf("exit code %d: %s", code, j.errors())
		}
	}
	ran, err := os.ReadFile(filepath.Join(c.dir, "ran"))
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.Count(string(ran), "\n")
}

func TestCrontabOfTenServersRunsOnceInAPeriod(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	args := []string{"--once-per", "24h", "--key", "report", "--", "sh", "-c", "echo >> ran; sleep 0.1"}
	if n := c.crontab(time.Second, args...); n != 1 {
		t.Fatalf("ran %d times in a period", n)
	}
	contains(t, c.wantRun(1, args...).stderr, "exit code 0", "busy")
	contains(t, c.want(0, "show", "report").stdout, "report is done, not free until ", "(exit code 0 after ")
	var state stateView
	c.want(0, "show", "--json", "report").json(t, &state)
	if len(state.Holders) != 1 || state.Holders[0].Owner != "" || state.Holders[0].Left > 24*0.9*3600 || state.Holders[0].Left < 23*0.9*3600 {
		t.Errorf("the record is %+v", state.Holders)
	}
}

func TestNextPeriodRunsAgain(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	args := []string{"run", "--once-per", "4s", "report", "--", "true"}
	began := time.Now()
	c.want(0, args...)
	eventually(t, "the next period", func() bool { return c.call(args...).code == 0 })
	if took := time.Since(began); took < 3600*time.Millisecond {
		t.Errorf("ran again after %v", took)
	}
}

// The runner is killed in the middle: --at-most decides when another may run.
func TestAtMostDecidesAfterAKill(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, tc := range []struct {
		name string
		free time.Duration
		args []string
	}{
		{"bounded", 3 * time.Second, []string{"--once-per", "24h", "--at-most", "3s"}},
		{"unbounded", 5400 * time.Millisecond, []string{"--once-per", "6s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			args := append([]string{"run"}, tc.args...)
			j := c.start(append(args, "--key", tc.name, "--", "sh", "-c", "echo > began-"+tc.name+"; exec sleep 60")...)
			c.read("began-" + tc.name)
			j.signal(syscall.SIGKILL)
			for granted := time.Now(); ; {
				o := c.call(append(args, "-n", "--key", tc.name, "--", "true")...)
				if o.code == 0 {
					if took := time.Since(began); took < tc.free {
						t.Errorf("another ran after %v, want %v", took, tc.free)
					}
					if took := time.Since(granted); took > tc.free+5*time.Second+4*c.pace() {
						t.Errorf("nobody ran for %v, want %v", took, tc.free)
					}
					return
				}
				o.wantCode(t, 1)
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
}

// What cannot be started, or fails, is a run too.
func TestRecordTellsTheExitCode(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for code, command := range map[int]string{3: "exit 3", 143: "kill -TERM $$"} {
		name := fmt.Sprint("job", code)
		c.wantRun(code, "--once-per", "1h", name, "--", "sh", "-c", command)
		contains(t, c.want(0, "show", name).stdout, fmt.Sprintf("(exit code %d after ", code))
	}
	c.wantRun(127, "--at-least", "1h", "missing", "--", "./none")
	contains(t, c.want(0, "show", "missing").stdout, "(exit code 127 after ")
	c.wantRun(0, "--note", "nightly", "--at-least", "1h", "noted", "--", "true")
	contains(t, c.want(0, "ls").stdout, "nightly (exit code 0 after ", " - ")
	c.wantRun(0, "plain", "--", "true") // leaves nothing
	contains(t, c.want(0, "show", "plain").stdout, "plain is free")
}

// A signal that comes together with the grant lets nothing run, so that the period stays
// free for who does run.
func TestSignalThatComesWithTheGrantUsesNoPeriod(t *testing.T) {
	t.Parallel()
	d, err := stores.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "locks.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for name, p := range map[string]period{"once": {oncePer: span(time.Hour)}, "least": {atLeast: span(time.Hour)}, "plain": {}} {
		r := &run{child: newChild(&app{}), period: p}
		r.name = name
		r.claim.add(pflag.NewFlagSet(name, pflag.ContinueOnError), time.Minute)
		locks, err := leasehold.New(d, &leasehold.Options{Trace: locktest.On(leasehold.StepGranted, func(leasehold.Event) {
			r.signals <- syscall.SIGTERM
			eventually(t, "the signal", func() bool { return len(r.signals) == 0 })
		})})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.acquire(t.Context(), locks, p.options()); exitCode(err) != 143 {
			t.Errorf("%s: %v, want the signal", name, err)
		}
		if state, err := locks.Inspect(t.Context(), name); err != nil || len(state.Holders) > 0 {
			t.Errorf("%s is held: %+v, %v", name, state, err)
		}
		locks.Close()
	}
}

// --at-most is the end of the command as well.
func TestAtMostEndsTheCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	began := time.Now()
	c.wantRun(75, "--once-per", "1h", "--at-most", "2s", "x", "--", "sleep", "60")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("ended after %v", took)
	}
}

// If the end of its period stops a command, the message gives the length of the lease, not of the period.
func TestPeriodTellsTheLengthOfItsLease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	contains(t, c.wantRun(75, "--once-per", "3s", "x", "--", "sleep", "60").stderr, "lasts 2.7s and is not renewed")
	contains(t, c.wantRun(75, "--once-per", "1h", "--at-most", "2s", "y", "--", "sleep", "60").stderr, "lasts 2s and is not renewed")
}

func TestPeriodsRefuseWrongUsage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{
		"--once-per 0 x -- true", "--once-per x x -- true", "--once-per 500ms x -- true", "--at-most 1h x -- true",
		"--once-per 1h --at-most 0 x -- true", "--once-per 1h --ttl 5s x -- true", "--once-per 1h --slots 2 x -- true",
		"--once-per 1h -s x -- true", "--once-per 1h --at-least 1h x -- true", "--once-per 1h --key x", "--once-per 1h x --key y -- true",
		"--once-per 1h --also y x -- true", "--key= -- true", "--once-per 1h --at-most 2s --grace 1s x -- true",
	} {
		contains(t, c.wantRun(64, strings.Fields(line)...).stderr, "leasehold: ")
	}
}

// With a period -w bounds the store's answers: who waited for the period to end would run in it once more.
func TestPeriodIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const wait = 600 * time.Second
	args := []string{"-w", fmt.Sprint(wait.Seconds()), "--once-per", "10m", "--key", "report", "--", "sh", "-c", "echo >> ran"}
	c.wantRun(0, args...)
	start := time.Now()
	contains(t, c.wantRun(1, args...).stderr, "busy")
	if took := time.Since(start); took > wait/2 {
		t.Errorf("waited for %v", took)
	}
}
