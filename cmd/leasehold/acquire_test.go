package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

func TestScriptHoldsRenewsReleases(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	script := `set -eu
eval "$(leasehold acquire -n --ttl 30 'my job')"
first=$LEASEHOLD_TOKEN
[ ${#LEASEHOLD_OWNER} -ge 20 ]
leasehold acquire -n 'my job' && exit 10 || [ $? = 1 ]
eval "$(leasehold renew --ttl 1m 'my job')"
second=$LEASEHOLD_TOKEN
[ "$second" -gt "$first" ]
eval "$(leasehold renew --ttl 1m 'my job')"
[ "$LEASEHOLD_TOKEN" = "$second" ]
[ "${LEASEHOLD_TTL%%.*}" -ge 58 ]
leasehold release 'my job'
leasehold release 'my job' && exit 11 || [ $? = 75 ]
leasehold renew 'my job' && exit 12 || [ $? = 75 ]
eval "$(leasehold acquire -n 'my job')"
[ "$LEASEHOLD_TOKEN" -gt "$second" ]
leasehold release 'my job' "$LEASEHOLD_OWNER"
`
	for _, shell := range []string{"sh", "bash"} {
		if o := c.exec(shell, "-c", script); o.code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", shell, o.code, o.stdout, o.stderr)
		}
	}
}

func TestAcquirePrintsTheLease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	l := c.acquire("--ttl", "20s", "job")
	if l.Name != "job" || len(l.Owner) < 20 || l.Token == 0 || l.Token%1024 != 0 || l.TTL <= 15 || l.TTL > 20 {
		t.Errorf("acquire: %+v", l)
	}
	var r leaseView
	c.want(0, "renew", "--json", "--ttl", "40", "job", l.Owner).json(t, &r)
	if r.Name != "job" || r.Owner != l.Owner || r.Token != l.Token+1023 || r.TTL <= 35 || r.TTL > 40 {
		t.Errorf("renew: %+v", r)
	}
	var released map[string]any
	c.want(0, "release", "--json", "job", l.Owner).json(t, &released)
	if released["released"] != true || released["name"] != "job" {
		t.Errorf("release: %v", released)
	}
}

func TestBusyIsExitCode1(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("--note", "the backup \x1b[31mof Monday", "job")
	o := c.want(1, "acquire", "-n", "job")
	contains(t, o.stderr, "busy", "the backup [31mof Monday", "leasehold show")
	if o.stdout != "(exit 1)\n" || strings.Contains(o.stderr, "\x1b") {
		t.Errorf("stdout %q, stderr %q", o.stdout, o.stderr)
	}
	start := time.Now()
	c.want(1, "acquire", "-w", "0.7", "job")
	if took := time.Since(start); took < 700*time.Millisecond || took > 700*time.Millisecond+callBound/4 {
		t.Errorf("waited %v of 0.7 s", took)
	}
}

func TestErrorsAsJSON(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("job")
	o := c.call("acquire", "--json", "-n", "job")
	var e errorView
	outcome{stdout: o.stderr}.json(t, &e)
	if o.code != 1 || e.Code != 1 || !strings.Contains(e.Error, "busy") || e.Advice == "" || o.stdout != "" {
		t.Errorf("exit code %d, %+v, %q", o.code, e, o.stdout)
	}
}

func TestLeaseEndsAfterItsTTL(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	start := time.Now()
	first := c.acquire("--ttl", "2s", "job")
	second := c.acquire("-w", "30", "job")
	if took := time.Since(start); took < 1960*time.Millisecond {
		t.Errorf("granted again after %v of a TTL of 2 s", took)
	}
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	contains(t, c.want(75, "renew", "job", first.Owner).stderr, "lost", "undo")
	c.want(75, "release", "job", first.Owner)
	c.want(0, "release", "job", second.Owner)
}

func TestSharedAndSlots(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("-n", "-s", "job")
	c.acquire("-n", "-s", "job")
	c.want(1, "acquire", "-n", "job")
	c.acquire("-n", "--slots", "2", "gpu")
	held := c.acquire("-n", "--slots", "2", "gpu")
	c.want(1, "acquire", "-n", "--slots", "2", "gpu")
	c.want(0, "release", "gpu", held.Owner)
	c.acquire("-n", "--slots", "2", "gpu")
}

