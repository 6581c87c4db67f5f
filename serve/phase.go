package serve

// A phase is what a claim has at the engine, as far as this instance knows:
//
//	unknown  no call of its owner has had an answer here that tells
//	queued   it has a place in the queue
//	held     it has a lease
//	lost     its lease is over, and its owner may acquire again
//	ended    it was given up: the owner is used up
//
// What an event does in a phase ("-": it cannot come):
//
//	         grant  place   loss     end    forget
//	unknown  held   queued  unknown  ended  -
//	queued   held   queued  queued   ended  unknown
//	held     held   queued  lost     ended  unknown
//	lost     held   queued  lost     ended  unknown
//	ended    held   queued  ended    ended  -
//
// "grant" is the engine's yes to an acquire or a renewal, and "place" its refusal of an acquire that leaves
// a place. "loss" is that a renewal or a note found no lease. "end" is a release that was done or found
// nothing, and that the engine keeps the owner out. "forget" is that nobody has called for as long as
// lease or place can have lasted.
//
// Other instances serve the same claims, so that each event can follow each other: an owner that was given
// up here may have been granted there.
type phase uint8

const (
	unknown phase = iota
	queued
	held
	lost
	ended
)

// An event is what may change a phase.
type event uint8

const (
	onGrant event = iota
	onPlace
	onLoss
	onEnd
	onForget
)

// transitions is the table above.
var transitions = [...][onForget + 1]phase{
	unknown: {held, queued, unknown, ended, unknown},
	queued:  {held, queued, queued, ended, unknown},
	held:    {held, queued, lost, ended, unknown},
	lost:    {held, queued, lost, ended, unknown},
	ended:   {held, queued, ended, ended, ended},
}

// on changes the phase as the table says. Nothing else does. Of the lease nothing is known any more, unless
// the engine has just granted it, or refused another. Requires claims.mu and the turn.
func (one *claim) on(e event) {
	if one.phase = transitions[one.phase][e]; e != onGrant && e != onPlace {
		one.lease = lastGrant{}
	}
}

// isKept reports whether a claim is kept until its time is over though nobody calls it.
func (p phase) isKept() bool { return p == queued || p == held || p == lost }
