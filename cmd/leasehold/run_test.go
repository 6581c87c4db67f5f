//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/locktest"
)

// A job is a "leasehold run" in the background, in a process group of its own.
type job struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr string // file
	exited chan struct{}
}

// start begins a run; the test's end kills it.
func (c *cli) start(args ...string) *job {
	c.t.Helper()
	return c.startProgram(c.binary, args...)
}

// startProgram begins any program with the environment of the command.
func (c *cli) startProgram(program string, args ...string) *job {
	c.t.Helper()
	if !c.started {
		c.started = true
		c.t.Cleanup(c.endRest) // after those of all jobs
	}
	stderr, err := os.CreateTemp(c.dir, "stderr-")
	if err != nil {
		c.t.Fatal(err)
	}
	defer stderr.Close()
	j := &job{t: c.t, cmd: exec.Command(program, args...), stderr: stderr.Name(), exited: make(chan struct{})}
	j.cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+c.store, "HOME="+c.dir,
		"PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	j.cmd.Env = append(j.cmd.Env, c.env...)
	j.cmd.Dir, j.cmd.Stderr = c.dir, stderr
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := j.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		j.cmd.Wait()
		close(j.exited)
	}()
	c.t.Cleanup(func() {
		j.signal(syscall.SIGCONT)
		j.signal(syscall.SIGKILL)
		<-j.exited
	})
	return j
}

// endRest ends the processes of the test that have outlived its jobs. Guardians first have some time
// to release their leases, because the store's folder is removed next.
func (c *cli) endRest() {
	home := "HOME=" + c.dir
	for end := time.Now().Add(5 * time.Second); len(c.processesWith(home)) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	for pid := range c.processesWith(home) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

func (j *job) signal(sig syscall.Signal) { syscall.Kill(j.cmd.Process.Pid, sig) }

// stop stops the job, and returns when all of it stands: it may have been about to act.
func (j *job) stop() { locktest.PauseProcess(j.t, j.cmd.Process) }

// code waits for the end and returns the exit code as a shell counts it.
func (j *job) code() int {
	j.t.Helper()
	select {
	case <-j.exited:
	case <-time.After(patience):
		j.t.Fatalf("%q does not end; it wrote %q", j.cmd.Args, j.errors())
	}
	return shellCode(j.cmd.ProcessState)
}

func (j *job) errors() string {
	text, err := os.ReadFile(j.stderr)
	if err != nil {
		j.t.Fatal(err)
	}
	return string(text)
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		began := time.Now()
		if ok() {
			return
		}
		// To look may take a command, and other tests run.
		time.Sleep(min(max(5*time.Millisecond, 4*time.Since(began)), 200*time.Millisecond))
	}
	t.Fatalf("%s: not within %v", what, patience)
}

// read waits until a script has written a whole line to the file and returns it.
func (c *cli) read(name string) string {
	c.t.Helper()
	var text []byte
	eventually(c.t, name, func() bool {
		text, _ = os.ReadFile(filepath.Join(c.dir, name))
		return strings.HasSuffix(string(text), "\n")
	})
	return strings.TrimSpace(string(text))
}

