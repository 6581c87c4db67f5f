package caslock

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/onecall"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A resource is what this process knows of a resource. It is safe to forget it, but claims are then
// watched for a whole TTL again.
type resource struct {
	name string
	used time.Time // guarded by Driver.mu

	mu      sync.Mutex
	known   bool                     // guarded by mu; the fields below may be up to date
	version Version                  // guarded by mu
	record  record.Record            // guarded by mu; never changed in place
	since   map[uint64]sighting      // guarded by mu; see clock
	highest uint64                   // guarded by mu; the highest number of a grant that was seen
	waiting map[string]chan struct{} // guarded by mu; by owner; closed when it may hold
	told    time.Time                // guarded by mu; when the store or its watch last reported the record
	session uint64                   // guarded by mu; of the watch that has reported the record since it was read; 0: none
	outside map[string]bool          // guarded by mu; owners of this process that found no place in the record
	tried   map[string]time.Time     // guarded by mu; by owner; when a waiter with a place in the record, or in need of one, last tried
	wanting map[string]*claim        // guarded by mu; by owner; holders of this process that want to know of waiters
	checks  int                      // guarded by mu; how many checks for waiters were requested; 0: none is running

	alone   onecall.Gate             // for waiters that load the line, or ask for their place in the record
	line    *line                    // guarded by mu; nil: no waiters beside the record are known
	awaited map[string]chan struct{} // guarded by mu; by id; closed when the line has a place, or will not get it
}

// A view is a copy of what is known of a resource, without claims that are over.
type view struct {
	record.Record
	clock
	version Version
	dropped bool   // some claims were over
	next    string // the nonce of the next write

	served string // id of the place that the next write makes useless
	looked *line  // the places beside the record, if the call has read them; else nil

	patient bool // the writer waits, and gives way to others

	spare int // how many bytes the next write must leave for others' claims in the record

	stays bool // the next write must not remove the record, so that no write for its version is served later
}

// room is more than a record grows by the later writes of its claims. It is reserved with blanks
// behind the record when a newcomer is added. Half of it is reserved when a waiter is granted, and
// none for a renewal or a release. So where a store limits its values, newcomers are refused and
// holders are not.
const room = 1 << 10

// reserve sets the bytes that a Try on n claims leaves free: it may have added a claim, or made a
// grant.
func (v *view) reserve(n int, granted bool) {
	switch {
	case len(v.Claims) == 1: // there is no other claim
	case len(v.Claims) > n:
		v.spare = room
	case granted:
		v.spare = room / 2
	}
}

// encoded returns the record as it is written.
func (v *view) encoded() []byte {
	return append(v.Encode(), bytes.Repeat([]byte(" "), v.spare)...)
}

// note records what the store had at then or earlier, and wakes the next waiters. by is the clock
// of the call that wrote it; nil: it was read. It returns the holders that must be notified of a
// new waiter.
func (s *resource) note(r record.Record, version Version, then time.Time, by *clock) (wanted []*claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.record
	s.since = seen(&r, &s.record, s.since, s.told, then, by)
	s.known, s.version, s.record, s.told = true, version, r, time.Now()
	s.highest = max(s.highest, r.Fence)
	s.wakeNext()
	return s.wantedSince(&was, by == nil)
}

// raise records a grant with that number.
func (s *resource) raise(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.highest = max(s.highest, number)
}

// wakeNext wakes the waiters whose turn it is. Requires s.mu.
func (s *resource) wakeNext() {
	if len(s.waiting) == 0 {
		return
	}
	v := s.view()
	for owner := range v.Next {
		s.wake(owner)
	}
	s.wakeOutside(&v)
	if s.line == nil {
		return
	}
	for owner := range s.line.next(v.Claims, v.Limit) {
		s.wake(owner)
	}
}

// wakeOutside wakes some of the waiters without a place when half of the places are free. Requires
// s.mu.
func (s *resource) wakeOutside(v *view) {
	const few = 2 // because every process wakes some
	n := 0
	for owner := range s.outside {
		if v.ahead("") >= maxPlaces/2 || n == few {
			return
		}
		delete(s.outside, owner)
		s.wake(owner)
		n++
	}
}

// follows reports whether the watch has reported all changes of the record since it was read.
func (s *resource) follows(session uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session == session
}