// A waiter that is interrupted has the exit code of its signal and leaves no place.
func TestInterruptedWaitLeavesNoPlace(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("--ttl", "5m", "job")
	cmd := exec.Command(binary, "acquire", "job")
	cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+c.store)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	c.until("a waiter", func(v stateView) bool { return len(v.Waiters) == 1 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || shellCode(exit.ProcessState) != 130 {
		t.Errorf("ended with %v, want exit code 130", err)
	}
	c.until("no waiter", func(v stateView) bool { return len(v.Waiters) == 0 })
}

// until looks at "job" until it is as ok wants it.
func (c *cli) until(what string, ok func(v stateView) bool) {
	c.t.Helper()
	for end := time.Now().Add(callBound); ; {
		var v stateView
		c.want(0, "show", "--json", "job").json(c.t, &v)
		if ok(v) {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%s: not within %v; last seen %+v", what, callBound, v)
		}
	}
}

// Nobody has learnt the owner of a lease whose output was lost.
func TestAcquireReleasesWhatItCannotPrint(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.exec("sh", "-c", "leasehold acquire job > /dev/full").wantCode(t, 70)
	held := c.acquire("-n", "job")
	c.want(0, "release", "job", held.Owner)

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	cmd := exec.Command(binary, "acquire", "job")
	cmd.Env, cmd.Stdout = append(os.Environ(), "LEASEHOLD_STORE="+c.store), w
	cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 70 {
		t.Errorf("a reader that is gone: exit code %d, want 70", code)
	}
	c.acquire("-n", "job")
}

// The names of the design's promise 6, as arguments of the command.
func TestNamesAreData(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	bad := []string{"", "a\rb", "a\nb", "\x1b", "a\x7f", "a\u0085b", "\xff", "a\xc3", strings.Repeat("x", driver.MaxName+1)}
	for _, name := range bad {
		for _, args := range [][]string{{"acquire"}, {"show"}, {"renew"}, {"release"}, {"evict", "--owner", "x", "--reason", "x"}} {
			o := c.call(append(args, "--", name)...)
			if o.code != 64 || !strings.Contains(o.stderr, "invalid resource name") || strings.Contains(o.stdout, "LEASEHOLD") {
				t.Errorf("%s %q: exit code %d, %q", args[0], name, o.code, o.stderr)
			}
		}
	}
	if _, err := os.Stat(strings.TrimPrefix(c.store, "sqlite:")); err == nil {
		t.Error("a wrong name has created the store")
	}

	good := []string{"a/b", "a//b", "../zookeeper", ".", "..", "{a}b", "{}", "a b", "a b ", " a b", `"quoted"`, "'", "%2F", "%", "_", "a_", "A", "a",
		"é", "e\u0301", "path", "path/x", "-dash", "--store", "*", "\\", "日本", "a\u00a0b", "$(id)", "`id`", strings.Repeat("x", driver.MaxName), strings.Repeat("é", driver.MaxName/2)}
	owners := map[string]string{}
	for _, name := range good {
		l := c.acquire("-n", "--ttl", "1h", "--", name)
		if l.Name != name || owners[l.Owner] != "" {
			t.Errorf("%q is not a lock of its own: %+v", name, l)
		}
		owners[l.Owner] = name
	}
	var all []stateView
	c.want(0, "ls", "--json").json(t, &all)
	if len(all) != len(good) {
		t.Errorf("ls knows %d of %d names", len(all), len(good))
	}
	lines := strings.Count(c.want(0, "ls").stdout, "\n")
	if lines != len(good)+1 {
		t.Errorf("ls prints %d lines for %d names", lines, len(good))
	}
	for owner, name := range owners {
		var v stateView
		c.want(0, "show", "--json", "--", name).json(t, &v)
		if v.Name != name || len(v.Holders) != 1 || v.Holders[0].Owner != owner[:8] {
			t.Errorf("show %q: %+v", name, v)
		}
	}
	for owner, name := range owners {
		c.want(0, "release", "--", name, owner)
	}
}

func TestShellQuote(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, s := range []string{"", "a", "a b", "a'b", `$(id) "x" \ ; &`, "''"} {
		o := c.exec("sh", "-c", "printf %s "+shellQuote(s))
		if o.stdout != s {
			t.Errorf("%q comes out of the shell as %q", s, o.stdout)
		}
	}
}

func TestSpans(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"1": time.Second, "1.5": 1500 * time.Millisecond, "0": 0, ".25": 250 * time.Millisecond, "90s": 90 * time.Second,
		"5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "1e-10": 1, "1ns": 1, "+3": 3 * time.Second, "30d": 30 * 24 * time.Hour, "0.5d": 12 * time.Hour, "36500d": maxSpan,
		strconv.FormatFloat(maxSpan.Seconds(), 'f', -1, 64): maxSpan,
	} {
		if got, err := parseSpan(text); got != want || err != nil {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "-1s", "NaN", "Inf", "-Inf", "1e300", "1 s", "d", "-1d", "36501d", "1d1h", "1s1", "5x", "900000h", "9223372036854775807", "1e999"} {
		if got, err := parseSpan(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

// A pause between the grant and the output: a lease that is over is not printed.
func TestPrintLeaseThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, err := leasehold.New(memory.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		lease, err := locks.Acquire(t.Context(), "job", leasehold.NoRenew())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(leasehold.DefaultTTL)
		var out bytes.Buffer
		a := &app{stdout: &out}
		if err := a.printLease(lease); exitCode(err) != exitLost || out.Len() > 0 {
			t.Errorf("%v, %q", err, &out)
		}
		if err := (&reservation{name: "job"}).print(a, lease); exitCode(err) != exitLost || out.Len() > 0 {
			t.Errorf("reserve: %v, %q", err, &out)
		}
	})
}
