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

// Forwarded are the signals that a holder passes on to its child. The guardian survives all signals
// that it can.
var Forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// Ends reports whether sig is a signal that people end programs with.
func Ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// retry is the pause before the remaining processes are killed again. It doubles up to retryMost,
// because a process that the kernel cannot end yet may stay for long.
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
	yield
}

// A ward is what a guardian knows of the child.
type ward struct {
	child     int // pid, and number of the process group
	status    syscall.WaitStatus
	exited    bool // status is set
	childless bool // the guardian has no child processes any more
}

// A finish is how the guardian ends the command.
type finish struct {
	ending  bool    // SIGTERM was sent
	endedAt instant // when SIGTERM was sent; set while ending
	cut     bool    // the child itself was ended, not only processes that it had left
	retry   time.Duration
	refused bool // the holder was informed of processes that refuse SIGKILL
}

// A yield is a signal that the child receives once it catches it.
type yield struct {
	signal syscall.Signal // 0: there is none to send
	since  instant        // when the holder requested it
	deaf   bool           // the holder was informed that the child does not catch it
}

// An estate is what a guardian must release in place of a dead holder: the leases that legacy
// describes. They keep others out until keep, and expire at deadline.
type estate struct {
	legacy         string
	keep, deadline instant
}

// left is the estate of the dead holder, if this process was its guardian. Otherwise it is nil.
var left *estate

// init is all that a guardian runs. Only if its holder has died and left leases, main continues
// with Inherit.
//
// Go initialises packages in the order of their paths, once their imports are initialised. This
// package imports little, and not os/exec, whose path is late in the order. So it is initialised
// before the clients of twelve engines, which cost more to start than everything else. If it were
// initialised last, a guardian would start more slowly and work the same.
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

// Inherit must be the first call of main. In the guardian of a dead holder it calls heir in the
// holder's place, and exits. The holder's files are closed by then. In other processes it does
// nothing.
func Inherit(heir func(legacy string, keep, deadline time.Time)) {
	if left == nil {
		return
	}
	heir(left.legacy, left.keep.time(), left.deadline.time())
	os.Exit(0)
}

// guard starts the command when the holder requests it. It returns when no process of the command
// is left and the holder has died. A holder that lives kills this process once it knows of the end
// and has released its lease.
func guard(c *conn, d deadline) *estate {
	rename()
	runtime.GOMAXPROCS(1) // there is little to do, and idle threads that look for work would cost as much
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	outlive()
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	adoptOrphans()

	messages := c.receive()
	first := <-messages
	if first.Start == nil {
		return nil // the holder has died before the start
	}
	g := newGuardian(c, d, first.Start)
	c.send(g.serve(first.Start, messages, died))
	for range messages { // until the holder kills this process or dies
	}
	if first.Start.Legacy == "" {
		return nil
	}
	letGoOfFiles()
	return &estate{first.Start.Legacy, first.Start.Keep, d.get()}
}

// serve runs the command and returns its outcome.
func (g *guardian) serve(s *start, messages <-chan message, died <-chan os.Signal) message {
	// This is the last check before the start. watch checks again at once after it.
	if g.termAt().sub(now()) <= 0 {
		return message{Verb: gotLate}
	}
	g.conn.send(message{Verb: gotStarting})
	child, code, err := startChild(string(s.Path), s.Argv.strings(), s.Env.strings(), &g.term)
	if err != nil {
		g.term.giveBack(0) // the child took it before the exec failed
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

// letGoOfFiles closes the holder's files in this process, so that their readers need not wait for
// this process to end. Files of its own are closed by exec.
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

// outlive catches signals that would end or suspend the guardian. The child would inherit ignored
// signals, so it does not ignore them. SIGHUP and SIGINT stay ignored if they were from the start,
// for nohup.
func outlive() {
	caught := append([]os.Signal{
		syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
	}, Forwarded...)
	Catch(make(chan os.Signal), caught...)
}

// toArgs returns the arguments of a guardian with socket as its end and memory for the deadline.
func toArgs(socket, memory int) []string {
	return []string{Name, "guard", strconv.Itoa(socket), strconv.Itoa(memory)}
}

// fromArgs reports false in a process that is not a guardian.
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

// termAt returns when the child gets SIGTERM, killAt when it gets SIGKILL.
func (g *guardian) termAt() instant { return g.killAt().add(-g.grace) }

func (g *guardian) killAt() instant {
	at := g.deadline.get().add(-g.margin)
	if g.ending {
		at = min(at, g.endedAt.add(g.grace))
	}
	return at
}

// watch enforces the deadline until the child and all its descendants are gone.
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
		timer.Reset(min(g.enforce(), g.tell()))
		select {
		case m, ok := <-messages:
			if !ok {
				messages = nil
				g.endChild() // the holder has died: nobody will renew
				continue
			}
			g.obey(m)
		case <-died:
		case <-timer.C:
		case <-woke: // the timer did not count the sleep
		}
	}
}