func (c *cli) readInt(name string) int {
	c.t.Helper()
	n, err := strconv.Atoi(c.read(name))
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// hold starts a run of NAME that lasts.
func (c *cli) hold(name string, flags ...string) *job {
	c.t.Helper()
	args := append([]string{"run"}, flags...)
	j := c.start(append(args, name, "--", "sh", "-c", "echo > held-"+name+"; exec sleep 60")...)
	c.read("held-" + name)
	return j
}

func TestRunExitsAsItsCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if err := os.WriteFile(filepath.Join(c.dir, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		code int
		args []string
	}{
		{0, []string{"x", "--", "true"}},
		{0, []string{"x", "true"}}, // as flock
		{7, []string{"x", "--", "sh", "-c", "exit 7"}},
		{5, []string{"x", "sh", "-c", "exit 5"}},
		{143, []string{"x", "--", "sh", "-c", "kill -TERM $$"}},
		{137, []string{"x", "--", "sh", "-c", "kill -KILL $$"}},
		{126, []string{"x", "--", "./plain"}},
		{126, []string{"x", "--", "./."}},
		{127, []string{"x", "--", "./none"}},
		{127, []string{"x", "--", "no-such-command"}},
		{3, []string{"-c", "exit 3", "x"}},
		{4, []string{"x", "-c", "exit 4"}}, // flags behind NAME, as with flock
		{6, []string{"x", "-n", "--ttl", "5s", "--", "sh", "-c", "exit 6"}},
		{0, []string{"-x", "x", "--", "true"}},
	} {
		c.wantRun(tc.code, tc.args...)
	}
	contains(t, c.wantRun(127, "x", "--", "no-such-command").stderr, "leasehold: cannot run the command", "no-such-command")
	if o := c.wantRun(7, "x", "--", "sh", "-c", "echo out; echo err >&2; exit 7"); o.stdout != "out\n" || o.stderr != "err\n" {
		t.Errorf("not the command's output alone: %q, %q", o.stdout, o.stderr)
	}
}

func TestRunRefusesWrongUsage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{
		"", "x", "x --", "-n", "-c true", "x -c true -- true", "x --nosuch -- true", "-n -w 1 x -- true",
		"-w -1 x -- true", "-w nan x -- true", "-w 1e300 x -- true", "-w ten x -- true",
		"--ttl 0 x -- true", "--ttl 0.9 x -- true", "--ttl -5s x -- true",
		"--grace 5s x -- true", "--grace -1s x -- true", "--ttl 2s --grace 1s x -- true",
		"--slots 0 x -- true", "--slots -3 x -- true", "-x -s x -- true", "-x --slots 2 x -- true",
		"-E 256 x -- true", "-E -1 x -- true", "--lost-exit-code 1000 x -- true",
	} {
		o := c.wantRun(64, strings.Fields(line)...)
		contains(t, o.stderr, "leasehold: ")
	}
	c.wantRun(64, "bad\nname", "--", "true")
	c.wantRun(64, "", "--", "true")
	contains(t, c.wantRun(64, "--store", "nosuch:x", "x", "--", "true").stderr, "nosuch")
	c.missing("locks.db")
}

// What scripts say to flock means the same here, or is refused with what to do instead.
func TestFlocksFlags(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.wantRun(0, "-e", "x", "--", "true")
	c.wantRun(64, "-e", "-s", "x", "--", "true")
	c.hold("x")
	for _, line := range []string{"--nonblock x -- true", "--nb x -- true", "--timeout 2 x -- true", "--timeout=2 x -- true", "-e -n x -- true", "--exclusive -n x -- true"} {
		c.wantRun(1, strings.Fields(line)...)
	}
	c.wantRun(9, "--nonblock", "--conflict-exit-code", "9", "x", "--", "true")
	c.want(1, "acquire", "--nonblock", "-x", "x")
	for flag, instead := range map[string]string{
		"-u": "-u, --unlock: ", "--unlock": "leasehold release", "-o": "-o, --close: ", "--close": "before the release", "-F": "--no-fork: ",
	} {
		contains(t, c.wantRun(64, flag, "y", "--", "true").stderr, instead)
	}
	contains(t, c.want(64, "acquire", "-u", "y").stderr, "leasehold release")
}

// What a flag cannot take is said in words of its own.
func TestWrongValuesAreExplained(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for line, says := range map[string]string{
		"run -E abc x -- true":                  `-E, --busy-exit-code "abc": want a whole number`,
		"run -E 1.5 x -- true":                  "want a whole number",
		"run -E 99999999999999999999 x -- true": "out of range",
		"run --lost-exit-code x x -- true":      `--lost-exit-code "x": want a whole number`,
		"run --slots many x -- true":            `--slots "many": want a whole number`,
		"run -n=maybe x -- true":                `-n, --no-wait "maybe": want true or false`,
		"run -w ten x -- true":                  `-w, --wait "ten": want seconds`,
		"run -w -1 x -- true":                   `-w, --wait "-1": out of range`,
		"demo seckill --buyers x":               `--buyers "x": want a whole number`,
		"demo cron --day 5":                     `--day "5": want a number with a unit`,
	} {
		o := c.want(64, strings.Fields(line)...)
		contains(t, o.stderr, says)
		if strings.Contains(o.stderr, "strconv") || strings.Contains(o.stderr, "time: ") {
			t.Errorf("%s: %s", line, o.stderr)
		}
	}
}

