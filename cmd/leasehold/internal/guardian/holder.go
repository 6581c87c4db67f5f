//go:build unix

package guardian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLate means that the deadline was too near, or the lease already lost, so the command was not
// started.
var ErrLate = errors.New("the lease was about to end before the command could be started")

// ErrGuardianDied means that the guardian was killed, and the command with it.
var ErrGuardianDied = errors.New("the guardian process died, so the command was killed")

// ErrNotStarted means that the guardian was stopped before it had started the command, and could
// not be resumed.
var ErrNotStarted = errors.New("the guardian process does not respond, so the command was not started")

// ErrUnknownEnd means that nothing of the command is left, but its outcome is unknown: only the
// guardian knows it, and cannot be resumed.
var ErrUnknownEnd = errors.New("the guardian process does not respond: whether the command ran, and how it ended, is unknown")

// A StartError means that a command could not be started. Code is the exit code of a shell in this
// case.
type StartError struct {
	Code int
	Text string
}

func (e *StartError) Error() string { return e.Text }

// A Plan says what to run, under which lease, and how much time it gets to end.
type Plan struct {
	Program
	Own []string // environment of the guardian; without secrets, because others may read it
	Tenure
	Signals <-chan os.Signal // for the command
	Wanted  <-chan struct{}  // closes when others wait for the lease; nil: never
	Yield   syscall.Signal   // for the command alone after Wanted, once it catches it; 0: none
	Reports
	Will
}

// A Program is a command.
type Program struct {
	Path string // path of its file
	Argv []string
	Env  []string
}

// A Tenure says until when the command may run.
type Tenure struct {
	Term  context.Context // ends when the command must end: with the lease, or before
	Lease interface {
		Context() context.Context // ends when the lease is lost
		Deadline() time.Time
	}
	Renewed <-chan struct{} // receives an element when Deadline has moved
	Grace   time.Duration   // between SIGTERM and SIGKILL
	Margin  time.Duration   // between SIGKILL and the deadline, see Margin
}

// Reports are functions that tell what the guardian does. They must not block.
type Reports struct {
	// Told is called when the command got Yield, and before that if it does not catch Yield for a
	// while.
	Told func(got bool)

	// Ending is called when the guardian ends the command. If cut is false, it ends only the
	// processes that the command has left running; left names some of them.
	Ending func(cut bool, left string)

	// Refused is called when processes of the command cannot be ended, because they have become
	// another user, and again if the lease ends before they do. left names some of them. Run
	// returns only when they are gone.
	Refused func(left string)

	// Silent is called when the guardian does not answer, and again when it does.
	Silent func(guardian int, silent bool)
}

// A Will says what the guardian does if this process dies.
type Will struct {
	Legacy string    // passed to the heir, see Inherit; "": none
	Keep   time.Time // the lease keeps others out until then, even if the command is over
}

// A Result is how a command ended.
type Result struct {
	Status      syscall.WaitStatus
	Cut         bool      // it was ended because the lease had ended or was about to end
	Terminal    bool      // it had the terminal alone: a Ctrl-C reached no other process
	Interrupted bool      // it received a SIGINT that was sent to this process
	Signalled   time.Time // when it last received a signal that was sent to this process and ends programs; zero: never
}

// Run runs the command under a guardian until it and all its descendants are gone. That is at the
// latest a margin before the lease's deadline. An error means that the command was not started, or
// that the guardian died; even then nothing of the command is left.
//
// The caller must call leave, which is never nil, after it has released the lease. leave ends the
// guardian and waits until it is gone. Until then the guardian releases the lease if this process
// dies. Further calls do nothing.
func Run(p Plan) (result Result, leave func(), err error) {
	if p.Term.Err() != nil {
		return Result{}, func() {}, ErrLate
	}
	h := &holder{plan: p, term: homeTerminal()}
	defer h.term.close()
	if err := h.start(); err != nil {
		return Result{}, func() {}, fmt.Errorf("cannot start the guardian process: %w", err)
	}
	result, err = h.serve()
	return result, sync.OnceFunc(h.leave), err
}

// A holder is the state of the process with the lease: what it knows of the guardian and the child.
type holder struct {
	plan     Plan
	conn     *conn
	term     terminal
	guardian int    // pid
	since    uint64 // start time of the guardian; older processes are not ours
	killed   bool   // kill has killed the guardian
	reaped   bool   // its pid may be another process's
	deadline deadline
	child    command
	watchdog
	refusal

	interrupted bool // for the Result, as is signalled
	signalled   time.Time
}

// A command is what the holder knows of the child.
type command struct {
	starting bool               // it may be running
	pid      int                // 0: unknown
	over     bool               // it has ended, or its processes are gone
	cut      bool               // the guardian ends it, or has ended it
	known    bool               // status is set
	status   syscall.WaitStatus // its wait status
}

// A refusal is what was reported of processes that cannot be ended.
type refusal struct {
	told bool // Refused was called
	lost bool // the lease had ended by then
}

