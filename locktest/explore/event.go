package explore

import (
	"hash/maphash"
	"time"
)

// A kind is what an event is of.
type kind uint8

const (
	call    kind = iota // a client makes its next call
	request             // a message to the engine
	answer              // the engine's
	push                // what the engine says unasked
)

// An event is what waits for its turn to happen.
type event struct {
	kind    kind
	process *Process
	label   string // unique in the schedule, and the same whenever the schedule is run
	touches string // of the engine, for a request
	line    *Line  // nil for calls
	again   bool   // it is a copy
	beat    bool   // nothing is chosen for it, nor for its answer
	dials   bool   // nothing else is sent over its line before
	happen  func()
	repeat  func() // of a request: has it served without an answer
	timing
}

// A timing says when an event happens.
type timing struct {
	posted  time.Time
	due     time.Time
	behind  bool   // waits until something has happened on which it depends
	decided bool   // what to do with it was chosen
	after   func() // runs once it has happened
}

// way is 0 for what is sent to the engine, and 1 for what comes back.
func (e *event) way() int {
	if e.kind == answer || e.kind == push {
		return 1
	}
	return 0
}

// dependsOn reports whether it can matter which of both happens first.
func (e *event) dependsOn(f *event) bool {
	if e.process == f.process && !e.again {
		return true
	}
	return e.kind == request && f.kind == request && (e.touches == f.touches || e.touches == "" || f.touches == "")
}

var seed = maphash.MakeSeed()

// A trace is what has happened to each object, for itself: orders that differ only in what is
// independent have the same.
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
