package explore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// An action says what is done with an event: a verb and its argument.
type action string

// pass lets the event happen in the plain order.
const pass action = "pass"

// A change is an event with the other action that was chosen for it.
type change struct {
	label  string
	action action
}

func (c change) String() string { return c.label + " = " + string(c.action) }

// A policy chooses actions, and records its changes.
type policy interface {
	choose(label string, others []action) action
	made() []change
}

// Actions on events, other than pass. Durations are in TTLs. The durations for which a message is
// held lie on both sides of each important instant, such as a renewal or a deadline.
var (
	held     = []action{"late", "hold 1/8", "hold 1/4", "hold 1/2", "hold 3/4", "hold 1", "hold 5/4", "hold 3/2"}
	requests = slices.Concat(held, []action{
		"lose", "hang", "twice", "again late", "again after 1/4", "again after 3/4", "again after 5/4",
		"die", "die after", "pause 1/2", "pause 1", "pause 3/2",
	})
	answers = slices.Concat(held, []action{"hold 99/100", "lose", "hang", "die"})
	pushes  = []action{"late", "hold 1/2", "hold 3/2", "lose"}
	calls   = []action{"late", "hold 1/4", "hold 1"}
	ahead   = []action{"clock +1/2", "clock +2"}
	back    = []action{"clock -1/2", "clock -10"}
)

// choose asks the policy for the action on e.
func (w *World) choose(e *event) action {
	w.mu.Lock()
	over := w.over || w.calm || w.violation != "" || e.process.dead
	w.mu.Unlock()
	if over {
		return pass
	}
	return w.policy.choose(e.label, w.others(e))
}

// others returns the actions on e other than pass.
func (w *World) others(e *event) []action {
	switch e.kind {
	case call:
		return append(slices.Clip(calls), w.cancels(nil)...)
	case push:
		return pushes
	case answer:
		return append(slices.Clip(answers), w.cancels(e.process)...)
	}
	some := append(slices.Clip(requests), w.cancels(e.process)...)
	if e.line.once {
		some = slices.DeleteFunc(slices.Clone(some), func(a action) bool {
			return a == "twice" || strings.HasPrefix(string(a), "again")
		})
	}
	if w.setClock != nil {
		some = append(some, ahead...)
	}
	// After an engine has forgotten its fences, it uses its clock, which then must not have gone
	// back.
	if w.setClock != nil && !w.flushed {
		some = append(some, back...)
	}
	if w.flush != nil && w.setBack == 0 {
		some = append(some, "flush")
	}
	for _, r := range w.restarts {
		some = append(some, action("restart "+r.name))
	}
	for _, f := range w.forces {
		some = append(some, action("force "+f.what))
	}
	return some
}

// cancels returns the actions by which a caller gives up: callers of process p, or of any process
// if p is nil.
func (w *World) cancels(p *Process) (some []action) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.clients {
		if (c.process == p || p == nil) && c.cancel != nil {
			some = append(some, action("cancel "+c.name))
		}
	}
	return some
}

// change performs an action other than pass on e.
func (w *World) change(e *event, a action) {
	w.changed = time.Now()
	w.tell("CHANGE  %s", change{e.label, a})
	verb, with, _ := strings.Cut(string(a), " ")
	w.faulty = w.faulty || verb != "late" && e.kind != call
	w.soils(verb)
	switch verb {
	case "late", "hold", "twice", "again": // visible in the order of events
	default:
		w.trace.add(e.process.name, string(a)+e.label, w.now())
	}
	switch verb {
	case "late":
		e.behind = true
	case "hold":
		e.due = time.Now().Add(w.ttls(with))
	case "lose":
		w.lose(e, true)
	case "hang":
		w.lose(e, false)
	case "twice", "again":
		w.repeat(e, with)
	case "die":
		w.die(e, with == "after")
	case "pause":
		w.paused[e.process] = time.Now().Add(w.ttls(with))
	case "cancel":
		w.cancel(with)
	case "clock":
		w.step(w.ttls(with))
	case "restart":
		w.restart(with)
	case "force":
		w.force(with)
	case "flush":
		w.flushed = true
		w.forget()
		w.flush()
	}
}