// start starts the guardian, which waits for the command.
func (h *holder) start() error {
	exe, err := executable()
	if err != nil {
		return err
	}
	adoptOrphans() // so that what a dying guardian leaves becomes ours
	theirs, err := h.connect()
	if err != nil {
		return err
	}
	defer syscall.Close(theirs) // the guardian has a copy
	shared, memory, err := newDeadline()
	if err != nil {
		return err
	}
	defer memory.Close()
	h.deadline = shared
	h.setDeadline()
	// os/exec would turn a non-blocking terminal into a blocking one.
	h.guardian, err = syscall.ForkExec(exe, toArgs(theirs, int(memory.Fd())), &syscall.ProcAttr{
		Env:   h.plan.Own,
		Files: inherited(theirs, int(memory.Fd())),
		Sys:   guardianAttr(),
	})
	if err != nil {
		h.conn.file.Close()
		h.deadline.unmap()
		return os.NewSyscallError("exec", err)
	}
	h.since = startTime(h.guardian)
	return nil
}

// serve sends the command to the guardian and waits until the command has ended.
func (h *holder) serve() (Result, error) {
	// A guardian without a command runs nothing, and wait notices that.
	_ = h.conn.sendWhole(h.startMessage(), startBound)
	return h.wait()
}

func (h *holder) startMessage() message {
	s := &start{
		Path: []byte(h.plan.Path), Argv: newTexts(h.plan.Argv), Env: newTexts(h.plan.Env),
		Grace: h.plan.Grace, Margin: h.plan.Margin,
		Home: h.term.home, Lent: h.term.lent,
		Legacy: h.plan.Legacy, Keep: instantOf(func() time.Time { return h.plan.Keep }),
	}
	return message{Verb: toStart, Start: s}
}

// connect creates the socket and returns the guardian's end. Both ends are close-on-exec, because
// hooks may be started at any time: a hook with the guardian's end would hide the guardian's death.
func (h *holder) connect() (theirs int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return 0, os.NewSyscallError("socketpair", err)
	}
	syscall.CloseOnExec(pair[1])
	h.conn, err = newConn(pair[0])
	return pair[1], err
}

// inherited returns the files of the guardian under their numbers: those that any program would
// inherit, and ours, whose numbers are free. So files that users pass to the command as 3, 4, …
// keep their numbers. The guardian closes ours or marks them close-on-exec at once.
func inherited(ours ...int) []uintptr {
	files := make([]uintptr, slices.Max(ours)+1)
	for fd := range files {
		files[fd] = uintptr(fd)
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if !slices.Contains(ours, fd) && (err != nil || flags&unix.FD_CLOEXEC != 0) {
			files[fd] = ^uintptr(0)
		}
	}
	return files
}

// Check returns an error if no guardian can be started here.
func Check() error {
	_, err := executable()
	return err
}

// executable returns the path of the running program. Its file may have been replaced by another
// version.
func executable() (string, error) {
	path, err := os.Executable()
	if runtime.GOOS != "linux" {
		return path, err
	}
	const self = "/proc/self/exe"
	running, err := os.Stat(self)
	if err != nil {
		return "", fmt.Errorf("/proc is needed, to see what the command starts: %w", err)
	}
	if file, err := os.Stat(path); err != nil || !os.SameFile(file, running) {
		return self, nil
	}
	return path, nil
}

func (h *holder) setDeadline() { h.deadline.set(instantOf(h.plan.Lease.Deadline)) }

// wait keeps the guardian informed until it reports the end of the command.
func (h *holder) wait() (Result, error) {
	messages := h.conn.receive()
	over, wanted := h.plan.Term.Done(), h.plan.Wanted
	backup := time.NewTimer(h.backupIn())
	defer backup.Stop()
	pulse := time.NewTicker(pulse)
	defer pulse.Stop()
	for {
		select {
		case <-h.plan.Renewed:
			h.setDeadline()
			if over != nil {
				backup.Reset(h.backupIn())
			}
		case <-pulse.C:
			h.feel()
		case <-over:
			over = nil
			h.urge(message{Verb: toStop})
			backup.Reset(min(h.backupIn(), h.plan.Grace+h.plan.Margin))
		case <-wanted:
			wanted = nil
			if h.plan.Yield != 0 {
				h.urge(message{Verb: toYield, N: int64(h.plan.Yield)})
			}
		case sig := <-h.plan.Signals:
			h.interrupted = h.interrupted || sig == syscall.SIGINT
			if Ends(sig) {
				h.signalled = time.Now()
			}
			h.pass(sig.(syscall.Signal))
		case <-backup.C:
			h.look()
			h.kill()
		case m, ok := <-messages:
			if !ok {
				return h.guardianDied()
			}
			switch m.Verb {
			case gotPong:
				h.answered()
			case gotStarting:
				h.child.starting = true
			case gotStarted:
				h.child.pid = int(m.N)
			case gotEnded:
				h.child.over, h.child.known, h.child.status, h.child.cut = true, true, syscall.WaitStatus(m.N), m.Cut
			case gotStopped:
				h.suspend()
			case gotTold, gotDeaf:
				h.plan.Told(m.Verb == gotTold)
			case gotEnding:
				h.child.cut = m.Cut
				h.plan.Ending(m.Cut, m.Text)
			case gotRefused:
				h.tellRefused(m.Text)
			default:
				return h.ended(m)
			}
		}
	}
}

