package leasehold

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A Trace is called with the events of a Locker. Each wait for a lease, each hold, renewal and keep
// begins with one Event and ends with exactly one more, whatever its outcome. ctx has the values of
// the context that the lease was requested with, so that spans find their parents. During a wait it
// is that context itself; after the wait it never ends.
//
// A Trace runs with Locker mutexes held: it must not block, panic, or call the Locker or its
// leases. It runs on the goroutine that caused the event, which may be one that calls Err of a
// lease's context. It may run concurrently for different events. The events of one lease are in
// order: wait begun, wait ended, hold begun, hold ended, however soon the lease is lost. Events of
// different leases have no order. No event prints an owner or a password; the Owner in a
// [*BusyError] shows its value only by Reveal.
//
// A call that is refused for its name, its options or a closed Locker has no events. Nor has a
// lease that nobody gets, such as one handed over to a waiter that has just given up.
type Trace func(ctx context.Context, e Event)

// An Event is the beginning or the end of a wait, a hold, a renewal or a keep, or a step in
// between. See [Kind].
type Event struct {
	// ID identifies a wait in this process, from its beginning to its end, and what follows from
	// it. A hold has the ID of its wait. A renewal has the ID of its hold, which has one renewal
	// at a time.
	ID   uint64
	Kind Kind // what has begun, continues or has ended
	Step Step // what happened

	Name   string      // name of the resource
	Mode   driver.Mode // of the lease
	Weight int         // how much of a limit a shared lease uses, or asks for; 0 for an exclusive one
	Limit  int         // the requested limit; 0: none
	Engine string      // driver.Features.Engine
	Token  uint64      // token of the lease; 0 if a wait failed, or without fencing

	// Local is true for a StepQueued in the queue inside the process, where the engine was not
	// asked.
	Local bool
	// Took is the time since the beginning. It is 0 at the beginning.
	Took time.Duration
	// Left is set at the end of a renewal: how much time was left until the previous deadline when
	// the answer came or the call was given up.
	Left time.Duration
	// TTL is set at the end of a renewal: the length of the lease until then, of which Left was
	// left.
	TTL time.Duration
	// Err is the reason for a retry, or for the outcome. For a wait it is the error of the call,
	// for a renewal its error. For a hold it is the cause of the lease's context, or the error
	// of a Release whose outcome is unknown. For StepQueued at the engine it is the refusal, a
	// [*BusyError].
	Err error
}

// A Kind says what an Event belongs to.
type Kind uint8

const (
	// KindWait: a call of Acquire, TryAcquire, Do or Resume from its beginning, even if it is
	// granted at once. AcquireAll and Lead make one or more such calls for each name.
	KindWait Kind = iota
	// KindHold: a lease, from its grant until it is over. A nested lease has a hold of its own.
	KindHold
	// KindRenewal: a call to the engine that renews a lease, by the Locker or by Extend. A
	// renewal of nested leases belongs to the outermost one that is left.
	KindRenewal
	// KindKeep: a lease that was released and is kept, until another call takes it or it is given
	// back. It has the ID of the hold before it. See Options.Keep.
	KindKeep
)

// String returns the kind as a word for logs and labels.
func (k Kind) String() string { return word([]string{"wait", "hold", "renewal", "keep"}, int(k)) }

// A Step is what happened in a wait, a hold, a renewal or a keep.
type Step uint8

const (
	StepBegun Step = iota // a wait, a hold, a renewal or a keep has begun

	// StepQueued: a wait continues, in the queue inside the process, at the engine, or first in
	// one and then in the other. It comes again after StepRetrying.
	StepQueued
	// StepRetrying: a wait continues although a call to the engine failed with Err. Each such
	// call has one.
	StepRetrying
	// StepRecalled: a hold or a keep continues, and another process waits for it. Only leases
	// with Yields, and leases that may be kept, are notified.
	StepRecalled
	// StepOutranked: a hold continues, and the leader is about to step down for a candidate of
	// higher Preference.
	StepOutranked

	StepGranted    // a wait has ended: the engine granted a lease
	StepHandedOver // a wait has ended: a lease of this process was handed over
	StepTaken      // a wait or a keep has ended: a kept lease was taken
	StepNested     // a wait has ended: a nested lease
	StepResumed    // a wait has ended: Resume found the lease alive
	StepRefused    // a wait has ended: the resource is held, and the call does not wait
	// StepGaveUp: a wait or a renewal has ended because Wait ran out, the context or the lease
	// ended, or the Locker was closed.
	StepGaveUp
	// StepFailed: a wait or a renewal has ended in any other error.
	StepFailed

	// StepReleased: a hold has ended by Release, at the engine, by a hand-over, because it is kept,
	// or because other leases of the same hold are left.
	StepReleased
	// StepLost: a hold has ended before its Release, or a keep by a loss; see ErrLost.
	StepLost
	// StepEvicted: a hold or a keep has ended because somebody evicted it, and the engine said so.
	StepEvicted
	// StepUnknown: a hold or a keep has ended by a release whose outcome is unknown. Later calls of
	// Release have no events.
	StepUnknown
	StepGivenBack // a keep has ended: the engine has the lease back

	StepRenewed // a renewal has ended: the engine agreed
)