func TestRunTellsThatTheStoreIsUnreachable(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = "sqlite:/proc/none/locks.db"
	c.wantRun(69, "x", "--", "sh", "-c", "echo > ran")
	c.missing("ran")
}

func TestRunIsRefusedWhileBusy(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	holder := c.hold("x")
	contains(t, c.wantRun(1, "-n", "x", "--", "sh", "-c", "echo > ran").stderr, "leasehold: ", "busy")
	c.wantRun(9, "-n", "-E", "9", "x", "--", "true")
	c.wantRun(0, "-n", "y", "--", "true")
	c.wantRun(1, "-n", "-s", "x", "--", "true")
	if o := c.wantRun(0, "-n", "--ok-if-busy", "x", "--", "sh", "-c", "echo > ran"); o.stdout+o.stderr != "" {
		t.Errorf("--ok-if-busy is not silent: %q, %q", o.stdout, o.stderr)
	}
	contains(t, c.wantRun(1, "--json", "-n", "x", "--", "true").stderr, `"exit_code":1`, `"error":`)
	began := time.Now()
	c.wantRun(1, "-w", "2.5", "x", "--", "true")
	if took := time.Since(began); took < 2500*time.Millisecond || took > 20*time.Second {
		t.Errorf("-w 2.5 took %v", took)
	}
	c.missing("ran")
	holder.signal(syscall.SIGTERM)
	c.wantRun(0, "-w", "10", "x", "--", "true")
}

func TestRunSharesSlots(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	a, b := c.start("run", "--slots", "2", "x", "--", "sh", "-c", "echo > a; exec sleep 60"), c.start("run", "--slots", "2", "x", "--", "sh", "-c", "echo > b; exec sleep 60")
	c.read("a")
	c.read("b")
	c.wantRun(1, "-n", "--slots", "2", "x", "--", "true")
	c.wantRun(1, "-n", "x", "--", "true")
	a.signal(syscall.SIGTERM)
	c.wantRun(0, "-w", "10", "--slots", "2", "x", "--", "true")
	b.signal(syscall.SIGTERM)
	c.wantRun(0, "-w", "10", "x", "--", "true")
}

func TestRunHoldsAtLeast(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	began := time.Now()
	c.wantRun(0, "--at-least", "2s", "x", "--", "true")
	if o := c.call("run", "-n", "x", "--", "true"); o.code != 1 && time.Since(began) < 2*time.Second { // a slow machine starts it afterwards
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}
	c.wantRun(0, "-w", "10", "x", "--", "true")
	if took := time.Since(began); took < 1900*time.Millisecond {
		t.Errorf("let in after %v", took)
	}
}

func TestCommandSeesItsLease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.env = []string{"LEASEHOLD_NAME=old", "OTHER=kept"}
	before := time.Now()
	o := c.wantRun(0, "x y", "--", "sh", "-c", `printf '%s\n' "$LEASEHOLD_NAME" "$LEASEHOLD_TOKEN" "$LEASEHOLD_OWNER" "$LEASEHOLD_DEADLINE" "$LEASEHOLD_STORE" "$LEASEHOLD_HELD" "$OTHER"`)
	v := strings.Split(o.stdout, "\n")
	if len(v) != 8 || v[0] != "x y" || len(v[2]) < 20 || v[4] != c.store || v[5] != v[2] || v[6] != "kept" {
		t.Errorf("environment: %q", v)
	}
	token, err := strconv.ParseUint(v[1], 10, 64)
	if err != nil || token == 0 {
		t.Errorf("token %q: %v", v[1], err)
	}
	deadline, err := time.Parse(time.RFC3339, v[3])
	if err != nil || deadline.Sub(before) < 5*time.Second || time.Until(deadline) > 11*time.Second {
		t.Errorf("deadline %q is %v after the start and %v away: %v", v[3], deadline.Sub(before), time.Until(deadline), err)
	}
	next := c.wantRun(0, "x y", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN")
	if later, err := strconv.ParseUint(strings.TrimSpace(next.stdout), 10, 64); err != nil || later <= token {
		t.Errorf("token %d after %d: %v", later, token, err)
	}
}

