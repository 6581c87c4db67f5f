package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/several"
)

// A changeView is one line of "leasehold ls --watch --json".
type changeView struct {
	Time string    `json:"time" about:"when the state was observed"`
	Lock stateView `json:"lock" about:"the present state; without holders and waiters the lock is free"`
}

// watchList prints the locks, and then each change, until a signal ends it. If the store does not
// answer, or has damaged locks, it reports that once and continues, so that the user sees when the
// store is back.
func watchList(ctx context.Context, a *app, locks *leasehold.Locker, prefix string) error {
	l := watchedList{app: a, locks: locks, seen: map[string]stateView{}}
	return a.every(ctx, func() error {
		views, err := lookAll(ctx, locks, prefix)
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return err
		}
		if err != nil && !l.damaged {
			a.report(err)
		}
		l.damaged = err != nil
		if err := l.take(views); err != nil {
			return err
		}
		return l.ask(ctx, l.missing(views))
	})
}

// A watchedList is what ls --watch knows of the locks.
type watchedList struct {
	app     *app
	locks   *leasehold.Locker
	seen    map[string]stateView // what was printed last of each name that is not known to be free
	damaged bool                 // the last list was
	behind  bool                 // the last look has forgotten names
}

// take prints views that differ from what was seen.
func (l *watchedList) take(views []stateView) error {
	var changed []stateView
	for _, v := range views {
		if was, ok := l.seen[v.Name]; !ok || !sameHolds(was, v) {
			changed = append(changed, v)
		}
		l.seen[v.Name] = v
	}
	return l.print(changed)
}

// missingMost is the most names that wait to be asked about. All names of one list may become free
// at once. Beyond that, names come and go faster than the store answers.
const missingMost = watchMost

// missing returns the names of seen that are missing in views. They may be held all the same,
// because the list may leave them out. If there are too many, it forgets some, and reports that
// once.
func (l *watchedList) missing(views []stateView) (names []string) {
	listed := make(map[string]bool, len(views))
	for _, v := range views {
		listed[v.Name] = true
	}
	for name := range l.seen {
		if !listed[name] {
			names = append(names, name)
		}
	}
	// There may be no time to ask about all of them.
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	rest := max(len(names)-missingMost, 0)
	for _, name := range names[:rest] {
		delete(l.seen, name)
	}
	if rest > 0 && !l.behind {
		l.app.tell(onWarning, "", 0, "warning: names come and go faster than the store answers: not all that become free are printed")
	}
	l.behind = rest > 0
	return names[rest:]
}

// askedAtOnce is how many names ls --watch asks about at once.
const askedAtOnce = 16

// The results of asking the store about a missing name.
const (
	notGone  = iota // it may be as it was, or was not asked about
	notShown        // nothing is known of it any more
	foundFree
)

// ask asks the store about missing names for as long as a look may take, and prints which are free.
func (l *watchedList) ask(ctx context.Context, missing []string) error {
	found := make([]int, len(missing))
	var away atomic.Pointer[error] // nothing else is asked in this look
	asking := time.Now()
	several.Bounded(len(missing), askedAtOnce, func(i int) {
		if away.Load() != nil || time.Since(asking) > topEvery {
			return
		}
		state, err := inspectOnce(ctx, l.locks, missing[i])
		switch {
		case errors.Is(err, driver.ErrDenied):
			found[i] = notShown
		case err == nil && len(state.Holders)+len(state.Waiters) == 0:
			found[i] = foundFree
		case err != nil && !errors.Is(err, driver.ErrCorrupt):
			away.CompareAndSwap(nil, &err)
		}
	})
	var changed []stateView
	for i, name := range missing {
		switch found[i] {
		case foundFree:
			changed = append(changed, stateView{Name: name, State: "free", Token: l.seen[name].Token, Holders: []holderView{}, Waiters: []waiterView{}})
			delete(l.seen, name)
		case notShown:
			delete(l.seen, name)
		}
	}
	err := l.print(changed)
	if silent := away.Load(); err == nil && silent != nil {
		err = *silent
	}
	return err
}

// every calls look every second until ctx ends. If the store does not answer the first time, or
// cannot work again by itself, it returns that error. Otherwise it reports one error per outage.
func (a *app) every(ctx context.Context, look func() error) error {
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	for first, away := true, false; ; first = false {
		err := look()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && (first || !passes(err)):
			return err
		case err != nil && !away:
			a.report(err)
		}
		away = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// watchMost is the most names that ls --watch compares, because each look reads all of them.
const watchMost = 50_000

// lookAll reads all names once.
func lookAll(ctx context.Context, locks *leasehold.Locker, prefix string) (views []stateView, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	var damaged error
	for state, err := range locks.List(ctx, prefix) {
		switch {
		case errors.Is(err, driver.ErrCorrupt):
			damaged = errors.Join(damaged, err)
		case err != nil:
			return nil, err
		case len(views) == watchMost:
			return nil, usageErrorf("more than %d names are held or waited for: give a PREFIX, which fewer begin with", watchMost)
		default:
			views = append(views, viewOf(state))
		}
	}
	return views, damaged
}

// print prints changes, sorted by name.
func (l *watchedList) print(changed []stateView) error {
	slices.SortStableFunc(changed, func(a, b stateView) int { return strings.Compare(a.Name, b.Name) })
	var b bytes.Buffer
	now := stamp()
	for _, v := range changed {
		if l.app.json {
			if err := writeJSON(&b, changeView{now, v}, ""); err != nil {
				return err
			}
		} else {
			writeChange(&b, now, v)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return l.app.output(b.Bytes())
}

// sameHolds reports whether both views have the same holders and waiters. Times make no difference.
func sameHolds(a, b stateView) bool {
	return slices.EqualFunc(a.Holders, b.Holders, func(a, b holderView) bool {
		a.Held, a.Left, b.Held, b.Left = 0, 0, 0, 0
		return reflect.DeepEqual(a, b)
	}) && slices.EqualFunc(a.Waiters, b.Waiters, func(a, b waiterView) bool {
		a.Waited, b.Waited = 0, 0
		return reflect.DeepEqual(a, b)
	})
}

// writeChange writes a line for each holder, or one that says there is none.
func writeChange(w io.Writer, now string, v stateView) {
	waiting := ""
	if len(v.Waiters) > 0 {
		waiting = fmt.Sprintf(", %d waiting", len(v.Waiters))
	}
	if len(v.Holders) == 0 {
		fmt.Fprintf(w, "%s %s is free%s\n", now, shown(v.Name), waiting)
	}
	for _, h := range v.Holders {
		how := "held by " + h.Owner
		if h.Owner == "" {
			how = "done and kept"
		}
		note := cmp.Or(h.Details.of().Line(), h.Note)
		if note != "" {
			note = " (" + note + ")"
		}
		fmt.Fprintf(w, "%s %s is %s, %s, token %d%s%s\n", now, shown(v.Name), how, h.modeText(), h.Token, note, waiting)
	}
}
