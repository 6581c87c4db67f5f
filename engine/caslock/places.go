package caslock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/several"
)

// never is a tick that does not come.
const never = math.MaxInt64

// removeLater schedules the removal of a place that could not be removed, or may appear within the
// given number of ticks.
func (q *crowd) removeLater(name string, ticks int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending[name] = never; ticks < never {
		q.pending[name] = q.ticks + ticks
	}
	q.startBeats()
}

// removePending removes places that were scheduled for removal.
func (q *crowd) removePending(ctx context.Context, ticks int64) {
	q.mu.Lock()
	pending := maps.Clone(q.pending)
	q.mu.Unlock()
	for name, until := range pending {
		resource, id, _ := parts(name)
		was, _, err := q.clear(ctx, q.d.resource(resource), id, "", false)
		if err != nil || !was && ticks < until && until < never {
			continue
		}
		q.mu.Lock()
		if q.pending[name] == until {
			delete(q.pending, name)
		}
		q.mu.Unlock()
	}
}

// set writes the value of a name of two parts; nil removes it. was is its version as far as this
// process knows. exact reports that it was, or that what was replaced is a place of this process. With
// follow, any later version is replaced too; otherwise that is ErrChanged.
func (q *crowd) set(ctx context.Context, name string, value []byte, was Version, life time.Duration, follow bool) (_ Version, exact bool, err error) {
	exact = true
	for range maxTries {
		version, err := q.store.Write(ctx, name, value, was, life)
		q.d.lanes.Answered(err)
		if err == nil || !errors.Is(err, ErrChanged) && !errors.Is(err, ErrUnsent) && !links.Again(ctx, err) {
			return version, err == nil && exact, failed(ctx, err)
		}
		i, err := q.d.read(ctx, name)
		if err != nil {
			return "", false, failed(ctx, err)
		}
		if bytes.Equal(i.Value, value) { // the value was written, or another process has removed it
			return i.Version, false, nil
		}
		if !follow && !q.d.same(i.Version, was) {
			return "", false, ErrChanged
		}
		was, exact = i.Version, storedIn(i).Process == q.process
	}
	return "", false, ErrContended
}

