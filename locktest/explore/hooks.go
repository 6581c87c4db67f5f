package explore

import (
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// hooks are what the harness has registered about the engine.
type hooks struct {
	flush    func()    // nil: the engine cannot lose its data
	restarts []restart // of parts of the engine
	forces   []force
	setClock func(time.Duration)                // nil: the engine's clock cannot be set
	inspect  func(resource string) driver.State // nil: the engine's state cannot be seen
	cleanups []func()
}

// OnFlush registers how the engine loses all its data, like one that restarts without them. Fences
// must keep growing.
func (w *World) OnFlush(flush func()) { w.flush = flush }

// OnRestart registers how a part of the engine restarts without its data, which nobody may notice.
// It also discards what Links with that name have seen.
func (w *World) OnRestart(name string, f func()) { w.restarts = append(w.restarts, restart{name, f}) }

// A restart makes a part of the engine lose its data.
type restart struct {
	name   string
	forget func()
}

// OnForce registers what somebody, such as an operator, may do to the engine by force. If that ends
// leases, earlier holders may overlap with later ones.
func (w *World) OnForce(what string, endsLeases bool, f func()) {
	w.forces = append(w.forces, force{what, endsLeases, f})
}

// A force is an act of an operator on the engine.
type force struct {
	what string
	ends bool
	use  func()
}

// OnClock registers how to set the engine's clock ahead of the bubble's by an offset, which may be
// negative. The explorer also calls set whenever time has passed, so that the engine's clock
// advances.
func (w *World) OnClock(set func(offset time.Duration)) { w.setClock = set }

// OnState registers how to see the leases and places of a resource without the network, for engines
// that are not behind Link. The explorer then checks two more promises. No holder believes in its
// lease for longer than the engine keeps it, and a fair engine grants it to the first waiter.
func (w *World) OnState(inspect func(resource string) driver.State) { w.inspect = inspect }

// Cleanup registers a function to be called in the bubble at the end of the schedule.
func (w *World) Cleanup(f func()) { w.cleanups = append(w.cleanups, f) }
