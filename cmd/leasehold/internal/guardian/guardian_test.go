//go:build linux

package guardian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests are not parallel: each holder may end every younger child of this process.

func TestMain(m *testing.M) {
	Inherit(func(string, time.Time, time.Time) {})
	os.Setenv("GORACE", "atexit_sleep_ms=0") // or the guardian would linger for a second
	os.Exit(m.Run())
}

// fakeLease is a lease whose deadline the test moves.
type fakeLease struct {
	ctx      context.Context
	lose     context.CancelFunc
	deadline atomic.Pointer[time.Time]
	renewed  chan struct{}
}

func newLease(left time.Duration) *fakeLease {
	l := &fakeLease{renewed: make(chan struct{}, 1)}
	l.ctx, l.lose = context.WithCancel(context.Background())
	l.renew(left)
	return l
}

func (l *fakeLease) renew(left time.Duration) {
	t := time.Now().Add(left)
	l.deadline.Store(&t)
	select {
	case l.renewed <- struct{}{}:
	default:
	}
}

func (l *fakeLease) Context() context.Context { return l.ctx }
func (l *fakeLease) Deadline() time.Time      { return *l.deadline.Load() }

func (l *fakeLease) plan(script string) Plan {
	return Plan{
		Program: Program{Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: os.Environ()}, Own: os.Environ(),
		Tenure:  Tenure{Term: l.ctx, Lease: l, Renewed: l.renewed, Grace: 500 * time.Millisecond, Margin: 500 * time.Millisecond},
		Signals: make(chan os.Signal),
		Reports: Reports{Told: func(bool) {}, Ending: func(bool, string) {}, Refused: func(string) {}, Silent: func(int, bool) {}},
	}
}

// alive reports whether the process whose pid a script wrote to file still runs.
func alive(t *testing.T, file string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return syscall.Kill(pid, 0) == nil
}

// waitForFile waits until a script has written a whole line to file.
func waitForFile(t *testing.T, file string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(file); err == nil && strings.HasSuffix(string(text), "\n") {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("%s was not written", file)
	return ""
}

// run gives the lease up as soon as the command is over.
func run(p Plan) (Result, error) {
	result, leave, err := Run(p)
	leave()
	return result, err
}

func TestResultIsTheCommands(t *testing.T) {
	result, err := run(newLease(time.Minute).plan("exit 7"))
	if err != nil || result.Status.ExitStatus() != 7 || result.Cut {
		t.Errorf("exit 7: %+v, %v", result, err)
	}
	result, err = run(newLease(time.Minute).plan("kill -KILL $$"))
	if err != nil || result.Status.Signal() != syscall.SIGKILL || result.Cut {
		t.Errorf("killed: %+v, %v", result, err)
	}
}

func TestNothingStartsNearTheDeadline(t *testing.T) {
	for _, left := range []time.Duration{-time.Second, 0, 900 * time.Millisecond} {
		marker := filepath.Join(t.TempDir(), "marker")
		_, err := run(newLease(left).plan("echo > " + marker))
		if !errors.Is(err, ErrLate) {
			t.Errorf("%v left: %v, want ErrLate", left, err)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Errorf("%v left: the command ran", left)
		}
	}
}

// An eviction may come between the grant and the start.
func TestNothingStartsUnderALostLease(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "marker")
	lease := newLease(time.Minute)
	lease.lose()
	if _, err := run(lease.plan("echo > " + marker)); !errors.Is(err, ErrLate) {
		t.Errorf("%v, want ErrLate", err)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the command ran")
	}
}

