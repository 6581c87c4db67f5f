package explore

import (
	"hash/maphash"
	"time"
)

// A kind is the kind of an event.
type kind uint8

const (
	call    kind = iota // a client makes its next call
	request             // a message to the engine
	answer              // a message with the engine's answer
	push                // an unasked message of the engine
)

// An event is something that can happen next in a schedule.
type event struct {
	kind    kind
	process *Process
	label   string // unique in the schedule, and the same in each run of it
	touches string // part of the engine that a request concerns
	line    *Line  // nil for calls
	again   bool   // it is a copy of a request
	beat    bool   // no action is chosen for it or its answer
	dials   bool   // the first message on its line, and nothing is sent before its answer
	happen  func()
	repeat  func() // for a request: serves it without an answer
	timing
}

// A timing says when an event happens.
type timing struct {
	posted  time.Time
	due     time.Time
	behind  bool   // it waits until an event on which it depends has happened
	decided bool   // its action was chosen
	after   func() // called after the event
}

// way returns the direction on the line: 0 to the engine, 1 from it.
func (e *event) way() int {
	if e.kind == answer || e.kind == push {
		return 1
	}
	return 0
}

// dependsOn reports whether the order of the two events can matter.
func (e *event) dependsOn(f *event) bool {
	if e.process == f.process && !e.again {
		return true
	}
	return e.kind == request && f.kind == request && (e.touches == f.touches || e.touches == "" || f.touches == "")
}

var seed = maphash.MakeSeed()

// A trace has a hash of what happened to each object. Schedules that differ only in the order of
// independent events have the same trace.
type trace map[string]uint64

func (tr trace) add(object, what string, at time.Duration) {
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, tr[object])
	maphash.WriteComparable(&h, int64(at/(50*time.Millisecond)))
	h.WriteString(what)
	tr[object] = h.Sum64()
}

func (tr trace) sum() (sum uint64) {
	for object, h := range tr {
		sum ^= maphash.Comparable(seed, struct {
			object string
			h      uint64
		}{object, h})
	}
	return sum
}

func hashOf(s string) uint64 { return maphash.String(seed, s) }
