package explore

import (
	"cmp"
	"fmt"
	"slices"
	"testing/synctest"
	"time"
)

// post gives e to the network.
func (w *World) post(e *event) {
	e.posted = time.Now()
	w.mu.Lock()
	w.fresh = append(w.fresh, e)
	w.mu.Unlock()
	select {
	case w.posted <- struct{}{}:
	default:
	}
}

// collect appends what was posted since the last call to pending, and names it. The order does not
// depend on the scheduling of goroutines, and keeps the order of each line.
func (w *World) collect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := make(map[*Line][2]string) // labels of the first message in each direction
	for _, e := range w.fresh {
		if at := first[e.line]; e.line != nil && (at[e.way()] == "" || e.label < at[e.way()]) {
			at[e.way()] = e.label
			first[e.line] = at
		}
	}
	key := func(e *event) string {
		if e.line == nil {
			return e.label
		}
		return first[e.line][e.way()]
	}
	slices.SortStableFunc(w.fresh, func(a, b *event) int { return cmp.Compare(key(a), key(b)) })
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

// run lets events happen until done returns true.
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

// next returns the index of the first pending event that can happen now, or -1.
func (w *World) next() int {
	now := time.Now()
	for i, e := range w.pending {
		if !e.behind && !e.due.After(now) && !w.paused[e.process].After(now) && !w.overtakes(i) {
			return i
		}
	}
	return -1
}

// overtakes reports whether an earlier event on its line is still pending before pending[i].
func (w *World) overtakes(i int) bool {
	e := w.pending[i]
	if e.line == nil {
		return false
	}
	return slices.ContainsFunc(w.pending[:i], func(f *event) bool { return f.line == e.line && f.way() == e.way() })
}

// take performs the action that is chosen for pending[i], or lets it happen.
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

// dropsDead reports whether e cannot arrive, because its line is dead.
func (w *World) dropsDead(e *event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.line == nil:
		return false
	case e.kind == request:
		return e.line.lost
	}
	return e.line.connection().down
}

func (w *World) remove(e *event) {
	i := slices.Index(w.pending, e)
	w.pending = slices.Delete(w.pending, i, i+1)
}

// happens lets e happen, and releases events that were held until then.
func (w *World) happens(e *event) {
	w.events++
	w.tell("%s", e.label)
	w.traces(e)
	if e.dials && time.Since(e.posted) > w.harness.TTL/8 {
		w.lossy.Store(true)
	}
	time.Sleep(hop)
	w.tick()
	e.happen()
	synctest.Wait()
	for _, f := range w.pending {
		if f.behind && !e.beat && f.dependsOn(e) {
			f.behind = false
		}
	}
	if e.after != nil {
		e.after()
	}
	w.checkState()
	w.checkBeliefs()
	w.noteState()
}

// traces adds e to the traces.
func (w *World) traces(e *event) {
	if e.beat {
		return
	}
	w.trace.add(e.process.name, e.label, w.now())
	if e.kind == request {
		w.trace.add("engine "+e.touches, e.label, w.now())
	}
}

// serve lets the engine serve a request, and sends its answer.
func (w *World) serve(e *event, serve func() any, arrive func(any)) {
	go func() {
		a := serve()
		w.tell("    the engine: %v", a)
		if arrive == nil {
			return
		}
		w.post(&event{
			kind: answer, process: e.process, label: e.label + " answer", line: e.line, beat: e.beat, dials: e.dials,
			happen: func() { arrive(a) }, timing: timing{decided: e.beat},
		})
	}()
}

// releaseLate releases events that wait behind others that will not happen.
func (w *World) releaseLate() (some bool) {
	for _, e := range w.pending {
		some = some || e.behind
		e.behind = false
	}
	return some
}

// idle lets time pass until something is sent or due.
func (w *World) idle() {
	w.quiet.Store(len(w.pending) == 0)
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

// tick advances the engine's clock.
func (w *World) tick() {
	if w.setClock != nil {
		w.setClock(w.offset)
	}
}