func TestStartErrorsHaveTheCodesOfAShell(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("exit 3"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "script") // without a #! line
	if err := os.WriteFile(script, []byte("exit $1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		code int
	}{
		{plain, 126},
		{dir, 126},
		{filepath.Join(dir, "none"), 127},
		{"", 127},
	} {
		p := newLease(time.Minute).plan("")
		p.Path = c.path
		_, err := run(p)
		var start *StartError
		if !errors.As(err, &start) || start.Code != c.code {
			t.Errorf("%q: %v, want code %d", c.path, err, c.code)
		}
	}
	p := newLease(time.Minute).plan("")
	p.Path, p.Argv = script, []string{"script", "5"}
	if result, err := run(p); err != nil || result.Status.ExitStatus() != 5 {
		t.Errorf("script without #!: %+v, %v; want exit 5", result, err)
	}
}

// TestArgumentsArriveAsTheyAre: more of them than a socket takes at once, and what is no UTF-8.
func TestArgumentsArriveAsTheyAre(t *testing.T) {
	file := filepath.Join(t.TempDir(), "args")
	p := newLease(time.Minute).plan(`printf "%s|" "$@" > ` + file)
	long := strings.Repeat("x", 100_000)
	args := []string{"a b", "", "\xff\n\"'", long, long, long, long, long, long}
	p.Argv = append(p.Argv, append([]string{"sh"}, args...)...)
	if result, err := run(p); err != nil || result.Status.ExitStatus() != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != strings.Join(args, "|")+"|" {
		t.Errorf("%d bytes arrived, %v; want %q as they are", len(got), err, args[:3])
	}
}

// TestDeadlineEndsTheCommand: no renewal comes, so it gets SIGTERM a grace and a margin
// before the deadline.
func TestDeadlineEndsTheCommand(t *testing.T) {
	lease := newLease(8 * time.Second)
	plan := lease.plan("sleep 60")
	plan.Grace, plan.Margin = 3*time.Second, 3*time.Second
	began := time.Now()
	result, err := run(plan)
	took := time.Since(began)
	if err != nil || !result.Cut || result.Status.Signal() != syscall.SIGTERM {
		t.Errorf("%+v, %v; want cut by SIGTERM", result, err)
	}
	if took < 1900*time.Millisecond || time.Until(lease.Deadline()) <= 0 {
		t.Errorf("ended after %v, want 2s, and before the deadline at 8s", took)
	}
}

func TestRenewalMovesTheEnd(t *testing.T) {
	lease := newLease(5 * time.Second)
	time.AfterFunc(500*time.Millisecond, func() { lease.renew(time.Minute) })
	result, err := run(lease.plan("sleep 5; exit 4"))
	if err != nil || result.Cut || result.Status.ExitStatus() != 4 {
		t.Errorf("%+v, %v; want exit 4", result, err)
	}
}

// TestDeafCommandIsKilledBeforeTheDeadline: the command, and a child with a session of its
// own, ignore SIGTERM.
func TestDeafCommandIsKilledBeforeTheDeadline(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	lease := newLease(8 * time.Second)
	plan := lease.plan(`trap "" TERM; setsid sh -c 'trap "" TERM; echo $$ > ` + file + `; while :; do sleep 1; done' & while :; do sleep 1; done`)
	plan.Margin = 4 * time.Second // a busy machine starves us too
	result, err := run(plan)
	if err != nil || !result.Cut || result.Status.Signal() != syscall.SIGKILL {
		t.Errorf("%+v, %v; want cut by SIGKILL", result, err)
	}
	if left := time.Until(lease.Deadline()); left <= 0 {
		t.Errorf("it ended %v after the deadline", -left)
	}
	if alive(t, file) {
		t.Error("the grandchild is alive")
	}
}

// lostAt returns a script that runs first, after which the lease is lost.
func lostAt(t *testing.T, lease *fakeLease, first string) (script string) {
	file := filepath.Join(t.TempDir(), "begun")
	go func() {
		waitForFile(t, file)
		lease.lose()
	}()
	return first + "; echo 1 > " + file + "; "
}

func TestLossEndsTheCommandAtOnce(t *testing.T) {
	lease := newLease(time.Minute)
	began := time.Now()
	result, err := run(lease.plan(lostAt(t, lease, `trap "exit 9" TERM`) + `while :; do sleep 0.05; done`))
	if err != nil || !result.Cut || result.Status.ExitStatus() != 9 {
		t.Errorf("%+v, %v; want cut, exit 9", result, err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("ended after %v", took)
	}
}

// TestNothingIsLeftInTheBackground: the lease covers all that the command started.
func TestNothingIsLeftInTheBackground(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	lease := newLease(time.Minute)
	result, err := run(lease.plan(`(setsid sh -c 'echo $$ > ` + file + `; exec sleep 60' &) ; while ! [ -s ` + file + ` ]; do sleep 0.01; done; exit 6`))
	if err != nil || result.Cut || result.Status.ExitStatus() != 6 {
		t.Errorf("%+v, %v; want exit 6", result, err)
	}
	if alive(t, file) {
		t.Error("the background process is alive")
	}
}

// TestStoppedCommandIsEnded: SIGKILL reaches what is stopped, and SIGTERM too.
func TestStoppedCommandIsEnded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	lease := newLease(time.Minute)
	go func() {
		defer lease.lose()
		pid := waitForFile(t, file)
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if state, _ := exec.Command("ps", "-o", "state=", "-p", pid).Output(); strings.HasPrefix(string(state), "T") {
				return
			}
		}
		t.Error("the command does not stop")
	}()
	result, err := run(lease.plan(`trap "exit 9" TERM; echo $$ > ` + file + `; kill -STOP $$`))
	if err != nil || !result.Cut || result.Status.ExitStatus() != 9 {
		t.Errorf("%+v, %v; want cut, exit 9", result, err)
	}
}

