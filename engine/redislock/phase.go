package redislock

import "time"

// A phase is how far a claim has come by the last answer about it. The table in doc.go shows
// what each event makes of each phase.
type phase uint8

const (
	idle    phase = iota // nothing was asked for, or it was refused without a place
	queued               // refused with a place: it may be granted at any time
	held                 // granted
	leaving              // its release was sent
	over                 // released, or lost
)

func (p phase) String() string {
	return [...]string{"idle", "queued", "held", "leaving", "over"}[p]
}

// state is what a claim knows of itself, guarded by its mu.
type state struct {
	phase     phase
	uncertain uncertain
	grant     grant // of held and leaving

	asked    bool   // it has made an attempt
	releases int    // counts them, and attempts that followed one whose outcome is unknown; tells late calls from new ones
	floor    uint64 // the largest fence this driver had seen before the claim could be granted
}

// uncertain is what was sent and may still be served, or served once more.
type uncertain struct {
	attempt bool // until a release leaves a mark against it
	release bool // until an attempt leaves a mark against it
}

// grant is what is known of a lease.
type grant struct {
	fence     uint64    // 0: unknown, such as that of another process
	plain     bool      // it was made by take.lua, and may be given up by give.lua
	adopted   bool      // it was made for another claim of this owner, which may have attempts under way
	refreshed time.Time // when the history was last written or extended
}

// become is the one way from a phase to another. What only the former needs is gone then.
func (s *state) become(next phase) {
	s.phase = next
	if next != held && next != leaving {
		s.grant = grant{}
	}
}

// hold notes a grant, made or renewed just now.
func (s *state) hold(fence uint64) {
	s.become(held)
	if fence != s.grant.fence {
		s.grant = grant{fence: fence}
	}
	s.grant.refreshed = time.Now()
}

// refuse notes a refusal. A grant that was brought since the attempt was sent, when the
// grant was that of before, came after it.
func (s *state) refuse(before state, place bool) {
	switch {
	case s.grant.fence != before.grant.fence:
	case place:
		s.become(queued)
	default:
		s.become(idle)
	}
}

// released notes the answer to a release, which also left a mark against what may still come.
func (s *state) released() {
	s.become(over)
	s.uncertain.attempt, s.uncertain.release = false, false
}

// mayBeServed reports whether an attempt or a release may still come.
func (s *state) mayBeServed() bool { return s.uncertain.attempt || s.uncertain.release }

// mayBeGranted reports whether it may have been granted since the last answer.
func (s *state) mayBeGranted() bool { return s.uncertain.attempt || s.phase == queued }

// knowsNothing reports whether what there is to release was granted to another claim of the owner, if anything.
func (s *state) knowsNothing() bool { return !s.asked && s.grant.fence == 0 && s.phase != over }
