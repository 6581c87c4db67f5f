package leasehold

// A phase is the state of a hold:
//
//	asking   its claim contends; it has no lease
//	held     it has leases
//	handing  it has no lease: it is being handed to the next waiter of the process
//	kept     it has no lease: the next call of the process may take it, see Options.Keep
//	leaving  it is being released at the engine, or was
//	lost     it ended without a release
//
// A leaving hold may have been released or not. Release reports which, and may be repeated if the
// outcome is unknown. The release of the last lease of a lost hold also calls the engine, because
// the engine may still have the grant. That changes nothing for other clients.
type phase uint8

const (
	asking phase = iota
	held
	handing
	kept
	leaving
	lost
	never // in transitions: the event cannot happen, and changes nothing
)

// An event may change the phase of a hold.
type event uint8

const (
	onGrant    event = iota // the engine granted the lease
	onHandOver              // the Release of the last lease while a waiter of this process can take the hold
	onKeep                  // the Release of the last lease if the hold may be kept
	onTake                  // the waiter, or the next call, takes over
	onRelease               // any other Release of the last lease; or the acquisition failed, or the hold is not or no longer fit to be taken
	onLoss                  // the deadline passed, the engine reported a loss, or MaxHold was reached
)

// transitions gives the next phase for each phase and event.
var transitions = [...][onLoss + 1]phase{
	asking:  {onGrant: held, onHandOver: never, onKeep: never, onTake: never, onRelease: leaving, onLoss: lost},
	held:    {onGrant: never, onHandOver: handing, onKeep: kept, onTake: never, onRelease: leaving, onLoss: lost},
	handing: {onGrant: never, onHandOver: never, onKeep: never, onTake: held, onRelease: leaving, onLoss: lost},
	kept:    {onGrant: never, onHandOver: never, onKeep: never, onTake: held, onRelease: leaving, onLoss: lost},
	leaving: {onGrant: never, onHandOver: leaving, onKeep: leaving, onTake: leaving, onRelease: leaving, onLoss: leaving},
	lost:    {onGrant: lost, onHandOver: lost, onKeep: lost, onTake: lost, onRelease: lost, onLoss: lost},
}

// transition changes the phase as transitions says, and reports whether it has changed. Nothing
// else changes a phase. Requires h.mu.
func (h *hold) transition(e event) (changed bool) {
	next := transitions[h.phase][e]
	if next == never || next == h.phase {
		return false
	}
	h.phase = next
	return true
}

// over reports whether the hold may no longer be acted on. Requires h.mu.
func (h *hold) over() bool { return h.phase == leaving || h.phase == lost }
