//go:build unix

package guardian

import (
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Forwarded are the signals that a holder passes on to its child. The guardian itself
// outlives all that can be outlived.
var Forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// retry is how soon the tree is killed again while some of it is left; it doubles up to
// retryMost, because what the kernel cannot end yet may stay for long.
const (
	retry     = 5 * time.Millisecond
	retryMost = 200 * time.Millisecond
)

// A guardian is the state of the guardian process.
type guardian struct {
	conn     *conn
	term     terminal
	grace    time.Duration
	margin   time.Duration
	deadline deadline
	ward
	finish
}

// A ward is the child, as its guardian knows it.
type ward struct {
	child     int // pid and process group
	status    syscall.WaitStatus
	exited    bool // status is set
	childless bool // nothing is left to wait for
}

// A finish is how the guardian ends what there is.
type finish struct {
	ending  bool    // SIGTERM was sent
	endedAt instant // when; set while ending
	cut     bool    // the child was ended, rather than left over descendants
	retry   time.Duration
}

// An estate is what a guardian has to give up in place of a holder that has died: the leases that
// legacy tells of. They keep others out until keep, and end by themselves at deadline.
type estate struct {
	legacy         string
	keep, deadline instant
}

// left is the estate of this process' holder, if this process is its guardian.
var left *estate

// init is all that a guardian does, unless its holder dies and leaves something: then main goes on, with
// Inherit. The clients of twelve engines, whose beginnings cost more than all the rest, are still to come:
// of the packages whose imports have been initialised, the first by its path is next. This one therefore
// imports little (not os/exec, whose path is a late one). Were it the last of all, a guardian would start
// slower and do the same.
func init() {
	c, d, ok := fromArgs(os.Args)
	if !ok {
		return
	}
	left = guard(c, d)
	if left == nil {
		os.Exit(0)
	}
}

// Inherit is to be the first that main calls. In the guardian of a holder that has died it calls heir in the
// holder's place, with no file of the holder's open any more, and ends the process. Elsewhere it does nothing.
func Inherit(heir func(legacy string, keep, deadline time.Time)) {
	if left == nil {
		return
	}
	heir(left.legacy, left.keep.time(), left.deadline.time())
	os.Exit(0)
}

// guard starts the command when the holder tells it to, and returns when nothing of it is left and the holder
// is dead. A holder that lives ends this process when it knows of the end and has seen to its lease.
func guard(c *conn, d deadline) *estate {
	rename()
	runtime.GOMAXPROCS(1) // it hardly does anything, and threads that look for work cost as much
	// The child gets its death signal when the thread that started it ends.
	runtime.LockOSThread()
	outlive()
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	// Without it grandchildren may escape, the rest works: older kernels, other systems.
	adoptOrphans()

	messages := c.receive()
	first := <-messages
	if first.Start == nil {
		return nil // the holder died before the start
	}
	g := newGuardian(c, d, first.Start)
	c.send(g.serve(first.Start, messages, died))
	for range messages { // until the holder ends this process, or is dead
	}
	if first.Start.Legacy == "" {
		return nil
	}
	letGoOfFiles()
	return &estate{first.Start.Legacy, first.Start.Keep, d.get()}
}

// serve runs the command and returns what came of it.
func (g *guardian) serve(s *start, messages <-chan message, died <-chan os.Signal) message {
	// The last look at the clock before the start; watch looks again at once after it.
	if g.termAt().sub(now()) <= 0 {
		return message{Verb: gotLate}
	}
	g.conn.send(message{Verb: gotStarting})
	child, code, err := startChild(string(s.Path), s.Argv.strings(), s.Env.strings(), &g.term)
	if err != nil {
		return message{Verb: gotFailed, N: int64(code), Text: err.Error()}
	}
	g.child = child
	g.conn.send(message{Verb: gotStarted, N: int64(child)})
	g.watch(messages, died)
	g.term.giveBack(child)
	return message{Verb: gotExit, N: int64(g.status), Cut: g.cut, Lent: g.term.lent}
}

func newGuardian(c *conn, d deadline, s *start) *guardian {
	g := &guardian{conn: c, deadline: d, grace: s.Grace, margin: s.Margin}
	if s.Home != 0 {
		g.term = openTerminal(s.Home)
		g.term.lent = s.Lent && g.term.home != 0
	}
	return g
}

// letGoOfFiles closes what this process has of the holder's files, so that nobody waits
// for their end because of it. What is its own is closed on exec.
func letGoOfFiles() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	for fd := range 3 {
		unix.Dup2(int(null.Fd()), fd)
	}
	fds, _ := os.ReadDir("/dev/fd")
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			syscall.Close(fd)
		}
	}
}

// outlive catches what would end or suspend the guardian. Ignoring it instead would make
// the child ignore it too; what was ignored from the start stays so, for nohup.
func outlive() {
	caught := append([]os.Signal{
		syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
	}, Forwarded...)
	Catch(make(chan os.Signal), caught...)
}

