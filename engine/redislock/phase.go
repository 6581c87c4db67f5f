package redislock

import "time"

// A phase is how far a claim has come, by the last answer about it. The table in doc.go has the
// next phase for each event.
type phase uint8

const (
	idle    phase = iota // no attempt was made, or it was refused without a place
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
	grant     grant // in phases held and leaving

	gone     bool   // in phase over: it was released, not lost
	asked    bool   // it has made an attempt
	releases int    // counts releases, and attempts that follow an uncertain one; late calls have lower numbers
	floor    uint64 // the largest fence this driver had seen before the claim could be granted
}

// uncertain is which calls were sent and may still be served, for the first time or once more.
type uncertain struct {
	attempt bool // until a release leaves a mark against it
	release bool // until an attempt leaves a mark against it
}

// grant is what is known of a lease.
type grant struct {
	fence     uint64    // the fence; 0: unknown, as for a grant to another process
	plain     bool      // take.lua made it, so give.lua may end it
	adopted   bool      // it was made to another claim of this owner, which may have attempts in flight
	refreshed time.Time // when the history was last written or extended
}

// become changes the phase. Nothing else does. It clears what only the former phase needs.
func (s *state) become(next phase) {
	s.phase, s.gone = next, false
	if next != held && next != leaving {
		s.grant = grant{}
	}
}

// hold records a grant, made or renewed just now.
func (s *state) hold(fence uint64) {
	s.become(held)
	if fence != s.grant.fence {
		s.grant = grant{fence: fence}
	}
	s.grant.refreshed = time.Now()
}

// refuse records the refusal of an attempt that was sent in state before. A grant that was brought
// since then came after the refusal, and stays.
func (s *state) refuse(before state, place bool) {
	switch {
	case s.grant.fence != before.grant.fence:
	case place:
		s.become(queued)
	default:
		s.become(idle)
	}
}

// released records the answer to a release, which gave something up or found nothing. The release
// also left a mark against calls that may still arrive.
func (s *state) released(given bool) {
	s.become(over)
	s.gone = given
	s.uncertain.attempt, s.uncertain.release = false, false
}

// mayBeServed reports whether an attempt or a release may still be served.
func (s *state) mayBeServed() bool { return s.uncertain.attempt || s.uncertain.release }

// mayBeGranted reports whether the lock may have been granted since the last answer.
func (s *state) mayBeGranted() bool { return s.uncertain.attempt || s.phase == queued }

// isGone reports whether a release has given up all that this claim has, so that another one would
// concern another claim of the owner.
func (s *state) isGone() bool { return s.gone && !s.mayBeServed() }

// knowsNothing reports whether this claim has nothing to release itself. Only a grant to another
// claim of the owner can be released then.
func (s *state) knowsNothing() bool { return !s.asked && s.grant.fence == 0 && s.phase != over }
