// Package explore tries the orders in which messages between processes and a lock engine may be
// late, lost or duplicated, instead of waiting for them to happen.
//
// It runs real drivers and the real core of several processes in a bubble of testing/synctest. It
// is the network between them and the engine. When everything in the bubble is blocked, it chooses
// what happens next. In the plain order each message arrives a millisecond after it was sent.
//
// A change is one choice that differs. A message is held, lost or delivered twice, a process is
// paused or dies, a caller gives up, or the engine loses its data or has its clock set. A schedule
// is a list of changes, each at a named message, so that it can be replayed.
//
// Run tries all schedules with few changes, then random ones with more. After each event it checks
// what every lock promises; see docs/verification.md. It shrinks a schedule that breaks a promise
// to the changes it needs, and prints it as a list of events with the flag that replays it.
package explore

import (
	"cmp"
	"flag"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

var (
	flagFor     = flag.Duration("explore.for", 0, "how long each explore.Run goes on at random")
	flagChanges = flag.Int("explore.changes", 0, "all schedules of so many changes are gone through")
	flagSeed    = flag.Uint64("explore.seed", 0, "of the random schedules; 0: a new one")
	flagReplay  = flag.String("explore.replay", "", "the schedule to run, as it was printed")
	flagOnly    = flag.String("explore.scenario", "", "the one scenario to explore")
	flagFigures = flag.String("explore.figures", "", "the page that sums up the figures, beside the folder with those of each scenario")
)

// A Harness describes what to explore.
type Harness struct {
	// Name is the engine's name, for the figures.
	Name string
	// New makes an empty engine and returns a function that connects a process to it. It is called
	// for each schedule, in its bubble. What it starts must end when the drivers are closed, or by
	// World.Cleanup.
	New func(w *World) (connect func(p *Process) driver.Driver)
	// TTL is the length of leases; 0: 2 seconds.
	TTL time.Duration
	// Settle is how long the engine may keep anything of processes that are gone; 0: TTL + 5 s.
	Settle time.Duration
	// Tidy means that an attempt which arrives after its claim was given up leaves nothing behind.
	// Unless a message was lost or a process died, nothing then remains for a TTL.
	Tidy bool
	// Changes is the number of changes up to which all schedules are tried; 0: 1, negative: none.
	Changes int
	// For is how long random schedules are tried; 0: 2 seconds. With -short it is a quarter of that,
	// because the search takes a processor.
	For time.Duration
	// Known are schedules that once broke a promise, as printed. They are tried first.
	Known []string
	// Scenarios are the names of the scenarios to explore; none: all that the engine has the
	// features for.
	Scenarios []string
}

// Run explores the engine, and fails t with the first schedule that breaks a promise. It must not
// be called from a bubble.
func Run(t *testing.T, h Harness) {
	h = h.withDefaults()
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // little is kept from one schedule to the next
	if *flagReplay != "" {
		replay(t, h, *flagReplay)
		return
	}
	for _, schedule := range h.Known {
		t.Run("Known", func(t *testing.T) { replay(t, h, schedule) })
	}
	for _, sc := range h.scenarios(t) {
		t.Run(sc.name, func(t *testing.T) { newSearch(t, h, sc).search() })
	}
}

func (h Harness) withDefaults() Harness {
	h.TTL = cmp.Or(h.TTL, 2*time.Second)
	h.Settle = cmp.Or(h.Settle, h.TTL+5*time.Second)
	h.Changes = cmp.Or(*flagChanges, h.Changes, 1)
	h.For = cmp.Or(h.For, 2*time.Second)
	if testing.Short() {
		h.For /= 4
	}
	h.For = cmp.Or(*flagFor, h.For)
	return h
}

// scenarios returns the requested scenarios that the engine has the features for.
func (h Harness) scenarios(t *testing.T) (some []scenario) {
	features := features(t, h)
	for _, sc := range scenarios {
		switch {
		case *flagOnly != "" && sc.name != *flagOnly, len(h.Scenarios) > 0 && !slices.Contains(h.Scenarios, sc.name):
		case !sc.fits(features):
			t.Logf("%s: the engine does not have what it needs", sc.name)
		default:
			some = append(some, sc)
		}
	}
	return some
}