// enforce does what is due, and returns the time until its next call.
func (g *guardian) enforce() time.Duration {
	if g.exited && !g.ending {
		// The lease must cover everything that the command does, so no process may outlive it.
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
	if g.retry == retryMost && !g.refused { // what the kernel can end at once is gone
		if left := refusing(descendants(os.Getpid(), 0)); left != "" {
			g.refused = true
			g.conn.send(message{Verb: gotRefused, Text: left})
		}
	}
	g.retry = min(max(retry, 2*g.retry), retryMost)
	return g.retry
}

// A child that has just started may not catch its signals yet, and would die of them. So its mask
// is checked every tellAgain. The holder is informed if the child does not catch the signal for
// deafAfter.
const (
	tellAgain = 50 * time.Millisecond
	deafAfter = 5 * time.Second
)

// tell sends the signal of yield if the child catches it. It returns the time until its next call.
func (g *guardian) tell() time.Duration {
	switch {
	case g.yield.signal == 0, g.exited, g.ending:
		return time.Hour
	case catches(g.child, g.yield.signal):
		syscall.Kill(g.child, g.yield.signal)
		g.yield.signal = 0
		g.conn.send(message{Verb: gotTold})
		return time.Hour
	case !g.deaf && now().sub(g.since) > deafAfter:
		g.deaf = true
		g.conn.send(message{Verb: gotDeaf})
	}
	return tellAgain
}

// obey does what a message of the holder asks for.
func (g *guardian) obey(m message) {
	switch m.Verb {
	case toPing:
		g.conn.send(message{Verb: gotPong})
	case toSignal:
		g.signalGroup(syscall.Signal(m.N))
	case toYield:
		g.yield = yield{signal: syscall.Signal(m.N), since: now()}
	case toStop:
		g.endChild()
	case toResume:
		if g.term.lent {
			g.term.lend(g.child)
		}
		g.signalGroup(syscall.SIGCONT)
	}
}

// endChild ends the command, including the child if that has not ended by itself.
func (g *guardian) endChild() {
	g.cut = g.cut || !g.exited
	g.end("")
}

// end ends the command. left names the processes that remain if the child was not cut.
func (g *guardian) end(left string) {
	if g.ending {
		return
	}
	g.ending, g.endedAt = true, now()
	g.signalTree(syscall.SIGTERM)
	g.signalTree(syscall.SIGCONT) // stopped processes can only react when they are resumed
	if g.cut || left != "" {
		g.conn.send(message{Verb: gotEnding, Cut: g.cut, Text: left})
	}
}

// reap waits for dead processes. Orphans of the child become children of the guardian, so it reaps
// them as well.
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

// suspended handles a child that was stopped. If the child needs the keyboard and this run has it,
// the child gets it. Otherwise the holder must stop too, because its shell watches the holder. The
// lease is then not renewed, and the child is ended unless it is resumed in time. A child that
// SIGSTOP has stopped is left alone, and its lease is renewed.
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

// signalGroup signals the child's process group, or the child alone if it has left the group. On
// Linux it does nothing after the child was reaped, because another process may get its pid.
func (g *guardian) signalGroup(sig syscall.Signal) {
	if g.exited && walks {
		return
	}
	if syscall.Kill(-g.child, sig) == syscall.ESRCH && !g.exited {
		syscall.Kill(g.child, sig)
	}
}

// signalTree signals every descendant. It signals the group first, because that is atomic, unlike a
// walk. Then it signals the processes outside of it.
func (g *guardian) signalTree(sig syscall.Signal) {
	g.signalGroup(sig)
	for _, pid := range descendants(os.Getpid(), 0) {
		if group, err := syscall.Getpgid(pid); g.exited || err != nil || group != g.child {
			syscall.Kill(pid, sig)
		}
	}
}