// view returns a copy of what is known. Requires s.mu.
func (s *resource) view() view {
	v := view{Record: s.record, clock: clock{now: time.Now(), since: s.since}, version: s.version}
	v.Claims = slices.Clone(v.Claims)
	v.DropOver(&v.clock)
	v.dropped = len(v.Claims) < len(s.record.Claims)
	return v
}

// look returns a copy of what is known. known reports whether that may be up to date.
func (s *resource) look() (v view, highest uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view(), s.highest, s.known
}

// doubt makes the next call read the record.
func (s *resource) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = false
}

// arm returns a channel that closes when owner may hold.
func (s *resource) arm(owner string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.waiting[owner]
	if ch == nil {
		ch = make(chan struct{})
		if s.waiting == nil {
			s.waiting = make(map[string]chan struct{})
		}
		s.waiting[owner] = ch
	}
	return ch
}

// disarm forgets the channel of owner.
func (s *resource) disarm(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, owner)
}

// tries records that owner, which waits in the record, has tried again.
func (s *resource) tries(owner string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tried == nil {
		s.tried = make(map[string]time.Time)
	}
	s.tried[owner] = now
}

// triedSince returns the owners that have tried since then. It forgets the others.
func (s *resource) triedSince(then time.Time) map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.tried, func(_ string, at time.Time) bool { return !at.After(then) })
	return maps.Clone(s.tried)
}

// leaves forgets that owner waits in the record, or for a place in it.
func (s *resource) leaves(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake(owner) // it may wait by another claim
	delete(s.tried, owner)
	delete(s.outside, owner)
}

// wakeAll makes all waiters look again.
func (s *resource) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner := range s.waiting {
		s.wake(owner)
	}
}

// wake wakes the waiter of owner, if there is one. Requires s.mu.
func (s *resource) wake(owner string) {
	if ch := s.waiting[owner]; ch != nil {
		close(ch)
		delete(s.waiting, owner)
	}
}

const (
	// sweepFirst is the number of resources at which idle ones are first dropped.
	sweepFirst = 1024
	// idleAfter is when a resource without calls may be dropped.
	idleAfter = time.Minute
)

// resource returns what this process has seen of a resource.
func (d *Driver) resource(name string) *resource {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	s := d.resources[name]
	if s == nil {
		if len(d.resources) >= d.sweepAt {
			d.sweep(now)
		}
		s = &resource{name: name, alone: onecall.New()}
		d.resources[name] = s
	}
	s.used = now
	return s
}

// seen returns what this process has seen of a resource, or nil.
func (d *Driver) seen(name string) *resource {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.resources[name]
}

// sweep drops the resources that nobody needs. Requires d.mu.
func (d *Driver) sweep(now time.Time) {
	for name, s := range d.resources {
		if s.idle(now.Sub(s.used)) {
			delete(d.resources, name)
		}
	}
	d.sweepAt = max(sweepFirst, 2*len(d.resources))
}

// idle reports whether nobody needs a resource that was unused for so long: it has no waiters, and
// no claim with a TTL of half of that.
func (s *resource) idle(unused time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return unused > idleAfter && len(s.waiting) == 0 && len(s.wanting) == 0 && s.line == nil &&
		!slices.ContainsFunc(s.record.Claims, func(c record.Claim) bool { return c.TTL > unused/2 })
}

// take records an item that has just arrived.
func (d *Driver) take(s *resource, i Item) error {
	now := time.Now()
	r, err := d.decode(i)
	if err == nil {
		d.recall(s.note(r, i.Version, now.Add(-max(0, i.Age)), nil))
	}
	return err
}

// decode decodes a record. driver.ErrCorrupt means that it is damaged, or of another version.
func (d *Driver) decode(i Item) (record.Record, error) {
	r, err := record.Decode(i.Value)
	if err != nil {
		return r, fmt.Errorf("caslock: record of %q: %w", i.Name, err)
	}
	if len(i.Value) > 0 && len(trail(r.Nonce)) == 0 {
		return r, fmt.Errorf("caslock: record of %q: %w: it has no nonce", i.Name, driver.ErrCorrupt)
	}
	d.fill(&r, i.Version)
	return r, nil
}

// fill sets the numbers of grants that are the version of their record, which was the first value
// of its name.
func (d *Driver) fill(r *record.Record, v Version) {
	for i := range r.Claims {
		if c := &r.Claims[i]; d.number != nil && c.Status == record.Holding && c.Fence == 0 {
			c.Fence = d.number(v)
			r.Fence = max(r.Fence, c.Fence)
		}
	}
}