// steps are the words for logs and labels.
var steps = []string{
	"begun", "queued", "retrying", "recalled", "outranked",
	"granted", "handed_over", "taken", "nested", "resumed", "refused", "gave_up", "failed",
	"released", "lost", "evicted", "unknown", "given_back",
	"renewed",
}

// String returns the step as a word for logs and labels.
func (s Step) String() string { return word(steps, int(s)) }

// Ends reports whether s is the end of a wait, a hold, a renewal or a keep.
func (s Step) Ends() bool { return s > StepOutranked }

// Holds reports whether s is the end of a wait that acquired a lease.
func (s Step) Holds() bool { return s >= StepGranted && s <= StepResumed }

func word(words []string, i int) string {
	if i < len(words) {
		return words[i]
	}
	return "?"
}

// Causes returns all values of [Event.Cause], for counters that start at zero.
func Causes() []string { return []string{causeExpired, causeEvicted, causeMaxHold, causeEngine} }

const (
	causeExpired = "expired"
	causeEvicted = "evicted"
	causeMaxHold = "max_hold"
	causeEngine  = "engine"
)

// Cause returns why a hold was lost, as a word for labels: "expired", "evicted", "max_hold", or
// "engine" for any other reason that the engine gave. It is empty for all other events.
func (e Event) Cause() string {
	switch {
	case e.Kind == KindKeep:
		return ""
	case e.Step == StepEvicted:
		return causeEvicted
	case e.Step != StepLost:
		return ""
	case errors.Is(e.Err, ErrExpired):
		return causeExpired
	case errors.Is(e.Err, errMaxHold):
		return causeMaxHold
	}
	return causeEngine
}

// Reasons returns all values of [Event.Reason], for gauges that start at zero.
func Reasons() []string { return []string{reasonCall, reasonProcess, reasonExclusive, reasonLimit} }

const (
	reasonCall      = "call"
	reasonProcess   = "process"
	reasonExclusive = "exclusive"
	reasonLimit     = "limit"
)

// Reason returns what a wait waits for, as a word for labels: "call" for the first answer of the
// engine, and "process" in the queue inside the process. At the engine it is "limit" if a shared call
// was refused because of a shared holder, else "exclusive". It is empty for all other events.
func (e Event) Reason() string {
	refusal, _ := errors.AsType[*BusyError](e.Err)
	switch {
	case e.Kind != KindWait || e.Step != StepBegun && e.Step != StepQueued:
		return ""
	case e.Step == StepBegun:
		return reasonCall
	case e.Local:
		return reasonProcess
	case e.Mode == driver.Shared && refusal != nil && refusal.Holder.Mode == driver.Shared:
		return reasonLimit
	}
	return reasonExclusive
}

// TraceAll returns a Trace that calls the given ones in order. It skips nil.
func TraceAll(traces ...Trace) Trace {
	all := slices.DeleteFunc(slices.Clone(traces), func(t Trace) bool { return t == nil })
	return func(ctx context.Context, e Event) {
		for _, t := range all {
			t(ctx, e)
		}
	}
}

// errPanic is the outcome of a call that a panic of the driver has ended.
var errPanic = errors.New("the call panicked")

// lastID is the ID of the last traced wait.
var lastID atomic.Uint64

// traceBegin traces the beginning of a call, and sets the ID of its events.
func (a *acquisition) traceBegin() {
	if a.locker.opts.Trace != nil {
		a.id = lastID.Add(1)
		a.trace(Event{Step: StepBegun})
	}
}

// trace traces e with the fields that all events of the call share.
func (a *acquisition) trace(e Event) {
	if a.id != 0 {
		e.ID, e.Kind, e.Name, e.Mode, e.Engine = a.id, KindWait, a.name, a.mode, a.locker.features.Engine
		e.Weight, e.Limit = a.mode.Uses(a.weight), a.limit
		a.locker.opts.Trace(a.caller, e)
	}
}

// traceEnd traces the end of a call, and the beginning of the hold of le.
func (a *acquisition) traceEnd(le *Lease, err error) {
	if a.id == 0 {
		return
	}
	if le == nil && err == nil {
		err = errPanic
	}
	took := a.locker.clock.Now().Sub(a.start)
	if err != nil {
		a.trace(Event{Step: a.failedFor(took, err), Took: took, Err: err})
		return
	}
	a.trace(Event{Step: a.acquiredBy, Took: took, Token: le.token})
	le.traceBegun(a.id)
}

// failedFor returns the last step of a call that took so long and failed with err.
func (a *acquisition) failedFor(took time.Duration, err error) Step {
	busy := errors.Is(err, ErrBusy)
	switch {
	case busy && (!a.waits || a.recalls):
		return StepRefused
	case busy, errors.Is(err, ErrClosed),
		a.caller.Err() != nil && errors.Is(err, context.Cause(a.caller)),
		took >= a.wait && errors.Is(err, context.DeadlineExceeded):
		return StepGaveUp
	}
	return StepFailed
}

