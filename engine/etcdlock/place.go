package etcdlock

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A place is the life of one key: first a place in the queue, then a lease. Claims of one
// owner in one driver share it. All fields but the first five and lingers are guarded by Driver.mu.
type place struct {
	d     *Driver
	claim *claim // the first of claims; its request is in the key
	line  *line  // the queue that it is in
	key   string
	named *session // the session whose lease is part of the key; nil: another process's

	stage
	claims  []*claim // the claims that share it
	in      *session // the session of the key, or the one of its put; nil: another process's, to be moved out of
	rev     int64    // its create revision, from phase queued on
	gone    int64    // the last revision at which its key was deleted since a call began
	unsure  uncertain
	lingers []clientv3.LeaseID // leases of etcd for the key after a release; the releasing claim's alone
	calls   int                // calls in flight, which keep it from expiring
	by      *claim             // the claim that releases it; nil: another of its owner may, as after a failure
	listens bool               // one of these calls needs to know of deletions
	recalls bool               // its holders are about to be notified that others wait
	looks   bool               // a read of those behind it is about to begin
	until   boottime.Instant   // when it is unwanted, if nobody calls
}

// places are the places of a driver. Driver.mu guards them.
type places struct {
	of    map[string]*line  // by dir; no line is without places
	keyed map[string]*place // by key
	timer *time.Timer       // starts the next sweep; nil: there was none yet
	armed boottime.Instant  // when timer fires; zero: it does not
}

// all returns all places, none of which is over. Requires Driver.mu.
func (l *places) all() []*place {
	var all []*place
	for _, of := range l.of {
		all = append(all, of.places...)
	}
	return all
}

// at returns the place that has key, or nil. Requires Driver.mu.
func (l *places) at(key string) *place { return l.keyed[key] }

// remove removes a place that is over. Requires Driver.mu.
func (l *places) remove(p *place) {
	if len(p.unsure.puts) > 0 {
		p.spend()
	}
	p.moveTo(nil)
	delete(l.keyed, p.key)
	of := p.line
	of.places = slices.DeleteFunc(of.places, func(one *place) bool { return one == p })
	if len(of.places) == 0 {
		delete(l.of, p.claim.dir)
	}
}

// newPlace gives c a place with a new key, to be put into s. Requires d.mu.
func (d *Driver) newPlace(c *claim, s *session) *place {
	p := &place{key: d.freeKey(s, c.dir, weightOf(&c.req)), named: s}
	p.moveTo(s)
	return d.add(c, p)
}

// adopted gives c a place with the key of e, which another process has made. Requires d.mu.
func (d *Driver) adopted(c *claim, e entry) *place {
	p := d.add(c, &place{key: e.key, rev: e.rev})
	p.on(yes, nil)
	return p
}

func (d *Driver) add(c *claim, p *place) *place {
	p.d, p.claim, p.until = d, c, d.clock.Now().Add(roundUp(c.req.TTL))
	if p.line = d.of[c.dir]; p.line == nil {
		p.line = &line{d: d}
		d.of[c.dir] = p.line
	}
	p.line.places = append(p.line.places, p)
	d.keyed[p.key] = p
	d.sweepAt(p.until)
	c.join(p)
	return p
}

// join adds c to the claims of p. Requires Driver.mu.
func (c *claim) join(p *place) {
	c.place = p
	p.claims = append(p.claims, c)
	if c.req.Wanted != nil {
		p.d.changes.want()
	}
}

// leave undoes join, and returns why p is over; nil: it is not. Requires Driver.mu.
func (c *claim) leave() error {
	p := c.place
	p.claims = slices.DeleteFunc(p.claims, func(one *claim) bool { return one == c })
	c.place = nil
	return p.cause
}

// freeKey returns a key of that weight for one more place in s. Keys are used again, because the
// server's index keeps deleted ones until it is compacted, and a read of the resource passes over
// them. Requires d.mu.
func (d *Driver) freeKey(s *session, dir string, weight int) string {
	first := dir + strconv.FormatInt(int64(s.id), 16)
	key := weigh(first, weight)
	for n := 1; d.at(key) != nil || s.spent[key]; n++ {
		key = weigh(fmt.Sprintf("%s-%d", first, n), weight)
	}
	return key
}

// spend keeps the key from being used again. Requires Driver.mu.
func (p *place) spend() {
	if p.named != nil {
		p.named.spent[p.key] = true
	}
}

// moveTo records that the key is in s. Requires Driver.mu.
func (p *place) moveTo(s *session) {
	if p.in != nil {
		p.in.places--
	}
	if p.in = s; s != nil {
		s.places++
	}
}

// exists records that the key was created at revision rev. Requires Driver.mu.
func (p *place) exists(rev int64) {
	if p.phase != held {
		p.rev = rev // larger than before if another of its puts came after the key was deleted
	}
	if p.phase == idle {
		p.on(yes, nil)
	}
	if p.gone > p.rev {
		p.on(lost, errDeleted)
	}
}

// begin and finish enclose a call that asks for ttl. A place that a call may renew does not expire
// under it. Both require Driver.mu.
func (p *place) begin(ttl time.Duration) (started boottime.Instant) {
	started = p.d.clock.Now()
	p.calls++
	p.until = max(p.until, started.Add(roundUp(ttl)))
	return started
}

func (p *place) finish() {
	if p.calls--; p.calls == 0 {
		p.deaf()
	}
	if p.phase != over {
		p.d.sweepAt(p.until)
	}
}

func (p *place) done() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.finish()
}

// lasts records that the place was granted, or kept alive, until then at least. Requires Driver.mu.
func (p *place) lasts(until boottime.Instant) {
	if len(p.claims) > 1 { // another claim may have asked for more
		until = max(until, p.until)
	}
	p.until = until
}

func (p *place) revision() int64 {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.rev
}
