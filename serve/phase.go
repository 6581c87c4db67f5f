package serve

// A phase is what a claim has at the engine, as far as this instance knows:
//
//	unknown  no call of its owner has had an answer here that tells
//	queued   it has a place in the queue
//	held     it has a lease
//	lost     its lease is over, and its owner may acquire again
//	ended    it was given up: the owner is used up
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
	never // in transitions: the event cannot come, and changes nothing
)

// An event is what may change a phase.
type event uint8

const (
	onGrant  event = iota // the engine's yes to an acquire or a renewal
	onPlace               // its refusal of an acquire that leaves a place
	onLoss                // a renewal or a note found no lease
	onEnd                 // a release that was done or found nothing, or the engine keeps the owner out
	onForget              // nobody has called for as long as lease or place can have lasted
)

// transitions is what an event does in a phase.
var transitions = [...][onForget + 1]phase{
	unknown: {onGrant: held, onPlace: queued, onLoss: unknown, onEnd: ended, onForget: never},
	queued:  {onGrant: held, onPlace: queued, onLoss: queued, onEnd: ended, onForget: unknown},
	held:    {onGrant: held, onPlace: queued, onLoss: lost, onEnd: ended, onForget: unknown},
	lost:    {onGrant: held, onPlace: queued, onLoss: lost, onEnd: ended, onForget: unknown},
	ended:   {onGrant: held, onPlace: queued, onLoss: ended, onEnd: ended, onForget: never},
}

// on changes the phase as transitions says. Nothing else does. Of the lease nothing is known any more, unless
// the engine has just granted it, or refused another. Requires claims.mu and the turn.
func (one *claim) on(e event) {
	if next := transitions[one.phase][e]; next != never {
		one.phase = next
	}
	if e != onGrant && e != onPlace {
		one.lease = lastGrant{}
	}
	if one.phase != queued {
		one.place = queuePlace{}
	}
}

// isKept reports whether a claim is kept until its time is over though nobody calls it.
func (p phase) isKept() bool { return p == queued || p == held || p == lost }