// guardianOf finds the guardian of the command whose script wrote its pid to file.
func guardianOf(t *testing.T, file string) int {
	t.Helper()
	pid, err := strconv.Atoi(waitForFile(t, file))
	if err != nil {
		t.Fatal(err)
	}
	p, ok := readProcess(pid)
	if !ok {
		t.Fatalf("process %d is gone", pid)
	}
	return p.parent
}

const tree = `echo $$ > %[1]s/child
	sh -c 'echo $$ > %[1]s/grandchild; exec sleep 60' &
	setsid sh -c 'echo $$ > %[1]s/session; exec sleep 60' &
	wait`

func TestGuardiansDeathEndsTheCommand(t *testing.T) {
	dir := t.TempDir()
	done := make(chan outcome)
	go func() {
		result, err := run(newLease(time.Minute).plan(fmt.Sprintf(tree, dir)))
		done <- outcome{result, err}
	}()
	waitForFile(t, dir+"/grandchild")
	waitForFile(t, dir+"/session")
	syscall.Kill(guardianOf(t, dir+"/child"), syscall.SIGKILL)
	if o := <-done; !errors.Is(o.err, ErrGuardianDied) {
		t.Errorf("%+v, %v; want ErrGuardianDied", o.result, o.err)
	}
	for _, name := range []string{"child", "grandchild", "session"} {
		if alive(t, filepath.Join(dir, name)) {
			t.Errorf("the %s is alive", name)
		}
	}
}

// TestHolderStandsInForAStoppedGuardian: the second line, for a guardian that nothing resumes.
func TestHolderStandsInForAStoppedGuardian(t *testing.T) {
	dir := t.TempDir()
	lease := newLease(16 * time.Second)
	plan := lease.plan(fmt.Sprintf(tree, dir))
	plan.Margin = 10 * time.Second // half of which the holder waits for the guardian
	done := make(chan Result)
	go func() {
		result, _ := run(plan)
		done <- result
	}()
	waitForFile(t, dir+"/grandchild")
	waitForFile(t, dir+"/session")
	trace(t, guardianOf(t, dir+"/child"))
	if result := <-done; !result.Cut {
		t.Errorf("%+v, want cut", result)
	}
	if left := time.Until(lease.Deadline()); left <= 0 {
		t.Errorf("it ended %v after the deadline", -left)
	}
	for _, name := range []string{"child", "grandchild", "session"} {
		if alive(t, filepath.Join(dir, name)) {
			t.Errorf("the %s is alive", name)
		}
	}
}

// TestGuardianStoppedAtTheStart: the guardian has not told yet that the command runs.
func TestGuardianStoppedAtTheStart(t *testing.T) {
	rounds := 5
	if testing.Short() {
		rounds = 2 // each takes as long as its lease
	}
	for range rounds {
		child := filepath.Join(t.TempDir(), "child")
		lease := newLease(4 * time.Second)
		plan := lease.plan("kill -STOP $PPID; echo $$ > " + child + "; exec sleep 60")
		plan.Margin = 2 * time.Second
		result, err := run(plan)
		if _, statErr := os.Stat(child); statErr == nil && (err != nil || !result.Cut) {
			t.Errorf("a command that ran: %+v, %v; want cut", result, err)
		}
		if alive(t, child) {
			t.Error("the command is alive")
		}
	}
}

// TestHolderStandsInAfterALoss: an evicted lease may have a far deadline, and other leases are still renewed.
func TestHolderStandsInAfterALoss(t *testing.T) {
	dir := t.TempDir()
	lease := newLease(time.Minute)
	done := make(chan Result)
	go func() {
		result, _ := run(lease.plan(fmt.Sprintf(tree, dir)))
		done <- result
	}()
	waitForFile(t, dir+"/session")
	trace(t, guardianOf(t, dir+"/child"))
	lease.lose()
	renewals, end := time.NewTicker(100*time.Millisecond), time.After(20*time.Second)
	defer renewals.Stop()
	for {
		select {
		case result := <-done:
			if !result.Cut {
				t.Errorf("%+v, want cut", result)
			}
			return
		case <-renewals.C:
			lease.renew(time.Minute)
		case <-end: // grace and margin are 1s
			t.Fatal("the command lives on")
		}
	}
}

