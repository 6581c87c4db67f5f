package etcdlock

import (
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// A place is the life of one key of a claim: first a place in the queue, then a lease.
// What changes the key names its create revision, so that nothing that comes late touches
// the next place with that key; after an unknown outcome there is no next. All fields but
// the first three are guarded by Driver.mu.
type place struct {
	claim *claim
	key   string
	named *session // whose lease is in the key

	sess     *session   // whose lease the key is under, or is to be
	settled  bool       // it is: this driver has put it there
	in       []*session // that know the place; more than one while a move is unknown
	rev      int64      // create revision; 0: it is not known that the key exists
	unsureIn []*session // that a put has an unknown outcome in: it may still come
	late     bool       // something else has an unknown outcome, or another place had the key
	lastGone int64      // when the key was last deleted, while rev was not known
	held     bool
	since    time.Time // when it became held
	ended    error     // why it is over; nil: it is not

	calling bool      // a call is under way, which keeps it from expiring
	until   time.Time // when it expires unless renewed

	wake     chan struct{} // closed when Try may bring news; nil: it does not wait
	ahead    []entry       // those before it as of revision readAt; nil: not known
	readAt   int64
	found    time.Time  // when the call began that read them, and its own key
	watchWas int        // of the watch, when the reading began; see watch.since
	turn     bool       // all that kept it from being granted is gone
	heard    []deletion // what was deleted during a call
}

type deletion struct {
	key string
	rev int64
}

// over ends the place for cause. The returned function calls Request.Lost if that is due;
// call it without Driver.mu. Requires Driver.mu.
func (p *place) over(cause error) (notify func()) {
	if p.ended != nil {
		return func() {}
	}
	p.ended = asLost(cause)
	tell := p.claim.req.Lost
	if !p.held || p.claim.place != p || p.claim.releasing {
		tell = nil
	}
	if s := p.mayCome(); s != nil {
		p.toBury(s)
	} else {
		p.leave()
	}
	p.wakeUp()
	return func() {
		if tell != nil {
			tell(p.ended)
		}
	}
}

// expire ends the place because nobody renewed it. Its key is still to be deleted.
// Requires Driver.mu.
func (p *place) expire() {
	if p.ended == nil {
		p.ended = fmt.Errorf("%w: it expired", driver.ErrLost)
	}
	p.claim.d.watch.forget(p)
	p.wakeUp()
}

// leave is for a place whose key is gone for sure. Requires Driver.mu.
func (p *place) leave() {
	d := p.claim.d
	for _, s := range p.in {
		delete(s.places, p)
	}
	p.in = nil
	d.watch.forget(p)
	if len(p.unsureIn) > 0 || p.late {
		p.named.retired[p.key] = true
	}
	if d.keys[p.key] == p { // else another has adopted it
		delete(d.keys, p.key)
	}
}

// mayCome is a session that lives, in which a put may still come, or to which the key may
// have moved; nil: there is none. Requires Driver.mu.
func (p *place) mayCome() *session {
	for _, s := range p.unsureIn {
		if !s.gone {
			return s
		}
	}
	for _, s := range p.in {
		if p.rev != 0 && s != p.sess && !s.gone { // what does not exist does not move
			return s
		}
	}
	return nil
}

// toBury leaves it to s to keep out, or delete, the key of a place that is over. Requires
// Driver.mu.
func (p *place) toBury(s *session) {
	p.until = time.Now()
	p.enterSession(s)
	p.claim.d.reapAt(s, p.until)
	p.claim.d.watch.forget(p)
}

// exists notes that the key was created at revision rev. Requires Driver.mu.
func (p *place) exists(rev int64) {
	p.rev = rev
	if p.lastGone > rev {
		p.over(errDeleted)
	}
}

// enterSession makes s know the place. Requires Driver.mu.
func (p *place) enterSession(s *session) {
	if !slices.Contains(p.in, s) {
		p.in = append(p.in, s)
		s.join(p.claim.d, p)
	}
}

// settleIn is the end of a move to s. Requires Driver.mu.
func (p *place) settleIn(s *session) {
	for _, old := range p.in {
		if old != s {
			delete(old.places, p)
		}
	}
	p.sess, p.in, p.settled = s, []*session{s}, true
}

// begin and finish enclose a call that asks for ttl. The lease of a holder does not
// expire under a call that may renew it.
func (p *place) begin(ttl time.Duration) (started time.Time) {
	d := p.claim.d
	d.mu.Lock()
	defer d.mu.Unlock()
	started = time.Now()
	p.calling = true
	p.until = maxTime(p.until, started.Add(roundUp(ttl)))
	return started
}

func (p *place) finish() {
	d := p.claim.d
	d.mu.Lock()
	defer d.mu.Unlock()
	p.calling = false
}

// wakeUp closes Wake. Requires Driver.mu.
func (p *place) wakeUp() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

// gone notes that key was deleted at revision rev. Requires Driver.mu.
func (p *place) gone(key string, rev int64) {
	if p.ahead == nil {
		p.heard = append(p.heard, deletion{key, rev})
		return
	}
	if rev <= p.readAt { // old news: other clients use a key again
		return
	}
	before := len(p.ahead)
	p.ahead = slices.DeleteFunc(p.ahead, func(e entry) bool { return e.key == key })
	if len(p.ahead) < before && p.admittedBehind(p.ahead) {
		p.turn = true
		p.wakeUp()
	}
}

// admittedBehind reports whether the claim holds with all of ahead before it. It goes on doing
// so: others come behind, and those ahead only go.
func (p *place) admittedBehind(before []entry) bool {
	ahead := queue.Behind(before, len(before), entry.claim)
	return ahead.Admits(queue.Claim{Mode: p.claim.req.Mode, Limit: p.claim.req.Limit})
}

func (p *place) shared() bool { return p.claim.req.Mode == driver.Shared }

// listenFrom is called before a reading of those ahead. Requires Driver.mu.
func (p *place) listenFrom() {
	p.ahead, p.heard, p.turn = nil, nil, false
	p.watchWas = 0
	if w := &p.claim.d.watch; w.live {
		p.watchWas = w.since
	}
}

// reliable reports whether the watch has heard all since listenFrom. Requires Driver.mu.
func (p *place) reliable() bool {
	w := &p.claim.d.watch
	return w.live && p.watchWas == w.since
}

// waitFor makes p wait for those ahead, as they were at revision rev, and returns what
// closes when it is its turn. Requires Driver.mu.
func (p *place) waitFor(ahead []entry, rev int64) <-chan struct{} {
	wake := make(chan struct{})
	p.wake, p.ahead, p.readAt = wake, slices.Clone(ahead), rev
	heard := p.heard
	p.heard = nil
	for _, h := range heard {
		p.gone(h.key, h.rev)
	}
	return wake
}