// mirror returns when the resource has a line that the watch keeps up to date.
func (q *crowd) mirror(ctx context.Context, s *resource) error {
	if q.isCurrent(s) {
		return nil
	}
	if err := s.alone.Begin(ctx); err != nil {
		return err
	}
	defer s.alone.End()
	if q.isCurrent(s) {
		return nil
	}
	q.d.watch.listen(ctx)
	session := q.d.watch.session()
	if session == 0 {
		return q.d.watch.deaf()
	}
	l := newLine(session)
	s.mu.Lock()
	s.line = l
	s.mu.Unlock()
	q.mu.Lock()
	q.lines[s] = q.ticks
	q.startBeats() // they show which places belong to dead processes
	q.mu.Unlock()
	v, _, err := q.d.current(ctx, s, true)
	if err != nil {
		return err
	}
	if err := q.fill(ctx, s.name, func(p *place) {
		s.mu.Lock()
		defer s.mu.Unlock()
		l.put(p.id, p, p.number)
	}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.loaded, l.removed, l.upTo = true, nil, max(l.upTo, q.d.number(v.version))
	return nil
}

// isCurrent reports whether the resource has a line that the watch keeps up to date.
func (q *crowd) isCurrent(s *resource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return q.d.lineOf(s) != nil
}

// lineOf returns the resource's line if the watch keeps it up to date, else nil. Requires s.mu.
func (d *Driver) lineOf(s *resource) *line {
	if l := s.line; l != nil && l.loaded && l.session == d.watch.session() {
		return l
	}
	return nil
}

// fill calls put for all places of a resource.
func (q *crowd) fill(ctx context.Context, resource string, put func(*place)) error {
	for i, err := range q.store.Beside(ctx, resource) {
		q.d.lanes.Answered(err)
		if err != nil {
			return failed(ctx, err)
		}
		if p := q.placeIn(i); p != nil {
			put(p)
		}
	}
	return nil
}

// look returns the present places of a resource, without those of processes whose heartbeat the
// store has forgotten.
func (q *crowd) look(ctx context.Context, resource string) (*line, error) {
	beats, l := make(map[string]bool), newLine(0)
	var all []*place
	if err := q.fill(ctx, resource, func(p *place) { all = append(all, p) }); err != nil || len(all) == 0 {
		return l, err
	}
	for i, err := range q.store.Beside(ctx, "") {
		if err != nil {
			return l, failed(ctx, err)
		}
		_, process, _ := parts(i.Name)
		beats[process] = true
	}
	for _, p := range all {
		if beats[p.process] {
			l.put(p.id, p, p.number)
		}
	}
	return l, nil
}

// errNotSeenYet means that the watch ended before it reported a new place.
var errNotSeenYet = fmt.Errorf("caslock: the watch has not told of the place yet: %w", driver.ErrNotYet)

// enter gives owner a place in the queue that belongs to this process. If another process has the
// place, enter takes it over, at the same position. It then waits until all
// places ahead are known. made reports whether the place was written.
func (q *crowd) enter(ctx context.Context, s *resource, owner string, place *stored) (made bool, err error) {
	id := idOf(owner)
	was, first, here := q.placeVersion(s, id)
	if here {
		return false, nil
	}
	if err := q.sign(ctx, q.d.opts.Place/2); err != nil {
		return true, err
	}
	version, _, err := q.set(ctx, placeOf(s.name, owner), place.at(first), was, placeLife, true)
	if err != nil {
		return true, err
	}
	return true, q.hear(ctx, s, id, q.d.number(version))
}

// placeVersion returns the version of owner's place, or the version that a new one replaces, and
// the position if the place counts. here reports whether it counts, and is of this process.
func (q *crowd) placeVersion(s *resource, id string) (_ Version, first uint64, here bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == nil {
		return "", 0, false
	}
	p := s.line.byID[id]
	if p == nil {
		return "", 0, false
	}
	if !s.line.loaded || p.peer.dead() {
		return p.version, 0, false
	}
	return p.version, p.first, p.process == q.process
}

// hear returns when the line has a place with that number, and so all places before it.
func (q *crowd) hear(ctx context.Context, s *resource, id string, number uint64) error {
	s.mu.Lock()
	ch := make(chan struct{})
	if s.line == nil || s.line.upTo >= number {
		close(ch)
	} else if before := s.awaited[id]; before != nil {
		ch = before
	} else {
		if s.awaited == nil {
			s.awaited = make(map[string]chan struct{})
		}
		s.awaited[id] = ch
	}
	s.mu.Unlock()
	if !q.isCurrent(s) { // the watch may have ended before ch was there, so nobody would close it
		return errNotSeenYet
	}
	select {
	case <-ch:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == nil || s.line.upTo < number {
		return errNotSeenYet
	}
	if s.line.byID[id] == nil { // it was removed since, or the watch has missed it
		s.dropLine()
		return errNotSeenYet
	}
	return nil
}

// dropLine forgets the line, and wakes those who wait until it has their places. Requires s.mu.
func (s *resource) dropLine() {
	s.line = nil
	s.unheard()
}

// lateFor is for how many ticks a place may still appear that was absent when it was left. If it
// appears later, it is removed when the watch reports it.
const lateFor = 4 * keepShare

// leave removes the place of an owner, and reports whether there was one, and whether it was as this
// process had written it. made says that this process may have made it.
func (q *crowd) leave(ctx context.Context, s *resource, owner string, made bool) (was, own bool, err error) {
	name, id := placeOf(s.name, owner), idOf(owner)
	q.forget(name)
	version, _, here := q.placeVersion(s, id)
	was, exact, err := q.clear(ctx, s, id, version, true)
	switch {
	case !made:
	case err != nil:
		q.removeLater(name, never)
	case !was:
		q.removeLater(name, lateFor)
	}
	return was, here && exact, err
}

// clear removes a place, and reports whether there was one. version is its last known version; "":
// unknown. follow and exact are as in set. Without version and follow, a place of another process
// stays.
func (q *crowd) clear(ctx context.Context, s *resource, id string, version Version, follow bool) (was, exact bool, err error) {
	if version == "" {
		i, err := q.d.read(ctx, s.name+parted+id)
		if err != nil || i.Value == nil || !follow && storedIn(i).Process != q.process {
			return false, false, failed(ctx, err)
		}
		version = i.Version
	}
	exact, err = q.remove(ctx, s, id, version, follow)
	return true, exact, err
}

// remove removes a place. With follow, it also removes a place that was made anew. Otherwise that
// place stays, and remove returns ErrChanged. exact is as in set.
func (q *crowd) remove(ctx context.Context, s *resource, id string, version Version, follow bool) (exact bool, err error) {
	removed, exact, err := q.set(ctx, s.name+parted+id, nil, version, goneLife, follow)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != nil {
		s.line.put(id, nil, max(q.d.number(removed), q.d.number(version)+1))
	}
	s.wakeNext()
	return exact, nil
}

// see removes unneeded places: those of this process without a waiter, those of waiters without a
// Try for the life of a place, and those of dead processes, if they are ahead of this process's
// first place.
func (q *crowd) see(ticks int64, most time.Duration) {
	for _, s := range q.idle(ticks) {
		s.mu.Lock()
		s.dropLine()
		s.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(q.d.life, most)
	defer cancel()
	q.removePending(ctx, ticks)
	for s := range q.all() {
		some := q.unwanted(s)
		several.Each(ctx, len(some), maxRenewals, slow, func(i int) {
			_, _ = q.remove(ctx, s, some[i].id, some[i].version, false) // if it fails, the next beat tries again
		})
	}
}

// idle forgets and returns the resources whose lines were not used for a while. It also schedules
// the removal of places whose waiters have not tried for a while.
func (q *crowd) idle(ticks int64) (some []*resource) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for s, last := range q.lines {
		if ticks-last > 4*keepShare {
			delete(q.lines, s)
			some = append(some, s)
		}
	}
	for name, w := range q.mine {
		if w.trying == 0 && ticks-w.tried > keepShare {
			delete(q.mine, name)
			q.pending[name] = never
		}
	}
	return some
}

// all returns the resources with a line.
func (q *crowd) all() map[*resource]int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.lines)
}

// maxUnwanted is how many places are removed at once.
const maxUnwanted = 256

// unwanted returns the places of a resource that must be removed.
func (q *crowd) unwanted(s *resource) (some []*place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var first *place // of the live places
	var dead []*place
	for _, p := range s.line.order {
		switch {
		case p.gone:
		case p.process == q.process && q.mine[s.name+parted+p.id] == nil:
			some = append(some, p)
		case p.peer.dead() && first == nil:
			dead = append(dead, p)
		case first == nil:
			first = p
		}
	}
	if first == nil || first.process == q.process {
		some = append(some, dead...)
	}
	return some[:min(len(some), maxUnwanted)]
}
