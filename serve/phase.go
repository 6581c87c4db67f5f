package serve

// A phase is what a claim has at the engine, as far as this instance knows:
//
//	unknown  no answer here has shown what its owner has
//	unsure   an acquire has no answer, and only this driver's claim can use what it may have got
//	queued   it has a place in the queue
//	held     it has a lease
//	lost     its lease is over, and its owner may acquire again
//	ended    it was given up: the owner is used up
//
// Other instances serve the same claims. So any event may follow any other: an owner that was given
// up here may have been granted a lease there.
type phase uint8

const (
	unknown phase = iota
	unsure
	queued
	held
	lost
	ended
	never // in transitions: the event cannot happen, and changes nothing
)

// An event may change a phase.
type event uint8

const (
	onGrant  event = iota // the engine granted an acquire or a renewal
	onPlace               // the engine refused an acquire and left a place
	onDoubt               // an acquire had no answer, and the engine does not resume
	onLoss                // a renewal or a note found no lease
	onEnd                 // a release succeeded or found nothing, or the engine bars the owner
	onForget              // nobody has called for as long as the lease or place can have lasted
)

// transitions is the next phase, by phase and event.
var transitions = [...][onForget + 1]phase{
	unknown: {onGrant: held, onPlace: queued, onDoubt: unsure, onLoss: unknown, onEnd: ended, onForget: never},
	unsure:  {onGrant: held, onPlace: queued, onDoubt: unsure, onLoss: unsure, onEnd: ended, onForget: unknown},
	queued:  {onGrant: held, onPlace: queued, onDoubt: queued, onLoss: queued, onEnd: ended, onForget: unknown},
	held:    {onGrant: held, onPlace: queued, onDoubt: held, onLoss: lost, onEnd: ended, onForget: unknown},
	lost:    {onGrant: held, onPlace: queued, onDoubt: unsure, onLoss: lost, onEnd: ended, onForget: unknown},
	ended:   {onGrant: held, onPlace: queued, onDoubt: unsure, onLoss: ended, onEnd: ended, onForget: never},
}

// on changes the phase by transitions; nothing else does. It discards the lease, unless e is from an
// acquire or a grant. Requires claims.mu and the turn.
func (one *claim) on(e event) {
	if next := transitions[one.phase][e]; next != never {
		one.phase = next
	}
	if e > onDoubt {
		one.lease = lastGrant{}
	}
	if e != onDoubt {
		one.doubt = nil
	}
	if one.phase != queued {
		one.place = queuePlace{}
	}
}

// isKept reports whether a claim is kept until its time is over, even if nobody calls it.
func (p phase) isKept() bool { return p != unknown && p != ended }
