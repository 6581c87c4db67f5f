package explore

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// A result is the outcome of one schedule.
type result struct {
	violation string
	log       []string
	trace     uint64
	events    int
}

// hung limits one schedule by the real clock. synctest does not see some blocked goroutines, such
// as one that waits for a mutex. They would never continue.
const hung = 90 * time.Second

// play runs one schedule.
func play(t *testing.T, h *Harness, sc *scenario, p policy, states map[uint64]struct{}, verbose bool) (r result) {
	watchdog := time.AfterFunc(hung, func() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		fmt.Fprintf(os.Stderr, "explore: %s hangs, with the changes %v\n%s", sc.name, p.made(), stacks)
		os.Exit(2)
	})
	defer watchdog.Stop()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(h, p)
		w.states, w.verbose = states, verbose
		w.play(t, sc)
		r = result{violation: w.violation, log: w.log, trace: w.trace.sum(), events: w.events}
	})
	return r
}

// play runs the scenario until all clients have ended.
func (w *World) play(t *testing.T, sc *scenario) {
	connect := w.harness.New(w)
	w.kept = w.ttl(sc.kept)
	w.tick()
	var lockers []*leasehold.Locker
	var drivers []driver.Driver
	locks := func(d driver.Driver, name string, keep time.Duration) *leasehold.Locker {
		l, err := leasehold.New(d, &leasehold.Options{TTL: w.harness.TTL, Note: name, Trace: w.told.Trace, Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	open := func(name string) driver.Driver {
		p := &Process{world: w, name: name}
		w.processes = append(w.processes, p)
		d := connect(p)
		w.fair, w.recalls = d.Features().Fair, d.Features().Recalls
		drivers = append(drivers, d)
		return d
	}
	all := sc.scripts()
	w.running = len(slices.Concat(all...))
	for i, scripts := range all {
		name := fmt.Sprint("p", i+1)
		d := open(name)
		var locker *leasehold.Locker
		for _, script := range scripts {
			c := &client{world: w, process: w.processes[i], name: fmt.Sprint("c", len(w.clients)+1)}
			if its := d; locker == nil || sc.apart {
				if sc.asks {
					its = asking(d, c)
				}
				locker = locks(its, name, w.kept)
				lockers = append(lockers, locker)
			}
			c.locker = locker
			w.clients = append(w.clients, c)
			go func() {
				script(c)
				w.leaves()
			}()
		}
	}
	w.run(w.allLeft)
	w.mu.Lock()
	w.stop()
	w.mu.Unlock()
	clear(w.paused)

	gone := make(chan struct{})
	go func() {
		for _, l := range lockers {
			l.Close()
		}
		w.awaitArrival()
		w.checkFreed()
		checker := locks(open("checker"), "checker", 0)
		if w.harness.Tidy && !w.lossy.Load() && !w.untidy() {
			w.checkLeft(checker)
		}
		time.Sleep(w.harness.Settle + w.setBack)
		w.checkLeft(checker)
		w.checkTold()
		checker.Close()
		for _, d := range drivers {
			d.Close()
		}
		close(gone)
	}()
	w.run(func() bool { return waiting.Closed(gone) })
	close(w.finished)
	for _, f := range w.cleanups {
		f()
	}
	synctest.Wait()
}

// untidy reports whether something may be left until its TTL is over.
func (w *World) untidy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ledger.untidy
}

// leaves records that a client has ended.
func (w *World) leaves() {
	w.mu.Lock()
	w.running--
	w.mu.Unlock()
	select {
	case w.posted <- struct{}{}:
	default:
	}
}

func (w *World) allLeft() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running == 0
}

// features returns the engine's features, from a driver in its own bubble.
func features(t *testing.T, h Harness) (f driver.Features) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(&h, &plan{})
		d := h.New(w)(&Process{world: w, name: "p0"})
		f = d.Features()
		d.Close()
		close(w.finished)
		for _, f := range w.cleanups {
			f()
		}
	})
	return f
}
