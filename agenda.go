package leasehold

import (
	"slices"
	"time"
)

// An agenda has holds come up when something is to be done for them. Those that may come
// up at the same time do so together, as one group: ten thousand leases are some dozens.
// Whoever has it guards it by a mutex.
type agenda struct {
	room   int         // entries in a group
	most   int         // entries that are taken at once
	fire   func()      // is called when the first group is due
	groups []*group    // by due
	spare  *group      // the last one that became empty, for the next
	timer  *time.Timer // nil until first used
	armed  time.Time   // when timer fires; zero: it does not
}

// A group is the entries that come up at one instant.
type group struct {
	due     time.Time
	entries []*entry
}

// An entry is the place of a hold on an agenda.
type entry struct {
	hold  *hold
	group *group // nil: it is on none
	index int    // in group.entries
}

// add has e come up, once, at some time between from and to: with a group that does if one
// has room, else alone at at. Where it was before, it is no more.
func (a *agenda) add(e *entry, from, at, to time.Time) {
	a.remove(e)
	g := a.find(from, to)
	if g == nil {
		g = a.open(at)
	}
	e.group, e.index = g, len(g.entries)
	g.entries = append(g.entries, e)
}

// find returns a group with room that is due between from and to, or nil.
func (a *agenda) find(from, to time.Time) *group {
	for _, g := range a.groups[a.search(from):] {
		if g.due.After(to) {
			break
		}
		if len(g.entries) < a.room {
			return g
		}
	}
	return nil
}

// open makes a group that is due at due.
func (a *agenda) open(due time.Time) *group {
	g := a.spare
	if g == nil {
		g = &group{}
	}
	a.spare, g.due = nil, due
	a.groups = slices.Insert(a.groups, a.search(due), g)
	return g
}

// search returns the index of the first group that is not due before t.
func (a *agenda) search(t time.Time) int {
	i, _ := slices.BinarySearchFunc(a.groups, t, func(g *group, t time.Time) int { return g.due.Compare(t) })
	return i
}

// remove has e come up no more.
func (a *agenda) remove(e *entry) {
	g := e.group
	if g == nil {
		return
	}
	last := len(g.entries) - 1
	g.entries[e.index] = g.entries[last]
	g.entries[e.index].index = e.index
	g.entries[last] = nil
	g.entries = g.entries[:last]
	e.group = nil
	if last == 0 {
		i := a.search(g.due)
		i += slices.Index(a.groups[i:], g)
		a.groups = slices.Delete(a.groups, i, i+1)
		a.spare = g
	}
}

// take removes entries of the first group and returns them; nil if none is due.
func (a *agenda) take(now time.Time) []*entry {
	if !a.isDue(now) {
		return nil
	}
	g := a.groups[0]
	due := g.entries
	if stay := len(due) - a.most; stay > 0 {
		due = slices.Clone(g.entries[stay:]) // the group goes on using its own
		clear(g.entries[stay:])
		g.entries = g.entries[:stay]
	} else {
		a.groups[0] = nil
		a.groups = a.groups[1:]
	}
	for _, e := range due {
		e.group = nil
	}
	return due
}

func (a *agenda) isDue(now time.Time) bool {
	return len(a.groups) > 0 && !a.groups[0].due.After(now)
}

// arm sets the timer for the first group unless it fires by then. A timer that fires
// early, because the group is gone, costs less than stopping it each time.
func (a *agenda) arm() {
	if len(a.groups) == 0 || !a.armed.IsZero() && !a.groups[0].due.Before(a.armed) {
		return
	}
	a.armed = a.groups[0].due
	if a.timer == nil {
		a.timer = time.AfterFunc(time.Until(a.armed), a.fire)
	} else {
		a.timer.Reset(time.Until(a.armed))
	}
}

// clear forgets everything.
func (a *agenda) clear() {
	for _, g := range a.groups {
		for _, e := range g.entries {
			e.group = nil
		}
	}
	a.groups = nil
	a.disarm()
}

// disarm stops the timer.
func (a *agenda) disarm() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.armed = time.Time{}
}
