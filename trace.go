package leasehold

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A Trace is called with the events of a Locker. Each wait for a lease, each hold and each
// renewal begins with one Event and ends with exactly one more, whatever its outcome. ctx has the
// values of the context that the lease was requested with, so that spans find their parents.
// During a wait it is that context itself; in a hold or a renewal it never ends.
//
// A Trace runs with Locker mutexes held: it must not block, panic, or call the Locker or its
// leases. It runs on the goroutine that caused the event, which may be one that asks a lease's
// context for its Err, and concurrently for different events. The events of one lease are in
// order: wait begun, wait ended, hold begun, hold ended, however soon the lease is lost. Events
// of different leases have no order. No event contains an owner or a password.
//
// A call that is refused for its name, its options or a closed Locker has no events. Nor has a
// lease that nobody gets, such as one handed over to a waiter that has just given up.
type Trace func(ctx context.Context, e Event)

// An Event is the beginning or the end of a wait, a hold or a renewal, or a step in between.
type Event struct {
	// ID is unique in the process, and the same at the beginning and the end. A hold has the ID
	// of its wait, and a renewal that of its hold, which has one renewal at a time.
	ID   uint64
	Kind Kind // what has begun, goes on or has ended
	Step Step // which of these, and how

	Name   string      // of the resource
	Mode   driver.Mode // of the lease
	Engine string      // driver.Features.Engine
	Token  uint64      // of the lease; 0 of a wait that brought none, or without fencing

	// Local says that StepQueued is in the queue inside the process: the engine was not asked.
	Local bool
	// Took is the time since the beginning, where it is 0.
	Took time.Duration
	// Left is, at the end of a renewal, the time that was left until the deadline when the
	// answer came or the call was given up. For a successful renewal that is its slack.
	Left time.Duration
	// TTL is, at the end of a renewal, the length of the lease of which Left was left.
	TTL time.Duration
	// Err is the reason for a retry or for the outcome: the error of the call that waited, the
	// cause of the lease's context, the error of a Release whose outcome is unknown, or the error
	// of the renewal.
	Err error
}

// A Kind is what an Event belongs to.
type Kind uint8

const (
	// KindWait: a call of Acquire, TryAcquire, Do or Resume from its beginning, even if it is
	// granted at once. AcquireAll and Lead make one or more such calls for each name.
	KindWait Kind = iota
	// KindHold: a lease, from its grant until nobody may act on it any more. A nested lease has
	// a hold of its own.
	KindHold
	// KindRenewal: a call to the engine that renews a lease, by the Locker or by Extend. A
	// renewal of nested leases belongs to the outermost one that is left.
	KindRenewal
)

// String is a word for logs and labels.
func (k Kind) String() string { return word([]string{"wait", "hold", "renewal"}, int(k)) }

// A Step is what happened in a wait, a hold or a renewal.
type Step uint8

const (
	StepBegun Step = iota // any has begun

	// StepQueued: a wait continues, in the queue inside the process, at the engine, or first in one and then at the
	// other. It comes again after StepRetrying.
	StepQueued
	// StepRetrying: a wait continues although a call to the engine failed with Err. It comes for each such call.
	StepRetrying

	StepGranted    // a wait has ended: the engine granted a lease
	StepHandedOver // a wait has ended: a lease of this process was handed over
	StepNested     // a wait has ended: the caller held the resource, and got a nested lease
	StepResumed    // a wait has ended: Resume found the lease alive
	StepRefused    // a wait has ended: somebody else holds the resource, and the call does not wait
	StepGaveUp     // a wait or a renewal has ended: Wait ran out, the context ended, the Locker was closed, the lease ended
	StepFailed     // a wait or a renewal has ended in any other error

	StepReleased // a hold has ended: the engine answered Release, or the lease was handed over or left to a nested one
	StepLost     // a hold has ended before its Release, see ErrLost
	StepEvicted  // a hold has ended because somebody evicted it, and the engine said so
	StepUnknown  // a hold has ended by a Release whose outcome is unknown; further attempts have no events

	StepRenewed // a renewal has ended: the engine agreed
)

// steps are the words for logs and labels.
var steps = []string{
	"begun", "queued", "retrying",
	"granted", "handed_over", "nested", "resumed", "refused", "gave_up", "failed",
	"released", "lost", "evicted", "unknown",
	"renewed",
}

// String is a word for logs and labels.
func (s Step) String() string { return word(steps, int(s)) }

// Ends reports whether s is the end of a wait, a hold or a renewal.
func (s Step) Ends() bool { return s > StepRetrying }

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

