package explore

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// hop is how long a message takes in the plain order.
const hop = time.Millisecond

// A World is one schedule: an engine, the processes that use it, and the network between them.
// Fields not guarded by mu belong to the goroutine that runs the schedule.
type World struct {
	harness *Harness
	policy  policy
	start   time.Time

	hooks
	mu sync.Mutex
	traffic
	crowd
	checks
	journal
	damage
}

// traffic has the messages in flight.
type traffic struct {
	fresh    []*event       // guarded by mu; those that are not ordered yet
	ordinals map[string]int // guarded by mu
	posted   chan struct{}  // capacity 1
	pending  []*event
	paused   map[*Process]time.Time
	quiet    atomic.Bool // no message is in flight
}

// A crowd is the users of the engine.
type crowd struct {
	processes []*Process
	clients   []*client
	running   int           // guarded by mu; number of running clients
	calm      bool          // guarded by mu; no more changes, because only leftovers are waited for
	over      bool          // guarded by mu; no more changes and no more calls
	stopped   chan struct{} // closed when the clients must end
	finished  chan struct{} // closed when the schedule is over
}

// checks have what was observed about promises.
type checks struct {
	violation string // guarded by mu
	ledger    ledger // guarded by mu
	told      locktest.Pairs
	seen      map[string]driver.State // the engine's state after the last event
	fair      bool                    // the engine is fair
	recalls   bool                    // the engine notifies holders of waiters at once
	kept      time.Duration           // Options.Keep of the Lockers
}

// A journal holds the log of the schedule, and the states it passed.
type journal struct {
	log     []string // guarded by mu; written if verbose
	verbose bool
	trace   trace
	states  map[uint64]struct{} // may be nil
	events  int
}

// damage says what the changes have done so far.
type damage struct {
	changed time.Time     // time of the last change
	offset  time.Duration // offset of the engine's clock
	faulty  bool          // a change has affected more than the order
	slow    atomic.Bool   // a message was held, or a process was paused
	givenUp bool          // a caller gave up
	lossy   atomic.Bool   // a message was lost, or the engine was disturbed
	flushed bool          // the engine has lost its data
	setBack time.Duration // by how much its clock was set back in total
}

func newWorld(h *Harness, p policy) *World {
	return &World{
		harness: h, policy: p, start: time.Now(),
		traffic: traffic{ordinals: make(map[string]int), posted: make(chan struct{}, 1), paused: make(map[*Process]time.Time)},
		crowd:   crowd{stopped: make(chan struct{}), finished: make(chan struct{})},
		checks:  checks{ledger: newLedger(), seen: make(map[string]driver.State)},
		journal: journal{trace: make(trace)},
	}
}

// now returns the time since the beginning of the schedule.
func (w *World) now() time.Duration { return time.Since(w.start) }

// tell adds a line to the log.
func (w *World) tell(format string, args ...any) {
	if !w.verbose {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%8.3f  ", w.now().Seconds())+fmt.Sprintf(format, args...))
}

// noteState counts the state of the world, as far as it is known.
func (w *World) noteState() {
	if w.states == nil {
		return
	}
	var b strings.Builder
	for _, e := range w.pending {
		b.WriteString(strings.TrimRight(e.label, " 0123456789"))
		fmt.Fprint(&b, e.behind, w.coarse(time.Until(e.due)))
	}
	w.mu.Lock()
	w.ledger.view(&b, w.coarse)
	w.mu.Unlock()
	w.viewState(&b)
	w.states[hashOf(b.String())] = struct{}{}
}

// coarse returns d in eighths of a TTL.
func (w *World) coarse(d time.Duration) int { return int(max(d, 0) * 8 / w.harness.TTL) }
