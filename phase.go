package leasehold

// A phase is what has become of a hold:
//
//	asking   its claim contends; it has no lease
//	held     leases have it
//	handing  no lease has it: it is on its way to the next waiter of the process
//	leaving  it is released at the engine, or was
//	lost     it ended without that
//
// A hold that is leaving may have been released or not: Release tells which, and may be
// repeated when it does not know. One that is lost is released too, by its last lease, since
// the engine may not know that it is; that changes nothing for anybody.
type phase uint8

const (
	asking phase = iota
	held
	handing
	leaving
	lost
	never // in transitions: the event cannot come, and changes nothing
)

// An event is what may change a phase.
type event uint8

const (
	onGrant    event = iota // the engine's yes
	onHandOver              // the Release of the last lease while a waiter of this process can take the hold
	onTake                  // that waiter runs
	onRelease               // any other Release of the last lease; or nobody wants the hold, or what was handed to a waiter will not do
	onLoss                  // by the deadline, by the engine or by MaxHold
)

// transitions is what an event does in a phase.
var transitions = [...][onLoss + 1]phase{
	asking:  {onGrant: held, onHandOver: never, onTake: never, onRelease: leaving, onLoss: lost},
	held:    {onGrant: never, onHandOver: handing, onTake: never, onRelease: leaving, onLoss: lost},
	handing: {onGrant: never, onHandOver: never, onTake: held, onRelease: leaving, onLoss: lost},
	leaving: {onGrant: never, onHandOver: leaving, onTake: leaving, onRelease: leaving, onLoss: leaving},
	lost:    {onGrant: lost, onHandOver: lost, onTake: lost, onRelease: lost, onLoss: lost},
}

// on changes the phase as transitions says, and reports whether it is another one now. Nothing
// else changes a phase. Requires h.mu.
func (h *hold) on(e event) (changed bool) {
	next := transitions[h.phase][e]
	if next == never || next == h.phase {
		return false
	}
	h.phase = next
	return true
}

// over reports whether nobody may act on the hold any more. Requires h.mu.
func (h *hold) over() bool { return h.phase == leaving || h.phase == lost }
