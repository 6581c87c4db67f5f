package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
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
	seen, damaged := map[string]stateView{}, false
	return a.every(ctx, func() error {
		views, err := lookAll(ctx, locks, prefix)
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return err
		}
		if err != nil && !damaged {
			a.report(err)
		}
		damaged = err != nil
		var away error // nothing else is asked in this look
		asking := time.Now()
		err = a.printChanges(seen, views, func(name string) (gone, free bool) {
			if away != nil || time.Since(asking) > topEvery { // the next look asks
				return false, false
			}
			state, err := inspectOnce(ctx, locks, name)
			switch {
			case errors.Is(err, driver.ErrDenied): // nothing is known of it any more
				return true, false
			case err != nil && !errors.Is(err, driver.ErrCorrupt):
				away = err
			}
			free = err == nil && len(state.Holders)+len(state.Waiters) == 0
			return free, free
		})
		return cmp.Or(err, away)
	})
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

// printChanges prints views that differ from seen, and updates seen. The list may have left out a
// name that is missing in views. missing reports whether it is gone, and whether it is known to be
// free; otherwise it may be as it was.
func (a *app) printChanges(seen map[string]stateView, views []stateView, missing func(name string) (gone, free bool)) error {
	var changed []stateView
	here := make(map[string]bool, len(views))
	for _, v := range views {
		here[v.Name] = true
		if was, ok := seen[v.Name]; !ok || !sameHolds(was, v) {
			changed = append(changed, v)
		}
		seen[v.Name] = v
	}
	for name, was := range seen {
		if here[name] {
			continue
		}
		gone, free := missing(name)
		if gone {
			delete(seen, name)
		}
		if free {
			changed = append(changed, stateView{Name: name, State: "free", Token: was.Token, Holders: []holderView{}, Waiters: []waiterView{}})
		}
	}
	slices.SortStableFunc(changed, func(a, b stateView) int { return strings.Compare(a.Name, b.Name) })
	var b bytes.Buffer
	now := stamp()
	for _, v := range changed {
		if a.json {
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
	return a.output(b.Bytes())
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