// backupIn returns the time until the guardian should have done its work. After that it may be
// stopped.
func (h *holder) backupIn() time.Duration {
	return time.Until(h.plan.Lease.Deadline()) - h.plan.Margin/2
}

// suspend stops this process and its group as Ctrl-Z would, for the shell that watches them. When
// the shell has resumed them, it resumes the child. Meanwhile the lease is not renewed, and the
// guardian enforces its deadline. SIGTSTP must never have been caught here, because the Go runtime
// does not restore its default action.
func (h *holder) suspend() {
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	defer signal.Stop(resumed)
	syscall.Kill(0, syscall.SIGTSTP)
	select {
	case <-resumed:
	case <-time.After(100 * time.Millisecond): // without a shell that watches, the kernel does not stop us
	}
	h.conn.send(message{Verb: toResume})
}

// ended converts the guardian's last message to a Result.
func (h *holder) ended(m message) (Result, error) {
	switch m.Verb {
	case gotLate:
		return Result{}, ErrLate
	case gotFailed:
		return Result{}, &StartError{Code: int(m.N), Text: m.Text}
	}
	return Result{Status: syscall.WaitStatus(m.N), Cut: m.Cut, Terminal: m.Lent, Interrupted: h.interrupted, Signalled: h.signalled}, nil
}

// leave kills a guardian that has reported the end. It has nothing left to do, but it keeps our
// files open, and it may be stopped.
func (h *holder) leave() {
	defer h.conn.file.Close()
	defer h.deadline.unmap()
	if h.reaped {
		return
	}
	syscall.Kill(h.guardian, syscall.SIGKILL)
	h.bury()
}

// bury waits until the guardian is dead and reaped. If it is traced, its debugger must reap it
// first.
func (h *holder) bury() {
	for running(h.guardian) || !walks {
		if pid, err := syscall.Wait4(h.guardian, nil, 0, nil); pid > 0 || err == syscall.ECHILD {
			break
		}
	}
	h.reaped = true
}

// guardianDied ends the processes that the guardian has left. The kernel has killed its child with
// it, unless the child had ended before.
func (h *holder) guardianDied() (Result, error) {
	byUs := h.killed
	h.kill()
	h.bury()
	h.term.giveBack(h.child.pid)
	// SIGKILL came from us, or from the kernel at the guardian's death.
	if h.child.known && !byUs && h.child.status.Signal() != syscall.SIGKILL {
		h.child.over = true
	}
	switch {
	case h.child.over && h.child.known:
		return Result{h.child.status, h.child.cut, h.term.lent, h.interrupted, h.signalled}, nil
	case h.child.over:
		return Result{}, ErrUnknownEnd
	case byUs && h.helpless():
		return Result{}, ErrNotStarted
	case byUs && !h.child.starting:
		return Result{}, ErrLate
	case byUs:
		return Result{Cut: true}, nil
	}
	return Result{}, ErrGuardianDied
}

// kill kills the guardian and all its descendants, and returns when they are gone.
func (h *holder) kill() {
	h.killed = true
	if !walks {
		syscall.Kill(h.guardian, syscall.SIGKILL)
		if h.child.pid != 0 {
			syscall.Kill(-h.child.pid, syscall.SIGKILL)
		}
		return
	}
	pause := retry
	// Two walks must find nothing, because one may miss a process that forks at that moment.
	for nothing := 0; nothing < 2; {
		if !h.reapAny() {
			return
		}
		pids := below(os.Getpid(), h.since)
		if len(pids) == 0 {
			nothing++
			continue
		}
		nothing = 0
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if pause == retryMost { // what the kernel can end at once is gone
			h.tellRefused(refusing(pids))
		}
		time.Sleep(pause)
		pause = min(2*pause, retryMost)
	}
}

// tellRefused reports that the processes left cannot be ended, if there are any. Once the lease has
// ended another process may hold it beside them, so it reports them again.
func (h *holder) tellRefused(left string) {
	lost := h.plan.Lease.Context().Err() != nil
	if left == "" || h.refusal.told && h.refusal.lost == lost {
		return
	}
	h.refusal = refusal{told: true, lost: lost}
	h.plan.Refused(left)
}

// reapAny reaps dead children and reports whether there are others. The child is among them if its
// guardian is dead.
func (h *holder) reapAny() bool {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.ECHILD:
			return false
		case err == syscall.EINTR:
		case pid <= 0:
			return true
		case pid == h.guardian:
			h.reaped = true
		case pid == h.child.pid:
			h.child.known, h.child.status = true, status
		}
	}
}
