package caslock

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/record"
)

// wants reports whether the claim wants to know of others who wait while it holds.
func (c *claim) wants() bool { return c.req.Wanted != nil }

// hears returns the session of the watch for a claim that wants to know of others; 0: none.
func (c *claim) hears() uint64 {
	if !c.wants() || c.d.watch == nil {
		return 0
	}
	return c.d.watch.session()
}

// heed is called when the store has confirmed the lease of a claim. It calls Wanted if others
// wait, and lets the watch report those that come later. since is the session that the watch had
// before the record was written. looked is the places beside the record if the call has read
// them. marked is the number of a record that said, before the write, that others wait beside it.
func (c *claim) heed(since uint64, looked *line, marked uint64) {
	if !c.wants() {
		return
	}
	s := c.d.resource(c.req.Resource)
	if c.d.watch != nil {
		s.listen(c) // before checking whether the watch has begun
		c.d.watch.going()
	}
	session := c.hears()
	s.mu.Lock()
	if since > 0 && since == session && c.d.number != nil {
		s.session = session // the watch reports all that came after the write
	}
	v, l := s.view(), looked
	if l == nil {
		l = c.d.lineOf(s)
	}
	wanted := v.Holds(c.req.Owner) && (v.awaited(c.req.Owner, l) || l != nil && l.upTo < marked)
	beside := c.d.crowd != nil && l == nil && v.Beside != record.Nobody
	unheard := session > 0 && s.session != session
	uses := l != nil && l == s.line && v.Beside != record.Nobody
	s.mu.Unlock()
	if uses {
		c.d.crowd.use(s)
	}
	if wanted {
		c.d.recall([]*claim{c})
	}
	if beside || unheard {
		c.d.check(s)
	}
}

// awaited reports whether another than owner waits, in the record or at a place in l, which may
// be nil.
func (v *view) awaited(owner string, l *line) bool {
	return v.Awaited(owner) || l != nil && l.awaits(owner)
}

// awaits reports whether another than owner has a place.
func (l *line) awaits(owner string) bool {
	for c := range l.alive {
		if c.Owner != owner {
			return true
		}
	}
	return false
}

// marks returns the number of the record if it says that others wait beside it; 0: it does not.
func (d *Driver) marks(v *view) uint64 {
	if d.crowd == nil || v.Beside != record.Some {
		return 0
	}
	return d.number(v.version)
}

// recall calls Wanted of claims. Call it without a mutex.
func (d *Driver) recall(claims []*claim) {
	for _, c := range claims {
		if d.life.Err() == nil {
			c.req.Wanted()
		}
	}
}

// listen adds c to the holders that want to know of others.
func (s *resource) listen(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanting == nil {
		s.wanting = make(map[string]*claim)
	}
	s.wanting[c.req.Owner] = c
}

// ignore undoes listen.
func (s *resource) ignore(c *claim) {
	if !c.wants() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanting[c.req.Owner] == c { // otherwise another claim has taken over the lease
		delete(s.wanting, c.req.Owner)
	}
}

// Forget implements [driver.Forgetter]. Wanted is not called afterwards.
func (c *claim) Forget() {
	s := c.d.resource(c.req.Resource)
	s.ignore(c)
	s.leaves(c.req.Owner) // no Release does this, and a resource with waiters stays
}

// wanted returns the holders that want to know of a place of owner; "": of an unknown owner.
// Requires s.mu.
func (s *resource) wanted(owner string) (some []*claim) {
	if len(s.wanting) == 0 {
		return nil
	}
	v := s.view()
	for its, c := range s.wanting {
		if its != owner && v.Holds(its) {
			some = append(some, c)
		}
	}
	return some
}

// wantedSince returns the holders that want to know of waiters that have come to the record since
// was. read says that another process may have written it. Requires s.mu.
func (s *resource) wantedSince(was *record.Record, read bool) (some []*claim) {
	if len(s.wanting) == 0 {
		return nil
	}
	if read && s.record.Beside == record.Some && was.Beside != record.Some {
		return slices.DeleteFunc(s.wanted(""), func(c *claim) bool { // a line has reported its place before
			return s.line != nil && s.line.loaded && !s.line.awaits(c.req.Owner)
		})
	}
	for _, c := range s.record.Claims {
		if c.Status != record.Waiting {
			continue
		}
		if before := was.Find(c.Owner); before == nil || before.Status != record.Waiting {
			return s.wanted(c.Owner)
		}
	}
	return nil
}

// isWanting reports whether any holder here wants to know of others. It forgets holders whose
// leases are over.
func (s *resource) isWanting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.wanting) == 0 {
		return false
	}
	v := s.view()
	maps.DeleteFunc(s.wanting, func(owner string, _ *claim) bool { return !v.Holds(owner) })
	return len(s.wanting) > 0
}

// wanting returns the resources whose holders want to know of others.
func (d *Driver) wanting() (some []*resource) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.resources {
		if s.isWanting() {
			some = append(some, s)
		}
	}
	return some
}

// check finds out, in the background, whether others wait for a resource that the watch has not
// reported since the last answer of the store.
func (d *Driver) check(s *resource) {
	s.mu.Lock()
	s.checks++
	first := s.checks == 1
	s.mu.Unlock()
	if first {
		d.life.Go(func() {
			for again := true; again; {
				again = d.checkOnce(s)
			}
		})
	}
}

// checkOnce makes one check. It reports whether another was requested meanwhile.
func (d *Driver) checkOnce(s *resource) bool {
	select {
	case d.watch.checking <- struct{}{}:
		defer func() { <-d.watch.checking }()
	case <-d.life.Done():
	}
	s.mu.Lock()
	asked := s.checks
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(d.life, max(d.opts.Place, time.Second))
	d.findWaiters(ctx, s)
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.checks > asked && d.life.Err() == nil {
		return true
	}
	s.checks = 0
	return false
}

// findWaiters reads the record, and the places beside it, and calls Wanted of holders for whose
// resource others wait. If that fails, the next renewal tries again.
func (d *Driver) findWaiters(ctx context.Context, s *resource) {
	if !s.isWanting() || d.follow(ctx, s) != nil {
		return
	}
	s.mu.Lock()
	beside := s.record.Beside != record.Nobody
	s.mu.Unlock()
	var looked *line
	if d.crowd != nil && beside && d.crowd.mirror(ctx, s) != nil { // the watch does not hear
		l, err := d.crowd.look(ctx, s.name)
		if err != nil {
			return
		}
		looked = l
	}
	var some []*claim
	s.mu.Lock()
	v, l := s.view(), looked
	if l == nil {
		l = d.lineOf(s)
	}
	for owner, c := range s.wanting {
		if v.Holds(owner) && v.awaited(owner, l) {
			some = append(some, c)
		}
	}
	s.mu.Unlock()
	d.recall(some)
}

// use keeps the line of a resource with a holder here that needs it.
func (q *crowd) use(s *resource) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.lines[s]; ok {
		q.lines[s] = q.ticks
	}
}
