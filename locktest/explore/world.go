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

// hop is how long a message is under way in the plain order.
const hop = time.Millisecond

// A World is one schedule: an engine, the processes that use it, and the network between them. What is
// not guarded by mu is of the goroutine that runs the schedule alone.
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

// traffic is what is under way.
type traffic struct {
	fresh    []*event       // guarded by mu; not put in order yet
	ordinals map[string]int // guarded by mu
	posted   chan struct{}  // capacity 1
	pending  []*event
	paused   map[*Process]time.Time
	quiet    atomic.Bool // no message is under way
}

// A crowd is who uses the engine.
type crowd struct {
	processes []*Process
	clients   []*client
	running   int           // guarded by mu; clients
	calm      bool          // guarded by mu; no more changes, as only what is left over is waited for
	over      bool          // guarded by mu; no more changes, and no more calls
	stopped   chan struct{} // closed when the clients are to come to their end
	finished  chan struct{} // closed when nothing goes on any more
}

// checks are what was seen of promises.
type checks struct {
	violation string // guarded by mu
	ledger    ledger // guarded by mu
	told      locktest.Pairs
	seen      map[string]driver.State // of the engine, after the last event
	fair      bool                    // the engine is
	recalls   bool                    // the engine tells holders at once of those who wait
	kept      time.Duration           // for how long Lockers keep what was released
}

// A journal is what there is to tell of the schedule.
type journal struct {
	log     []string // guarded by mu; kept if verbose
	verbose bool
	trace   trace
	states  map[uint64]struct{} // may be nil
	events  int
}

// damage is what the changes have done so far.
type damage struct {
	changed time.Time     // when the last one was made
	offset  time.Duration // of the engine's clock
	faulty  bool          // one was made to more than the order
	slow    atomic.Bool   // a message was held, or a process paused
	givenUp bool          // a caller gave up
	lossy   atomic.Bool   // a message or more was lost, or the engine disturbed
	flushed bool          // the engine forgot
	setBack time.Duration // how much its clock was, in all
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

// now is how long the schedule runs.
func (w *World) now() time.Duration { return time.Since(w.start) }

// tell keeps a line for people.
func (w *World) tell(format string, args ...any) {
	if !w.verbose {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%8.3f  ", w.now().Seconds())+fmt.Sprintf(format, args...))
}

// noteState counts the state that everything is in, as far as it is known.
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

// coarse is d in eighths of a TTL.
func (w *World) coarse(d time.Duration) int { return int(max(d, 0) * 8 / w.harness.TTL) }
