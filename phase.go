package leasehold

// A phase is what has become of a hold:
//
//	asking   its claim contends; it has no lease
//	held     leases have it
//	handing  no lease has it: it is on its way to the next waiter of the process
//	leaving  it is released at the engine, or was
//	lost     it ended without that
//
// What an event does in a phase ("-": it cannot come):
//
//	         grant  handOver  take     release  loss
//	asking   held   -         -        leaving  lost
//	held     -      handing   -        leaving  lost
//	handing  -      -         held     leaving  lost
//	leaving  -      leaving   leaving  leaving  leaving
//	lost     lost   lost      lost     lost     lost
//
// "grant" is the engine's yes. "handOver" is the Release of the last lease while a waiter of this
// process can take the hold, and "take" is that the waiter runs. "release" is any other Release
// of the last lease, and that nobody wants the hold: a contender gave up, or what was handed to
// a waiter will not do. "loss" is told by the deadline, by the engine or by MaxHold.
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
)

// An event is what may change a phase.
type event uint8

const (
	onGrant event = iota
	onHandOver
	onTake
	onRelease
	onLoss
)

// transitions is the table above.
var transitions = [...][onLoss + 1]phase{
	asking:  {held, asking, asking, leaving, lost},
	held:    {held, handing, held, leaving, lost},
	handing: {handing, handing, held, leaving, lost},
	leaving: {leaving, leaving, leaving, leaving, leaving},
	lost:    {lost, lost, lost, lost, lost},
}

// on changes the phase as the table says, and reports whether it is another one now. Nothing
// else changes a phase. Requires h.mu.
func (h *hold) on(e event) (changed bool) {
	was := h.phase
	h.phase = transitions[was][e]
	return h.phase != was
}

// over reports whether nobody may act on the hold any more. Requires h.mu.
func (h *hold) over() bool { return h.phase == leaving || h.phase == lost }