// TestCommandKeepsItsFiles: the standard streams, higher files, and nothing of ours.
func TestCommandKeepsItsFiles(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.stdin = "in\x00\xff\r\n"
	if o := c.wantRun(0, "x", "--", "cat"); o.stdout != c.stdin {
		t.Errorf("cat made %q of %q", o.stdout, c.stdin)
	}
	const script = `exec 3> three 4> four
		%s sh -c 'echo 3 >&3; echo 4 >&4; for f in /proc/$$/fd/*; do printf "%%s " "${f##*/}"; done'`
	without := c.exec("sh", "-c", fmt.Sprintf(script, ""))
	with := c.exec("sh", "-c", fmt.Sprintf(script, "leasehold run x --"))
	if with.code != 0 || c.read("three") != "3" || c.read("four") != "4" {
		t.Errorf("exit code %d, stderr %q", with.code, with.stderr)
	}
	if with.stdout != without.stdout {
		t.Errorf("open files %q, without leasehold %q", with.stdout, without.stdout)
	}
}

// TestCommandGetsDefaultSignals: whatever it would get without leasehold, and no more.
func TestCommandGetsDefaultSignals(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const show = `grep -E 'Sig(Blk|Ign)' /proc/self/status`
	// The trap is what nohup does, and a shell without job control for what it runs with &.
	for _, before := range []string{"", `trap "" HUP INT; `} {
		without := c.exec("sh", "-c", before+"env "+show) // env: or sh might not fork
		with := c.exec("sh", "-c", before+"leasehold run x -- "+show)
		if with.stdout != without.stdout || with.stdout == "" {
			t.Errorf("%q: signals:\n%swithout leasehold:\n%s", before, with.stdout, without.stdout)
		}
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for name, sig := range map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH,
	} {
		j := c.start("run", name, "--", "sh", "-c", `trap "exit 33" `+name+`; echo > ready-`+name+`; while :; do sleep 0.02; done`)
		c.read("ready-" + name)
		j.signal(sig)
		if code := j.code(); code != 33 {
			t.Errorf("%s: exit code %d, want 33: %s", name, code, j.errors())
		}
	}
	j := c.hold("x")
	j.signal(syscall.SIGTERM)
	if code := j.code(); code != 143 || j.errors() != "" {
		t.Errorf("exit code %d, want 143 in silence: %s", code, j.errors())
	}
}

func TestSignalsEndTheWait(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.hold("x")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		j := c.start("run", "-v", "x", "--", "sh", "-c", "echo > ran")
		eventually(t, "wait", func() bool { return strings.Contains(j.errors(), "waiting") })
		for _, harmless := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH} {
			j.signal(harmless)
		}
		j.signal(sig)
		if code := j.code(); code != 128+int(sig) {
			t.Errorf("%v: exit code %d: %s", sig, code, j.errors())
		}
	}
	var state stateView
	c.want(0, "show", "--json", "x").json(t, &state)
	if len(state.Waiters) != 0 {
		t.Errorf("left in the queue: %+v", state.Waiters)
	}
	c.missing("ran")
}

func TestNestedIsRefused(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{
		"a -- leasehold run a -- touch ran",
		"a -- leasehold run -n a -- touch ran",
		"a -- leasehold run b -- leasehold run a -- touch ran",
		"a -- leasehold run b -- leasehold run c -- leasehold run b -- touch ran",
		"-s a -- leasehold run -s a -- touch ran",
		"-s a -- leasehold run a -- touch ran",
		"a -- leasehold acquire a",
		"a -- leasehold acquire -n a",
		"a -- leasehold run b -- leasehold wait a",
	} {
		o := c.wantRun(64, strings.Fields(line)...)
		contains(t, o.stderr, "around this one")
	}
	c.missing("ran")
	c.wantRun(0, strings.Fields("a -- leasehold run b -- leasehold run c -- true")...)
	// Held before, by a run that has ended, is not held.
	c.wantRun(0, "a", "--", "sh", "-c", "leasehold run b -- true; leasehold run b -- true")
}
