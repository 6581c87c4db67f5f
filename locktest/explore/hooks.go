package explore

import (
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// hooks are what the harness has told of the engine.
type hooks struct {
	flush    func()    // nil: the engine cannot forget
	restarts []restart // of parts of the engine
	forces   []force
	setClock func(time.Duration)                // nil: the engine's clock cannot be set
	inspect  func(resource string) driver.State // nil: what the engine has is not known
	cleanups []func()
}

// OnFlush tells the explorer how the engine loses all that it has, as one that restarts without
// its data. Fences must go on growing.
func (w *World) OnFlush(flush func()) { w.flush = flush }

// OnRestart tells the explorer how a part of the engine restarts without what it had, of which
// nobody may notice. What Links call by that name have seen of it is over then.
func (w *World) OnRestart(name string, f func()) { w.restarts = append(w.restarts, restart{name, f}) }

// A restart is how a part of the engine forgets.
type restart struct {
	name   string
	forget func()
}

// OnForce tells the explorer what somebody may do to the engine by force, such as an operator. If it ends leases,
// those who held before may overlap with those who hold since.
func (w *World) OnForce(what string, endsLeases bool, f func()) {
	w.forces = append(w.forces, force{what, endsLeases, f})
}

// A force is what somebody may do to the engine.
type force struct {
	what string
	ends bool
	use  func()
}

// OnClock tells the explorer how to set the engine's clock ahead of the bubble's by an offset,
// which may be negative, and how the engine's clock goes on: set is called whenever time has passed.
func (w *World) OnClock(set func(offset time.Duration)) { w.setClock = set }

// OnState tells the explorer how to see who has leases and places of a resource, without the network
// between, for engines that are not behind Link: nobody may believe for longer than the engine keeps its
// lease, and a fair one is to give it to who waits first.
func (w *World) OnState(inspect func(resource string) driver.State) { w.inspect = inspect }

// Cleanup has f called in the bubble at the end of the schedule.
func (w *World) Cleanup(f func()) { w.cleanups = append(w.cleanups, f) }
