// Package schedule calls a function when entries are due: renewals, deadlines.
package schedule

import (
	"cmp"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A Schedule is a set of entries that come due in their time. Entries that may be due at the
// same time form a group: ten thousand leases are a few dozen groups. Its owner must guard it by
// a mutex.
type Schedule[T any] struct {
	clock   *boottime.Clock
	room    int              // most entries in a group
	most    int              // most entries that Take returns
	fire    func()           // called when the first group is due
	groups  []*group[T]      // sorted by due
	spare   *group[T]        // the last group that became empty, for reuse
	timer   *time.Timer      // nil until first used
	armed   boottime.Instant // when timer fires; zero: it does not
	unwatch func()           // stops the clock from calling fire; nil: it does not call
}

// New returns an empty Schedule whose groups have at most room entries. Take returns at most
// most of them. fire is called, without the mutex, when the first group of an armed Schedule is
// due, and after a sleep of clock. Fired, Take and Arm must follow.
func New[T any](clock *boottime.Clock, room, most int, fire func()) Schedule[T] {
	return Schedule[T]{clock: clock, room: room, most: most, fire: fire}
}

// A group is the entries that are due at one instant.
type group[T any] struct {
	due     boottime.Instant
	entries []*Entry[T]
}

// An Entry is a value that can be on one Schedule at a time.
type Entry[T any] struct {
	Value T
	group *group[T] // nil: it is on none
	index int       // in group.entries
}

// Add schedules e once, for some time between from and to: with a group that is due then and has
// room, or else alone at at. It replaces an earlier time of e.
func (s *Schedule[T]) Add(e *Entry[T], from, at, to boottime.Instant) {
	s.Remove(e)
	g := s.find(from, to)
	if g == nil {
		g = s.open(at)
	}
	e.group, e.index = g, len(g.entries)
	g.entries = append(g.entries, e)
}

// find returns a group with room that is due between from and to, or nil.
func (s *Schedule[T]) find(from, to boottime.Instant) *group[T] {
	for _, g := range s.groups[s.search(from):] {
		if g.due > to {
			break
		}
		if len(g.entries) < s.room {
			return g
		}
	}
	return nil
}

// open makes a group that is due at due.
func (s *Schedule[T]) open(due boottime.Instant) *group[T] {
	g := s.spare
	if g == nil {
		g = &group[T]{}
	}
	s.spare, g.due = nil, due
	s.groups = slices.Insert(s.groups, s.search(due), g)
	return g
}

// search returns the index of the first group that is not due before t.
func (s *Schedule[T]) search(t boottime.Instant) int {
	i, _ := slices.BinarySearchFunc(s.groups, t, func(g *group[T], t boottime.Instant) int { return cmp.Compare(g.due, t) })
	return i
}

// Remove unschedules e.
func (s *Schedule[T]) Remove(e *Entry[T]) {
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
		i := s.search(g.due)
		i += slices.Index(s.groups[i:], g)
		s.groups = slices.Delete(s.groups, i, i+1)
		s.spare = g
	}
}

// Take removes and returns entries of the first group, or nil if none is due.
func (s *Schedule[T]) Take(now boottime.Instant) []*Entry[T] {
	if !s.IsDue(now) {
		return nil
	}
	g := s.groups[0]
	due := g.entries
	if stay := len(due) - s.most; stay > 0 {
		due = slices.Clone(g.entries[stay:]) // the group reuses its own slice
		clear(g.entries[stay:])
		g.entries = g.entries[:stay]
	} else {
		s.groups[0] = nil
		s.groups = s.groups[1:]
	}
	for _, e := range due {
		e.group = nil
	}
	return due
}

// IsDue reports whether the first group is due.
func (s *Schedule[T]) IsDue(now boottime.Instant) bool {
	return len(s.groups) > 0 && s.groups[0].due <= now
}

// Arm sets the timer for the first group, unless it fires earlier anyway. A timer that fires
// early, because its group is gone, costs less than stopping it each time.
func (s *Schedule[T]) Arm() {
	switch {
	case len(s.groups) == 0 && s.armed == 0:
		s.rest()
		return
	case len(s.groups) == 0 || s.armed != 0 && s.groups[0].due >= s.armed:
		return
	}
	if s.unwatch == nil {
		s.unwatch = s.clock.Watch(s.fire)
	}
	s.armed = s.groups[0].due
	if left := s.armed.Sub(s.clock.Now()); s.timer == nil {
		s.timer = time.AfterFunc(left, s.fire)
	} else {
		s.timer.Reset(left)
	}
}

// rest stops watching the clock, which would keep the Schedule's owner in memory.
func (s *Schedule[T]) rest() {
	if s.unwatch != nil {
		s.unwatch()
		s.unwatch = nil
	}
}

// Clear removes all entries.
func (s *Schedule[T]) Clear() {
	for _, g := range s.groups {
		for _, e := range g.entries {
			e.group = nil
		}
	}
	s.groups = nil
	s.Disarm()
}

// Disarm stops the timer.
func (s *Schedule[T]) Disarm() {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.armed = 0
	s.rest()
}

// Fired records that fire was called.
func (s *Schedule[T]) Fired() { s.armed = 0 }

// Empty reports whether there are no entries.
func (s *Schedule[T]) Empty() bool { return len(s.groups) == 0 }
