package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold"
)

const (
	// lookFirst is how long a wait lasts before it is worth a word.
	lookFirst = 500 * time.Millisecond
	// lookBound is how long the store may take to say who holds a name; that the wait itself
	// is answered does not depend on it.
	lookBound = time.Second
	// lookEvery is for a person at a terminal, lookSeldom for a log.
	lookEvery, lookSeldom = time.Second, 10 * time.Second
)

// A wait is what an acquire reports while it lasts: the status line on a terminal, changes with -v,
// and once that limits differ.
type wait struct {
	app   *app
	name  string            // of the first, unless another is waited for
	who   leasehold.Details // as the queue has them
	limit shares            // as asked for
	began time.Time
	locks *leasehold.Locker

	line    *console // nil: no status line
	told    string   // by -v
	warned  bool     // of limits
	granted atomic.Bool
	looked  chan struct{} // closed after the first look
	over    context.CancelFunc
}

// watch begins to tell of an acquire. The caller calls ended when it is through, and done at
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

// ended takes the status line away. A look for limits goes on.
func (w *wait) ended() {
	w.granted.Store(true)
	if w.line != nil {
		w.line.clear()
	}
	if !w.limit.limits() {
		w.over()
	}
}

// done waits for a look for limits, as briefly as it may take.
func (w *wait) done() {
	if w.limit.limits() {
		select {
		case <-w.looked:
		case <-time.After(time.Until(w.began.Add(lookBound))):
		}
	}
	w.over()
}

// look looks at what is waited for again and again: at once where limits may differ.
func (w *wait) look(ctx context.Context) {
	first := lookFirst
	if w.limit.limits() {
		first = 0
	}
	timer := time.NewTimer(first)
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(w.once(ctx))
		select {
		case <-w.looked:
		default:
			close(w.looked)
		}
		if w.granted.Load() {
			return
		}
	}
}

// once looks once, and returns when to look again.
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
		w.line.draw(plain(fmt.Sprintf("leasehold: waiting %s for %s%s%s", seconds(waited), short(shown(name)), place, since(why, state))), &w.granted)
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

// compare warns once of a holder who has asked for another limit.
func (w *wait) compare(state leasehold.State) {
	mine := w.limit.of(state.Resource)
	other := func(h leasehold.Holder) bool { return h.Limit > 0 && h.Limit != mine }
	if i := slices.IndexFunc(state.Holders, other); mine > 0 && !w.warned && i >= 0 {
		w.warned = true
		w.app.tell(onWarning, state.Resource, 0, "warning: a limit of %d is asked for, but %s is held with a limit of %d: the smallest counts",
			mine, shown(state.Resource), state.Holders[i].Limit)
	}
}

// place is where in the queue this process is, as far as the engine shows it. Of the waiters with
// its details, it is the one that has waited for about as long.
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

// reason says what an acquire waits for.
func reason(state leasehold.State, err error, silent bool) string {
	switch {
	case silent:
		return "; the store does not answer"
	case errors.Is(err, leasehold.ErrUnsupported):
		return ""
	case err != nil:
		return "; " + strings.TrimPrefix(err.Error(), "leasehold: ")
	case len(state.Holders) == 0:
		return ""
	case lingers(viewOf(state)):
		return "; done, and kept for a while"
	}
	h := state.Holders[0]
	who := lineOf(h)
	if who == "" {
		who = ownerText(h.Owner.String())
	}
	if more := len(state.Holders) - 1; more > 0 {
		who += fmt.Sprintf(" and %d more", more)
	}
	return "; held by " + who
}

// since is why with how long that has been so.
func since(why string, state leasehold.State) string {
	if len(state.Holders) != 1 || state.Holders[0].Held == 0 {
		return why
	}
	return why + " for " + seconds(state.Holders[0].Held)
}

// short leaves room for who is in the way of a long name.
func short(name string) string {
	const most = 40 // cells
	return shortened(name, most)
}

// seconds is a length of time that is shown again and again.
func seconds(d time.Duration) string { return d.Truncate(time.Second).String() }