// Catch sends those of signals that are not ignored to c, as signal.Notify does.
func Catch(c chan<- os.Signal, signals ...os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// toArgs are the arguments of a guardian that has socket as its end, and the memory of the deadline.
func toArgs(socket, memory int) []string {
	return []string{Name, "guard", strconv.Itoa(socket), strconv.Itoa(memory)}
}

// fromArgs returns false in a process that is no guardian.
func fromArgs(args []string) (c *conn, d deadline, ok bool) {
	if len(args) != 4 || args[0] != Name || args[1] != "guard" {
		return nil, d, false
	}
	socket, err := strconv.Atoi(args[2])
	memory, err2 := strconv.Atoi(args[3])
	if err != nil || err2 != nil {
		return nil, d, false
	}
	if c, err = newConn(socket); err != nil {
		return nil, d, false
	}
	d, err = mapDeadline(memory)
	syscall.Close(memory)
	return c, d, err == nil
}

// termAt is when the child gets SIGTERM, killAt when it gets SIGKILL.
func (g *guardian) termAt() instant { return g.killAt().add(-g.grace) }

func (g *guardian) killAt() instant {
	at := g.deadline.get().add(-g.margin)
	if g.ending {
		at = min(at, g.endedAt.add(g.grace))
	}
	return at
}

// watch returns when the child and all its descendants are gone.
func (g *guardian) watch(messages <-chan message, died <-chan os.Signal) {
	timer, woke := time.NewTimer(0), make(chan struct{}, 1)
	defer sleep.Watch(func() {
		select {
		case woke <- struct{}{}:
		default:
		}
	})()
	for {
		g.reap()
		if g.exited && g.childless {
			return
		}
		timer.Reset(g.enforce())
		select {
		case m, ok := <-messages:
			if !ok {
				messages = nil
				g.endChild() // the holder is gone: nobody will renew
				continue
			}
			g.obey(m)
		case <-died:
		case <-timer.C:
		case <-woke: // the timer stood still
		}
	}
}

// enforce does what the clock demands and returns when to look at it again.
func (g *guardian) enforce() time.Duration {
	if g.exited && !g.ending {
		// The lease is to cover all that the command does, so that nothing may go on.
		g.end(leftRunning())
	}
	if !g.ending {
		if left := g.termAt().sub(now()); left > 0 {
			return left
		}
		g.endChild()
	}
	if left := g.killAt().sub(now()); left > 0 {
		return left
	}
	g.signalTree(syscall.SIGKILL)
	g.retry = min(max(retry, 2*g.retry), retryMost)
	return g.retry
}

func (g *guardian) obey(m message) {
	switch m.Verb {
	case toPing:
		g.conn.send(message{Verb: gotPong})
	case toSignal:
		g.signalGroup(syscall.Signal(m.N))
	case toStop:
		g.endChild()
	case toResume:
		if g.term.lent {
			g.term.lend(g.child)
		}
		g.signalGroup(syscall.SIGCONT)
	}
}

// endChild ends a child that has not come to its own end.
func (g *guardian) endChild() {
	g.cut = g.cut || !g.exited
	g.end("")
}

// end tells left, the processes that the child has left running, when it is not cut.
func (g *guardian) end(left string) {
	if g.ending {
		return
	}
	g.ending, g.endedAt = true, now()
	g.signalTree(syscall.SIGTERM)
	g.signalTree(syscall.SIGCONT) // so that what is stopped can obey
	if g.cut || left != "" {
		g.conn.send(message{Verb: gotEnding, Cut: g.cut, Text: left})
	}
}

// reap waits for whoever died. Orphans of the child end up here as well.
func (g *guardian) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err == syscall.ECHILD:
			g.childless = alone(g.child)
			return
		case err != nil || pid == 0:
			return
		case pid != g.child:
		case status.Stopped():
			g.suspended(status.StopSignal())
		default:
			g.exited, g.status = true, status
			g.conn.send(message{Verb: gotEnded, N: int64(status), Cut: g.cut})
		}
	}
}

// suspended acts on a child that was stopped. One that wants the keyboard gets it if this
// run has it. Otherwise the holder must stop too, because its shell watches the holder;
// the lease is then not renewed and ends the child unless it is resumed in time. A child
// stopped by SIGSTOP is left alone, and its lease kept.
func (g *guardian) suspended(sig syscall.Signal) {
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if g.term.lend(g.child) {
			g.signalGroup(syscall.SIGCONT)
			return
		}
	case syscall.SIGTSTP:
	default:
		return
	}
	g.term.giveBack(g.child)
	g.conn.send(message{Verb: gotStopped})
}

// signalGroup reaches the child's process group, or the child alone if it has left it.
// The number is the child's pid, which may be another's once the child was waited for.
func (g *guardian) signalGroup(sig syscall.Signal) {
	if g.exited && walks {
		return
	}
	if syscall.Kill(-g.child, sig) == syscall.ESRCH && !g.exited {
		syscall.Kill(g.child, sig)
	}
}

// signalTree reaches every descendant: the group at one instant, as no walk can, then
// those who left it.
func (g *guardian) signalTree(sig syscall.Signal) {
	g.signalGroup(sig)
	for _, pid := range descendants(os.Getpid(), 0) {
		if group, err := syscall.Getpgid(pid); g.exited || err != nil || group != g.child {
			syscall.Kill(pid, sig)
		}
	}
}
