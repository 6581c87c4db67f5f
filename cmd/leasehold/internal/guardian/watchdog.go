//go:build unix

package guardian

import (
	"syscall"
	"time"
)

// The holder pings the guardian every two seconds, unless the last ping is unanswered. A guardian
// is silent when that has happened patience times. It may be stopped, frozen, or traced by a
// debugger. While the command runs, that is harmless: the holder, too, ends it before the deadline.
//
// The holder reports the silence and sends SIGCONT, which resumes a guardian stopped by SIGSTOP. If
// the guardian stays silent for another ping, and its command has ended or was never started, the
// holder takes its place. It ends what the command has left running, kills the guardian, and gets
// the exit code from the kernel.
const patience = 2

// pulse and startBound are variables, so that tests can shorten them.
var (
	pulse      = 2 * time.Second
	startBound = 20 * time.Second // time that the guardian has to begin the start
)

// A watchdog is what the holder knows about the guardian's silence.
type watchdog struct {
	missed int       // intervals in a row without an answer
	owed   bool      // the last ping has no answer yet
	until  time.Time // when the holder kills what the command has left; zero: that has not got SIGTERM yet
}

// answered records an answer to a ping.
func (h *holder) answered() {
	if h.missed >= patience {
		h.plan.Silent(h.guardian, false)
	}
	h.missed, h.owed = 0, false
}

// feel sends the next ping. If the last one has no answer, it acts on that instead.
func (h *holder) feel() {
	if h.reaped {
		return
	}
	if !h.owed {
		h.owed = true
		h.conn.send(message{Verb: toPing})
		return
	}
	h.missed++
	if h.missed < patience {
		return
	}
	if h.missed == patience {
		h.plan.Silent(h.guardian, true)
	}
	syscall.Kill(h.guardian, syscall.SIGCONT)
	if h.missed > patience {
		h.takeOver()
	}
}

// helpless reports whether the guardian was silent for so long that it will start nothing any more.
func (h *holder) helpless() bool {
	return time.Duration(h.missed)*pulse > startBound && !h.child.starting
}

// takeOver does the work of a guardian that stays silent. While the command runs, there is nothing
// to do.
func (h *holder) takeOver() {
	if h.helpless() {
		h.kill()
		return
	}
	h.look()
	if !h.child.over {
		return
	}
	rest := below(h.guardian, 0)
	switch {
	case len(rest) == 0:
		h.kill()
	case h.until.IsZero():
		h.until = time.Now().Add(h.plan.Grace)
		for _, pid := range rest {
			syscall.Kill(pid, syscall.SIGTERM)
			syscall.Kill(pid, syscall.SIGCONT)
		}
	case time.Now().After(h.until):
		h.kill()
	}
}

// look finds out whether the child has ended although the guardian has not reported it.
func (h *holder) look() {
	switch {
	case !walks || h.child.over || !h.child.starting:
	case h.child.pid != 0:
		h.child.over = !running(h.child.pid)
	default:
		h.child.over = len(below(h.guardian, 0)) == 0
	}
}

// pass passes a signal on to the child. If the guardian stays silent, it sends the signal itself.
func (h *holder) pass(sig syscall.Signal) {
	h.urge(message{Verb: toSignal, N: int64(sig)})
	if h.missed > patience && walks && h.child.pid != 0 && running(h.child.pid) {
		syscall.Kill(-h.child.pid, sig)
	}
}

// urge sends a message that must not wait until a stopped guardian is noticed, and resumes the
// guardian.
func (h *holder) urge(m message) {
	h.conn.send(m)
	if !h.reaped {
		syscall.Kill(h.guardian, syscall.SIGCONT)
	}
}
