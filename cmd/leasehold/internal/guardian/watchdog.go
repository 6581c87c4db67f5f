//go:build unix

package guardian

import (
	"syscall"
	"time"
)

// The holder pings the guardian every two seconds, unless one ping has no answer yet. A guardian
// that has not answered patience pings is silent: stopped, frozen, or traced by a debugger. That
// harms nobody while the command runs, because the holder ends it before the deadline as well.
//
// The holder reports the silence and sends SIGCONT, which resumes a guardian stopped by SIGSTOP. If
// the guardian stays silent for another ping, and its command has ended or was never started, the
// holder takes its place. It ends what the command has left running, kills the guardian, and gets
// the exit code from the kernel.
const patience = 2

// Tests shorten them.
var (
	pulse      = 2 * time.Second
	startBound = 20 * time.Second // for the guardian to begin the start
)

// A watchdog is what the holder knows of a guardian's silence.
type watchdog struct {
	missed int       // how often a ping still had no answer at the next
	owed   bool      // the last one has none
	ending bool      // what the command has left running has got its SIGTERM from us
	until  time.Time // when it gets its SIGKILL; set while ending
}

// answered takes note of an answer.
func (h *holder) answered() {
	if h.missed >= patience && h.plan.Silent != nil {
		h.plan.Silent(h.guardian, false)
	}
	h.missed, h.owed = 0, false
}

// feel sends the next ping, or acts because the last one has no answer.
func (h *holder) feel() {
	if !h.owed {
		h.owed = true
		h.conn.send(message{Verb: toPing})
		return
	}
	h.missed++
	if h.missed < patience {
		return
	}
	if h.missed == patience && h.plan.Silent != nil {
		h.plan.Silent(h.guardian, true)
	}
	syscall.Kill(h.guardian, syscall.SIGCONT)
	if h.missed > patience {
		h.takeOver()
	}
}

// helpless reports whether the guardian has been silent for so long that it starts nothing any more.
func (h *holder) helpless() bool {
	return time.Duration(h.missed)*pulse > startBound && !h.child.starting
}

// takeOver does what is left for a guardian that stays silent: nothing while its command runs.
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
	case len(rest) == 0 || h.ending && time.Now().After(h.until):
		h.kill()
	case !h.ending:
		h.ending, h.until = true, time.Now().Add(h.plan.Grace)
		for _, pid := range rest {
			syscall.Kill(pid, syscall.SIGTERM)
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// look finds out whether the child has ended without the guardian's word.
func (h *holder) look() {
	switch {
	case !walks || h.child.over || !h.child.starting:
	case h.child.pid != 0:
		h.child.over = !running(h.child.pid)
	default:
		h.child.over = len(below(h.guardian, 0)) == 0
	}
}

// pass passes a signal on to the child, past a guardian that stays silent.
func (h *holder) pass(sig syscall.Signal) {
	h.urge(message{Verb: toSignal, N: int64(sig)})
	if h.missed > patience && walks && h.child.pid != 0 && running(h.child.pid) {
		syscall.Kill(-h.child.pid, sig)
	}
}

// urge sends what cannot wait until a stopped guardian is noticed.
func (h *holder) urge(m message) {
	h.conn.send(m)
	syscall.Kill(h.guardian, syscall.SIGCONT)
}

// end notes how the child has ended by itself.
func (c *command) end(status syscall.WaitStatus) {
	c.over, c.known, c.status = true, true, status
}