// Cause returns why a lease was lost, as a word for labels: expired, evicted, max_hold, or engine
// for any other reason that the engine gave. It is empty for all other events.
func (e Event) Cause() string {
	switch {
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

// TraceAll returns a Trace that calls several in order. It skips those that are nil.
func TraceAll(traces ...Trace) Trace {
	var told []Trace
	for _, t := range traces {
		if t != nil {
			told = append(told, t)
		}
	}
	return func(ctx context.Context, e Event) {
		for _, t := range told {
			t(ctx, e)
		}
	}
}

// errPanic is what a call has come to that a panic of the driver has ended.
var errPanic = errors.New("the call panicked")

// lastID is that of the last wait that a Trace was told of.
var lastID atomic.Uint64

// traceBegin tells of the begin of a call, and gives its events their ID.
func (a *acquisition) traceBegin() {
	if a.locker.opts.Trace != nil {
		a.id = lastID.Add(1)
		a.trace(Event{Step: StepBegun})
	}
}

// trace tells of a call, with what e has.
func (a *acquisition) trace(e Event) {
	if a.id != 0 {
		e.ID, e.Kind, e.Name, e.Mode, e.Engine = a.id, KindWait, a.name, a.mode, a.locker.features.Engine
		a.locker.opts.Trace(a.caller, e)
	}
}

// traceEnd tells what came of a call, and of the begin of what le holds.
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
	a.trace(Event{Step: a.came, Took: took, Token: le.token})
	le.traceBegun(a.id)
}

// failedFor is what a call comes to that took so long and failed for err.
func (a *acquisition) failedFor(took time.Duration, err error) Step {
	busy := errors.Is(err, ErrBusy)
	switch {
	case busy && !a.waits:
		return StepRefused
	case busy, errors.Is(err, ErrClosed),
		a.caller.Err() != nil && errors.Is(err, context.Cause(a.caller)),
		took >= a.wait && errors.Is(err, context.DeadlineExceeded):
		return StepGaveUp
	}
	return StepFailed
}

// told is what a Trace was told of a lease.
type told struct {
	values context.Context // of the caller's
	id     uint64          // guarded by hold.mu; of its events, 0 until the begin was told
	ended  bool            // guarded by hold.mu
}

// event is one of the lease, which has the ID by then.
func (le *Lease) event(k Kind, s Step) Event {
	h := le.hold
	return Event{
		ID: le.told.id, Kind: k, Step: s,
		Name: h.req.Resource, Mode: h.req.Mode, Engine: h.locker.features.Engine, Token: le.token,
	}
}

// traceBegun tells of a lease that its caller is about to get, and of its end if it has come.
func (le *Lease) traceBegun(id uint64) {
	h := le.hold
	begun := le.event(KindHold, StepBegun)
	begun.ID = id
	h.locker.opts.Trace(le.told.values, begun)
	h.mu.Lock()
	le.told.id = id
	lost := h.cause
	h.mu.Unlock()
	if lost != nil {
		le.traceLost(lost)
	}
}

// traceLost tells of the end of a lease that its holder did not give up.
func (le *Lease) traceLost(cause error) {
	if errors.Is(cause, ErrEvicted) {
		le.traceEnd(StepEvicted, cause)
	} else {
		le.traceEnd(StepLost, cause)
	}
}

// traceEnd tells of the end of a lease, once, and not before its begin was told.
func (le *Lease) traceEnd(s Step, err error) {
	h := le.hold
	if h.locker.opts.Trace == nil {
		return
	}
	h.mu.Lock()
	told := le.told.id == 0 || le.told.ended
	le.told.ended = le.told.id != 0
	h.mu.Unlock()
	if told {
		return
	}
	e := le.event(KindHold, s)
	e.Took, e.Err = h.locker.clock.Now().Sub(le.since), err
	h.locker.opts.Trace(le.told.values, e)
}

// traceRenews tells of the begin of a renewal. Requires h.calling.
func (h *hold) traceRenews() {
	if h.locker.opts.Trace == nil {
		return
	}
	h.mu.Lock()
	if all := h.holders.leases; len(all) > 0 && all[0].told.id != 0 { // else it is being handed over
		h.renewals.told = all[0]
	}
	h.mu.Unlock()
	if le := h.renewals.told; le != nil {
		h.locker.opts.Trace(le.told.values, le.event(KindRenewal, StepBegun))
	}
}

// traceRenewal tells of the end of a renewal that was sent at sent and answered at answered,
// with so much left of the deadline and the length that it had; moot: nobody wants to know any more. Requires h.calling.
func (h *hold) traceRenewal(sent, answered boottime.Instant, left, ttl time.Duration, moot bool, err error) {
	le := h.renewals.told
	if le == nil {
		return
	}
	h.renewals.told = nil
	s := StepRenewed
	switch {
	case err != nil && moot:
		s = StepGaveUp
	case err != nil:
		s = StepFailed
	}
	e := le.event(KindRenewal, s)
	e.Took, e.Left, e.TTL, e.Err = answered.Sub(sent), max(left, 0), ttl, err
	h.locker.opts.Trace(le.told.values, e)
}