// TestOtherChildrenAreLeftAlone: what the holder's process had started before is not the
// command's.
func TestOtherChildrenAreLeftAlone(t *testing.T) {
	pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "60"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Wait4(pid, nil, 0, nil)
	defer syscall.Kill(pid, syscall.SIGKILL)
	time.Sleep(50 * time.Millisecond) // several clock ticks, the unit of start times
	TestGuardiansDeathEndsTheCommand(t)
	if got, _ := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); got != 0 {
		t.Error("an older child was killed")
	}
}

// A process that another goroutine starts at the same time, such as a hook, inherits none of the guardian's files.
// Otherwise the guardian's death would go unnoticed while that process runs.
func TestOnlyTheGuardianInheritsItsFiles(t *testing.T) {
	h := new(holder)
	theirs, err := h.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer h.conn.file.Close()
	defer syscall.Close(theirs)
	d, memory, err := newDeadline()
	if err != nil {
		t.Fatal(err)
	}
	defer d.unmap()
	defer memory.Close()
	for name, fd := range map[string]int{"socket": theirs, "memory": int(memory.Fd())} {
		if exec.Command("test", "-e", fmt.Sprintf("/proc/self/fd/%d", fd)).Run() == nil {
			t.Errorf("another process has the guardian's %s", name)
		}
	}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	for _, m := range []message{
		{Verb: toSignal, N: -1 << 62},
		{Verb: gotExit, N: 1 << 8, Cut: true},
		{Verb: gotFailed, N: 127, Text: "exec: \"a b\": nicht\ngefunden ✓"},
	} {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		from, err := newConn(pair[0])
		if err != nil {
			t.Fatal(err)
		}
		to, err := newConn(pair[1])
		if err != nil {
			t.Fatal(err)
		}
		messages := to.receive()
		from.send(m)
		if got := <-messages; got != m {
			t.Errorf("sent %+v, got %+v", m, got)
		}
		from.file.Close()
		if _, ok := <-messages; ok {
			t.Error("a message after the peer was gone")
		}
		to.file.Close()
	}
}

// hurry lets a holder notice a silence soon.
func hurry(t *testing.T) {
	former, formerBound := pulse, startBound
	t.Cleanup(func() { pulse, startBound = former, formerBound })
	pulse, startBound = 200*time.Millisecond, 5*time.Second
}

// A stage is when a guardian is stopped.
var stages = map[string]struct {
	script string // of the command
	left   bool   // it leaves a process running
}{
	"while it runs":       {script: `while ! [ -e go ]; do sleep 0.01; done; exit 7`},
	"with something left": {script: `sh -c 'trap "echo > term; exit" TERM; echo $$ > left; while :; do sleep 0.01; done' & while ! [ -e go ]; do sleep 0.01; done; exit 7`, left: true},
}

// TestStoppedGuardianIsResumed: its command ends meanwhile, and the end is reported as if nothing had been.
func TestStoppedGuardianIsResumed(t *testing.T) {
	hurry(t)
	for name, stage := range stages {
		for how, stop := range map[string]func(*testing.T, int) func(){"stopped": stopProcess, "traced": trace} {
			t.Run(name+", "+how, func(t *testing.T) {
				dir := t.TempDir()
				lease := newLease(time.Hour)
				plan := lease.plan("cd " + dir + "; trap 'echo > heard' WINCH; echo $$ > child; " + stage.script)
				plan.Grace = 20 * time.Second
				signals := make(chan os.Signal, 1)
				plan.Signals = signals
				var silent atomic.Bool
				plan.Silent = func(_ int, is bool) { silent.Store(silent.Load() || is) }
				done := make(chan outcome, 1)
				go func() {
					result, err := run(plan)
					done <- outcome{result, err}
				}()
				guardian := guardianOf(t, dir+"/child")
				if stage.left {
					waitForFile(t, dir+"/left")
				}
				signals <- syscall.SIGWINCH // it passes the guardian when that has told what it has started
				waitForFile(t, dir+"/heard")
				stop(t, guardian)
				if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
					t.Fatal(err)
				}
				select {
				case o := <-done:
					if o.err != nil || o.result.Status.ExitStatus() != 7 || o.result.Cut {
						t.Errorf("%+v, %v; want exit 7", o.result, o.err)
					}
				case <-time.After(time.Minute):
					t.Fatal("the holder waits for ever")
				}
				if !silent.Load() {
					t.Error("nothing was told of the silence")
				}
				if stage.left {
					if alive(t, dir+"/left") {
						t.Error("what it has left running lives")
					}
					waitForFile(t, dir+"/term")
				}
			})
		}
	}
}

