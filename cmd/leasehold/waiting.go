package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/pause"
)

const (
	// lookFirst is how long a wait lasts before it is reported.
	lookFirst = 500 * time.Millisecond
	// lookBound limits how long the store may take to say who holds a name. The wait itself does
	// not depend on that.
	lookBound = time.Second
	// lookEvery is the interval of looks on a terminal, lookSeldom the one for a log.
	lookEvery, lookSeldom = time.Second, 10 * time.Second
	// nameRoom is how many cells of the status line a name gets, to leave room for the holder.
	nameRoom = 40
)

// A wait reports on an acquire while it lasts. It draws the status line on a terminal, reports
// changes with -v, and warns once if limits differ.
type wait struct {
	app   *app
	name  string            // the first name, until a.queued has another
	who   leasehold.Details // our details, as they are in the queue
	limit shares            // the requested limits
	began time.Time
	locks *leasehold.Locker

	line    *console // nil: no status line
	told    string   // the last report with -v
	warned  bool     // the warning about limits was printed
	granted atomic.Bool
	looked  chan struct{} // closed after the first look
	over    context.CancelFunc
}

// watch begins to report on an acquire. The caller must call ended after the acquire, and done at
// the end of the command.
func (a *app) watch(locks *leasehold.Locker, name string, who leasehold.Details, limit shares) *wait {
	ctx, cancel := context.WithCancel(context.Background())
	w := &wait{app: a, name: name, who: who, limit: limit, began: time.Now(), locks: locks,
		looked: make(chan struct{}), over: cancel}
	a.queued.Store(nil)
	if c, ok := a.stderr.(*console); ok && !a.json && statusPossible(c.file) {
		w.line = c
	}
	if quiet := a.json && !a.verbose; quiet || w.line == nil && !a.verbose && !limit.limits() {
		close(w.looked)
		return w
	}
	go w.look(ctx)
	return w
}

// ended erases the status line. The look at limits, if any, may continue.
func (w *wait) ended() {
	w.granted.Store(true)
	if w.line != nil {
		w.line.clear()
	}
	if !w.limit.limits() {
		w.over()
	}
}

// done waits for the look at limits, for the rest of lookBound at most. It then ends the wait.
func (w *wait) done() {
	if w.limit.limits() {
		select {
		case <-w.looked:
		case <-time.After(time.Until(w.began.Add(lookBound))):
		}
	}
	w.over()
}

// look looks at the lock again and again. If limits may differ, it begins at once.
func (w *wait) look(ctx context.Context) {
	next := lookFirst
	if w.limit.limits() {
		next = 0
	}
	looked := sync.OnceFunc(func() { close(w.looked) })
	for pause.For(ctx, next) == nil {
		next = w.once(ctx)
		if looked(); w.granted.Load() {
			return
		}
	}
}

// once looks once. It returns the time until the next look.
func (w *wait) once(ctx context.Context) time.Duration {
	bounded, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	name := w.name
	if queued := w.app.queued.Load(); queued != nil {
		name = *queued
	}
	state, err := w.locks.Inspect(bounded, name)
	w.compare(state)
	waited := time.Since(w.began)
	if w.granted.Load() || waited < lookFirst {
		return max(lookFirst-waited, 0)
	}
	why, place := reason(state, err, bounded.Err() != nil), w.place(state)
	if w.line != nil {
		w.line.draw(plain(fmt.Sprintf("leasehold: waiting %s for %s%s%s", seconds(waited), shortened(shown(name), nameRoom), place, since(why, state))), &w.granted)
	}
	if w.told != why+place {
		w.told = why + place
		w.app.detail(onWait, name, 0, "waiting for %s%s%s", shown(name), place, since(why, state))
	}
	if w.line != nil {
		return lookEvery
	}
	return lookSeldom
}

// compare warns, once, if a holder has requested another limit.
func (w *wait) compare(state leasehold.State) {
	mine := w.limit.of(state.Resource)
	other := func(h leasehold.Holder) bool { return h.Limit > 0 && h.Limit != mine }
	if i := slices.IndexFunc(state.Holders, other); mine > 0 && !w.warned && i >= 0 {
		w.warned = true
		w.app.tell(onWarning, state.Resource, 0, "warning: a limit of %d is asked for, but %s is held with a limit of %d: the smallest counts",
			mine, shown(state.Resource), state.Holders[i].Limit)
	}
}

// place returns this process's place in the queue, if the engine shows it. Several waiters may have
// its details. It is the one that has waited for about as long.
func (w *wait) place(state leasehold.State) string {
	best, found := time.Duration(-1), 0
	for i, other := range state.Waiters {
		who := other.Details()
		if off := (time.Since(w.began) - other.Waited).Abs(); who.Host == w.who.Host && who.PID == w.who.PID && who.Text == w.who.Text && (best < 0 || off < best) {
			best, found = off, i+1
		}
	}
	if found == 0 {
		return ""
	}
	return fmt.Sprintf(", place %d of %d", found, len(state.Waiters))
}

// reason returns what the acquire waits for, as the end of a sentence.
func reason(state leasehold.State, err error, silent bool) string {
	switch {
	case silent:
		return "; the store does not answer"
	case errors.Is(err, leasehold.ErrUnsupported):
		return ""
	case err != nil:
		return "; " + textOf(err)
	case len(state.Holders) == 0:
		return ""
	case lingers(viewOf(state)):
		return "; done, and kept for a while"
	}
	holders := slices.DeleteFunc(slices.Clone(state.Holders), func(h leasehold.Holder) bool { return h.Owner.Reveal() == "" })
	who := lineOf(holders[0])
	if who == "" {
		who = holders[0].Owner.String()
	}
	if more := len(holders) - 1; more > 0 {
		who += fmt.Sprintf(" and %d more", more)
	}
	return "; held by " + who
}

// since returns why and for how long it has been so.
func since(why string, state leasehold.State) string {
	if len(state.Holders) != 1 || state.Holders[0].Held == 0 {
		return why
	}
	return why + " for " + seconds(state.Holders[0].Held)
}

// seconds formats a duration that is updated every second.
func seconds(d time.Duration) string { return d.Truncate(time.Second).String() }