// traced records which events of a lease were traced.
type traced struct {
	values context.Context // the caller's
	id     uint64          // guarded by hold.mu; of its events; 0 until the beginning was traced
	ended  bool            // guarded by hold.mu

	recalled bool // guarded by hold.mu; StepRecalled was traced
}

// event returns an event of the lease, whose ID is set.
func (le *Lease) event(k Kind, s Step) Event {
	h := le.hold
	return Event{
		ID: le.traced.id, Kind: k, Step: s,
		Name: h.req.Resource, Mode: h.req.Mode, Weight: h.req.Mode.Uses(h.req.Weight), Limit: h.req.Limit,
		Engine: h.locker.features.Engine, Token: le.token,
	}
}

// traceBegun traces the beginning of a lease, before the caller gets it, and its end if it is
// over already.
func (le *Lease) traceBegun(id uint64) {
	h := le.hold
	begun := le.event(KindHold, StepBegun)
	begun.ID = id
	h.locker.opts.Trace(le.traced.values, begun)
	h.mu.Lock()
	le.traced.id = id
	lost := h.cause
	if h.recalled {
		le.traceRecalled()
	}
	h.mu.Unlock()
	if lost != nil {
		le.traceLost(lost)
	}
}

// traceLost traces the end of a lease that was lost or evicted.
func (le *Lease) traceLost(cause error) {
	if errors.Is(cause, ErrEvicted) {
		le.traceEnd(StepEvicted, cause)
	} else {
		le.traceEnd(StepLost, cause)
	}
}

// traceEnd traces the end of a lease, once, and not before its beginning was traced.
func (le *Lease) traceEnd(s Step, err error) {
	h := le.hold
	if h.locker.opts.Trace == nil {
		return
	}
	h.mu.Lock()
	done := le.traced.id == 0 || le.traced.ended
	le.traced.ended = le.traced.id != 0
	h.mu.Unlock()
	if done {
		return
	}
	e := le.event(KindHold, s)
	e.Took, e.Err = h.locker.clock.Now().Sub(le.since), err
	h.locker.opts.Trace(le.traced.values, e)
}

// traceRecalled traces that another process waits, once, and not before the beginning was traced.
// Requires hold.mu.
func (le *Lease) traceRecalled() {
	if le.traced.id != 0 && !le.traced.ended && !le.traced.recalled {
		le.traced.recalled = true
		le.hold.locker.opts.Trace(le.traced.values, le.event(KindHold, StepRecalled))
	}
}

// traceRecalled traces that another process waits for the hold, for each of its leases, or for what
// is kept. Requires h.mu.
func (h *hold) traceRecalled() {
	for _, le := range h.holders.leases {
		le.traceRecalled()
	}
	if h.phase != kept {
		return
	}
	if le := h.keep.lease; le != nil && !le.traced.recalled {
		le.traced.recalled = true
		h.traceKeep(le, StepRecalled, nil)
	}
}

// traceOutranked traces that a leader is about to step down.
func (le *Lease) traceOutranked() {
	if le.traced.id != 0 {
		le.hold.locker.opts.Trace(le.traced.values, le.event(KindHold, StepOutranked))
	}
}

// traceKeep traces a step of the keeping that follows le, whose end was traced. Requires h.mu.
func (h *hold) traceKeep(le *Lease, s Step, err error) {
	if le == nil || le.traced.id == 0 {
		return
	}
	e := le.event(KindKeep, s)
	if e.Err = err; s.Ends() {
		e.Took = h.locker.clock.Now().Sub(h.keep.since)
	}
	h.locker.opts.Trace(le.traced.values, e)
}

// traceRenews traces the beginning of a renewal. Requires h.calling.
func (h *hold) traceRenews() {
	if h.locker.opts.Trace == nil {
		return
	}
	h.mu.Lock()
	if all := h.holders.leases; len(all) > 0 && all[0].traced.id != 0 { // else it is being handed over
		h.renewals.traced = all[0]
	}
	h.mu.Unlock()
	if le := h.renewals.traced; le != nil {
		h.locker.opts.Trace(le.traced.values, le.event(KindRenewal, StepBegun))
	}
}

// traceRenewal traces the end of a renewal that was sent at sent and answered at answered. left
// is the time left until the deadline, of a lease of length ttl. moot means that the lease or
// the caller's context was over. Requires h.calling.
func (h *hold) traceRenewal(sent, answered boottime.Instant, left, ttl time.Duration, moot bool, err error) {
	le := h.renewals.traced
	if le == nil {
		return
	}
	h.renewals.traced = nil
	s := StepRenewed
	switch {
	case err != nil && moot:
		s = StepGaveUp
	case err != nil:
		s = StepFailed
	}
	e := le.event(KindRenewal, s)
	e.Took, e.Left, e.TTL, e.Err = answered.Sub(sent), max(left, 0), ttl, err
	h.locker.opts.Trace(le.traced.values, e)
}
