package explore

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

// hop is how long a message is under way in the plain order.
const hop = time.Millisecond

// A World is one schedule: an engine, the processes that use it, and the network between them.
type World struct {
	harness *Harness
	policy  policy
	start   time.Time

	flush    func()              // nil: the engine cannot forget
	setClock func(time.Duration) // nil: the engine's clock cannot be set
	view     func() string       // nil: what the engine has is not known
	cleanups []func()

	mu        sync.Mutex
	fresh     []*event       // guarded by mu; not put in order yet
	ordinals  map[string]int // guarded by mu
	processes []*Process
	clients   []*client
	posted    chan struct{} // capacity 1
	stopped   chan struct{} // closed when the clients are to come to their end
	finished  chan struct{} // closed when nothing goes on any more
	over      bool          // guarded by mu; no more changes
	running   int           // guarded by mu; clients
	violation string        // guarded by mu
	ledger    ledger        // guarded by mu
	log       []string      // guarded by mu; kept if verbose
	verbose   bool

	// Of the goroutine that runs the schedule alone.
	pending []*event
	paused  map[*Process]time.Time
	trace   trace
	states  map[uint64]struct{} // may be nil
	changed time.Time           // when the last change was made
	offset  time.Duration       // of the engine's clock
	events  int

	faulty  bool          // a change was made to more than the order
	flushed bool          // the engine forgot
	setBack time.Duration // how much its clock was, in all
}

// OnFlush tells the explorer how the engine loses all that it has, as one that restarts without
// its data. Fences must go on growing.
func (w *World) OnFlush(flush func()) { w.flush = flush }

// OnClock tells the explorer how to set the engine's clock ahead of the bubble's by an offset,
// which may be negative, and how the engine's clock goes on: set is called whenever time has passed.
func (w *World) OnClock(set func(offset time.Duration)) { w.setClock = set }

// OnView tells the explorer how to see what the engine has, to count the states that it was in.
func (w *World) OnView(view func() string) { w.view = view }

// Cleanup has f called in the bubble at the end of the schedule.
func (w *World) Cleanup(f func()) { w.cleanups = append(w.cleanups, f) }

func newWorld(h *Harness, p policy) *World {
	return &World{
		harness: h, policy: p, start: time.Now(), ordinals: make(map[string]int), posted: make(chan struct{}, 1),
		stopped: make(chan struct{}), finished: make(chan struct{}), paused: make(map[*Process]time.Time), trace: make(trace), ledger: newLedger(),
	}
}

// post has the network take e.
func (w *World) post(e *event) {
	w.mu.Lock()
	w.fresh = append(w.fresh, e)
	w.mu.Unlock()
	select {
	case w.posted <- struct{}{}:
	default:
	}
}

// collect puts what was posted since the last time at the end of what is pending, in an order
// that does not depend on how goroutines ran, and gives it its name.
func (w *World) collect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.fresh, func(a, b *event) int { return cmp.Compare(a.label, b.label) })
	for _, e := range w.fresh {
		if e.kind != answer {
			w.ordinals[e.label]++
			e.label = fmt.Sprint(e.label, " ", w.ordinals[e.label])
		}
		w.pending = append(w.pending, e)
	}
	clear(w.fresh)
	w.fresh = w.fresh[:0]
}

// run goes on until done.
func (w *World) run(done func() bool) {
	for {
		synctest.Wait()
		w.collect()
		w.limitWaiting()
		if done() {
			return
		}
		if i := w.next(); i >= 0 {
			w.take(i)
			continue
		}
		if !w.releaseLate() {
			w.idle()
		}
	}
}

// next is the first of the pending that can happen now; -1: none can.
func (w *World) next() int {
	now := time.Now()
	for i, e := range w.pending {
		if !e.behind && !e.due.After(now) && !w.paused[e.process].After(now) && !w.overtakes(i) {
			return i
		}
	}
	return -1
}

// overtakes reports whether something stands before pending[i] on its line.
func (w *World) overtakes(i int) bool {
	e := w.pending[i]
	if e.line == nil {
		return false
	}
	way := func(k kind) bool { return k == request }
	return slices.ContainsFunc(w.pending[:i], func(f *event) bool { return f.line == e.line && way(f.kind) == way(e.kind) })
}

// take has pending[i] happen, or what is chosen instead.
func (w *World) take(i int) {
	e := w.pending[i]
	if w.dropsDead(e) {
		w.remove(e)
		return
	}
	if !e.decided {
		e.decided = true
		if action := w.choose(e); action != pass {
			w.change(e, action)
			return
		}
	}
	w.remove(e)
	w.happens(e)
}

// dropsDead reports whether there is no way for e.
func (w *World) dropsDead(e *event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.kind == call {
		return false
	}
	return e.kind != request && e.line.down
}

func (w *World) remove(e *event) {
	i := slices.Index(w.pending, e)
	w.pending = slices.Delete(w.pending, i, i+1)
}

// happens has e happen, and lets go what was held behind it.
func (w *World) happens(e *event) {
	w.events++
	w.tell("%s", e.label)
	at := w.now()
	w.trace.add(e.process.name, e.label, at)
	if e.kind == request {
		w.trace.add("engine "+e.touches, e.label, at)
	}
	time.Sleep(hop)
	w.tick()
	e.happen()
	synctest.Wait()
	for _, f := range w.pending {
		if f.behind && f.dependsOn(e) {
			f.behind = false
		}
	}
	if e.after != nil {
		e.after()
	}
	w.noteState()
}

// serve has the engine serve a request, and its answer set off.
func (w *World) serve(e *event, serve func() any, arrive func(any)) {
	go func() {
		a := serve()
		w.tell("    the engine: %v", shown{a})
		if arrive == nil {
			return
		}
		w.post(&event{kind: answer, process: e.process, label: e.label + " answer", line: e.line, happen: func() { arrive(a) }})
	}()
}

// releaseLate lets go what waits behind others that do not come.
func (w *World) releaseLate() (some bool) {
	for _, e := range w.pending {
		some = some || e.behind
		e.behind = false
	}
	return some
}

// idle lets time pass until something is sent or is due.
func (w *World) idle() {
	timer := time.NewTimer(time.Until(w.nextDue()))
	defer timer.Stop()
	select {
	case <-w.posted:
	case <-timer.C:
	}
	w.tick()
}

func (w *World) nextDue() time.Time {
	due := time.Now().Add(time.Second)
	for _, e := range w.pending {
		for _, t := range []time.Time{e.due, w.paused[e.process]} {
			if t.After(time.Now()) && t.Before(due) {
				due = t
			}
		}
	}
	return due
}

// tick tells the engine's clock that time has passed.
func (w *World) tick() {
	if w.setClock != nil {
		w.setClock(w.offset)
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

// noteState counts the state that everything is in, as far as it can be told.
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
	if w.view != nil {
		b.WriteString(w.view())
	}
	w.states[hashOf(b.String())] = struct{}{}
}

// coarse is d in eighths of a TTL.
func (w *World) coarse(d time.Duration) int { return int(max(d, 0) * 8 / w.harness.TTL) }