type outcome struct {
	result Result
	err    error
}

// stopProcess stops a process as kill -STOP does.
func stopProcess(t *testing.T, pid int) (resume func()) {
	t.Helper()
	syscall.Kill(pid, syscall.SIGSTOP)
	standsStill(t, pid, "T")
	return func() { syscall.Kill(pid, syscall.SIGCONT) }
}

// trace stops a process as a debugger does: SIGCONT does not wake it.
func trace(t *testing.T, pid int) (resume func()) {
	t.Helper()
	failed, over := make(chan error), make(chan struct{})
	resume = sync.OnceFunc(func() { close(over) })
	t.Cleanup(resume)
	go func() {
		runtime.LockOSThread() // the tracer is a thread; its end is the end of it
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			err = errors.Join(err, unix.PtraceSeize(tid), unix.PtraceInterrupt(tid))
		}
		failed <- err
		<-over
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	standsStill(t, pid, "t")
	return resume
}

// standsStill waits until all threads of a process are in state.
func standsStill(t *testing.T, pid int, state string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		still := 0
		for _, file := range files {
			stat, _ := os.ReadFile(file)
			if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(rest, state) {
				still++
			}
		}
		if still > 0 && still == len(files) {
			return
		}
	}
	t.Fatalf("process %d does not stand still", pid)
}

// TestStoppedGuardianStartsNothing: it is stopped before it has started the command.
func TestStoppedGuardianStartsNothing(t *testing.T) {
	hurry(t)
	for how, stop := range map[string]func(*testing.T, int) func(){"stopped": stopProcess, "traced": trace} {
		t.Run(how, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "ran")
			h := &holder{plan: newLease(time.Hour).plan("echo > " + file + "; exit 7"), term: homeTerminal()}
			if err := h.start(); err != nil {
				t.Fatal(err)
			}
			stop(t, h.guardian)
			done := make(chan outcome, 1)
			go func() {
				result, err := h.serve()
				done <- outcome{result, err}
			}()
			var o outcome
			select {
			case o = <-done:
			case <-time.After(time.Minute):
				t.Fatal("the holder waits for ever")
			}
			result, err := o.result, o.err
			h.leave()
			if _, ran := os.Stat(file); how == "stopped" && (err != nil || result.Status.ExitStatus() != 7) {
				t.Errorf("%+v, %v; want exit 7", result, err)
			} else if how == "traced" && (!errors.Is(err, ErrNotStarted) || ran == nil) {
				t.Errorf("%+v, %v, the command ran: %v; want ErrNotStarted", result, err, ran == nil)
			}
		})
	}
}

// TestLeaveEndsAStoppedGuardian: it has reported the end, and hears nothing any more.
func TestLeaveEndsAStoppedGuardian(t *testing.T) {
	_, leave, err := Run(newLease(time.Hour).plan("exit 7"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range below(os.Getpid(), 0) {
		stopProcess(t, pid)
	}
	left := make(chan struct{})
	go func() { leave(); close(left) }()
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Fatal("leave waits for ever")
	}
}

// TestStopOfAMomentEndsNothing: the guardian is stopped until after the deadline that it knew then. Renewals have
// moved the deadline meanwhile.
func TestStopOfAMomentEndsNothing(t *testing.T) {
	dir := t.TempDir()
	lease := newLease(10 * time.Second)
	plan := lease.plan("cd " + dir + "; echo $$ > child; while ! [ -e go ]; do sleep 0.01; done; exit 7")
	done := make(chan outcome, 1)
	go func() {
		result, err := run(plan)
		done <- outcome{result, err}
	}()
	guardian := guardianOf(t, dir+"/child")
	resume := trace(t, guardian)
	known := lease.Deadline()
	lease.renew(time.Hour)
	for range 10_000 { // more than a socket takes
		lease.renew(time.Hour)
		runtime.Gosched()
	}
	time.Sleep(time.Until(known))
	resume()
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if o := <-done; o.err != nil || o.result.Status.ExitStatus() != 7 || o.result.Cut {
		t.Errorf("%+v, %v; want exit 7", o.result, o.err)
	}
}