// soils records that a change may leave something until its TTL is over. If a caller gives up while
// a message is held, its last message may be too late as well.
func (w *World) soils(verb string) {
	if verb == "hold" || verb == "pause" {
		w.slow.Store(true)
	}
	w.givenUp = w.givenUp || verb == "cancel"
	if w.slow.Load() && w.givenUp {
		w.lossy.Store(true)
	}
	switch verb {
	case "late", "hold", "pause", "cancel":
	default:
		w.lossy.Store(true)
	}
	switch verb {
	case "twice", "again", "die", "restart", "force":
		w.mu.Lock()
		w.ledger.untidy = true
		w.mu.Unlock()
	}
}

// ttls parses a duration in TTLs.
func (w *World) ttls(text string) time.Duration {
	number, by, fraction := strings.Cut(text, "/")
	var n, d time.Duration = 0, 1
	fmt.Sscan(number, &n) // text from an action is valid
	if fraction {
		fmt.Sscan(by, &d)
	}
	return n * w.harness.TTL / d
}

// lose drops e. Unless e is a push, its line is lost too, and told says whether the process
// notices. With a request, everything is lost that is sent after it.
func (w *World) lose(e *event, told bool) {
	w.remove(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.kind == request {
		e.line.lost = true
	}
	switch {
	case e.kind == push && e.line.broken != nil && e.line.whole != nil:
		go e.line.broken()
	case e.kind == push && !e.line.once:
	case told:
		e.line.connection().cut()
	default:
		e.line.connection().down = true
	}
}

// repeat makes the engine serve a request once more: at once, after others, or after some time.
func (w *World) repeat(e *event, when string) {
	more := *e
	more.label, more.line, more.again, more.happen = e.label+" again", nil, true, e.repeat
	e.after = func() {
		switch {
		case when == "late":
			more.behind = true
		case when != "":
			more.due = time.Now().Add(w.ttls(strings.TrimPrefix(when, "after ")))
		}
		w.pending = slices.Insert(w.pending, 0, &more)
	}
}

// die ends the process of e, before or after e happens.
func (w *World) die(e *event, after bool) {
	if after {
		e.after = func() { w.kill(e.process) }
		return
	}
	w.remove(e)
	w.kill(e.process)
}

// kill ends a process. From now on nothing that it does reaches the engine or other processes.
func (w *World) kill(p *Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.dead = true
	for _, l := range p.lines {
		l.down = true
		go l.broken()
	}
	p.lines = nil
	for _, c := range w.clients {
		if c.process == p && c.cancel != nil {
			c.cancel()
		}
	}
}

// cancel ends the context of the call that the named client waits for.
func (w *World) cancel(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.clients {
		if c.name == name && c.cancel != nil {
			c.cancel()
		}
	}
}

// step sets the engine's clock by d.
func (w *World) step(d time.Duration) {
	w.offset += d
	w.setBack += max(-d, 0)
	if d > 0 { // leases end early, as the documentation says
		w.forget()
	}
	w.mu.Lock()
	w.ledger.disturbed = true
	w.mu.Unlock()
	w.tick()
}

// forget records that the engine may have ended all present leases. From then on only their tokens
// are checked.
func (w *World) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.forgotten, w.ledger.disturbed = time.Now(), true
}

// restart restarts the named part of the engine.
func (w *World) restart(name string) {
	for _, r := range w.restarts {
		if r.name == name {
			r.forget()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.ledger.engines {
		if e.node == name {
			e.claims, e.forgot = nil, append(e.forgot, e.claims...)
		}
	}
}

// force performs an act of an operator on the engine.
func (w *World) force(what string) {
	for _, f := range w.forces {
		if f.what != what {
			continue
		}
		if f.ends {
			w.forget()
		}
		f.use()
	}
}

// mayCancel returns a context for a call of c that the action cancel can end.
func (c *client) mayCancel() (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	c.cancel = cancel
	if c.world.over || c.process.dead {
		cancel()
	}
	return ctx, func() {
		c.world.mu.Lock()
		defer c.world.mu.Unlock()
		c.cancel = nil
		cancel()
	}
}
