package explore

import (
	"errors"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// An engine is what Links have seen of one resource at one engine.
type engine struct {
	place
	name   string
	fair   bool
	claims []*record
	firsts int  // attempts that were the first of their claims
	forgot bool // it restarted
	limit  int  // of an operator; 0: none
}

// A record is what is known of one claim.
type record struct {
	owner string
	user  user
	first int       // place in the order of first attempts
	waits bool      // it has a place
	left  bool      // it was released: what its attempts do afterwards is nobody's wish
	holds bool      // it was granted
	ends  time.Time // when the grant ends, as far as the engine has said
	over  bool      // its grant was ended by force
}

// A place is where Links find a resource: at a node, "" where there is one engine alone.
type place struct{ node, resource string }

func (p place) String() string { return strings.TrimSpace(p.node + " " + p.resource) }

// engineOf returns what is known of a resource. Requires World.mu.
func (w *World) engineOf(at place, fair bool) *engine {
	for _, e := range w.ledger.engines {
		if e.place == at {
			return e
		}
	}
	e := &engine{place: at, name: at.String(), fair: fair}
	w.ledger.engines = append(w.ledger.engines, e)
	return e
}

func (e *engine) claim(owner string) *record {
	for _, r := range e.claims {
		if r.owner == owner {
			return r
		}
	}
	r := &record{owner: owner}
	e.claims = append(e.claims, r)
	return r
}

// tried checks what an engine has answered to a Try when it served it.
func (w *World) tried(at place, fair bool, req *driver.Request, g driver.Grant, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.engineOf(at, fair)
	r := e.claim(req.Owner)
	if r.first == 0 || !r.waits && !r.holds {
		e.firsts++
		r.first = e.firsts
	}
	r.user = userOf(req.Mode, req.Limit, req.Weight)
	switch {
	case err == nil:
		w.checkGrant(e, r)
		r.waits, r.holds, r.over, r.ends = false, true, false, time.Now().Add(g.TTL)
	case errors.Is(err, driver.ErrBusy):
		r.waits, r.holds = req.Queue, false
	case errors.Is(err, driver.ErrTooHeavy):
		r.waits, r.holds = false, false
	}
}

// resolution is how much before its time a lease may end for engines whose clocks are coarse: the
// core keeps as much back of each.
const resolution = 2 * time.Millisecond

// checkGrant: the engine grants nothing beside a lease that has not ended and leaves no room, and in the
// order of first attempts if it is fair. Once messages were held or lost, places may be, and with them the order; an
// attempt that comes after its claim was given up takes a place that may end meanwhile. Who was granted before may
// be beyond a limit that was lowered since.
func (w *World) checkGrant(e *engine, r *record) {
	if w.ledger.disturbed {
		return
	}
	var ahead []user
	for _, o := range e.claims {
		beside := r.user.fits([]user{o.user}, 0)
		switch {
		case o == r:
		case o.holds && !o.over && time.Until(o.ends) > resolution:
			if ahead = append(ahead, o.user); !beside {
				w.fail("%s grants %s beside %s, whose lease has %v left", e.name, w.who(r), w.who(o), time.Until(o.ends))
			}
		case e.fair && o.waits && !o.left && o.first < r.first && !w.faulty && !r.holds && !o.user.tooHeavy(e.limit):
			if ahead = append(ahead, o.user); !beside {
				w.fail("%s grants %s before %s, who came first", e.name, w.who(r), w.who(o))
			}
		}
	}
	if !r.holds && !r.user.fits(ahead, e.limit) {
		w.fail("%s grants %s with a weight of %d behind %v, where the limit is %d", e.name, w.who(r), r.user.weight, ahead, e.limit)
	}
}

func (w *World) who(r *record) string { return driver.ShortOwner(r.owner) }

// renewed notes what an engine has answered to a Renew when it served it.
func (w *World) renewed(at place, owner string, g driver.Grant, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.engineOf(at, false).claim(owner)
	switch {
	case err == nil:
		r.holds, r.ends = true, time.Now().Add(g.TTL)
	case errors.Is(err, driver.ErrLost):
		r.holds = false
	}
}

// released checks what an engine has answered to a Release when it served it: yes is said of a
// lease that is there.
func (w *World) released(at place, owner string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.engineOf(at, false).claim(owner)
	late := time.Since(r.ends)
	switch {
	case err != nil || !r.holds || w.ledger.disturbed:
	case r.over:
		w.fail("%s says that %s, evicted before, is released", at, w.who(r))
	case late > w.harness.TTL/10:
		w.fail("%s says that a lease is released which ended %v before", at, late)
	}
	if err == nil || errors.Is(err, driver.ErrLost) {
		r.holds, r.waits, r.left = false, false, true
	}
}

// asked counts the calls that have not come back with an answer.
func (w *World) asked(more int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.open += more
}

// overlap fails the schedule: two calls on one claim overlap, and the claim was not given up.
func (w *World) overlap(op string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail("%s is asked for while another call on its claim is under way", op)
}

// checkBeliefs: nobody believes for longer than the engine keeps its lease, or most of several do.
func (w *World) checkBeliefs() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkEvicted()
	if w.ledger.disturbed {
		return
	}
	for _, l := range w.ledger.leases {
		if l.believes() && !w.excused(l) {
			w.checkBelief(l)
		}
	}
}

func (w *World) checkBelief(l *lease) {
	all, keep, ends := 0, 0, time.Time{}
	for _, e := range w.ledger.engines {
		if e.resource != l.Name() {
			continue
		}
		all++
		if r := e.claim(l.Owner()); e.forgot || r.holds && !r.ends.Before(l.Deadline()) {
			keep++
		} else {
			ends = r.ends
		}
	}
	if all > 0 && 2*keep <= all {
		w.fail("%s believes to hold until %v, which the engine ends at %v", l.client.name, w.at(l.Deadline()), w.at(ends))
	}
}

// checkFreed: where each call was answered, nothing waits for its TTL to be gone.
func (w *World) checkFreed() {
	w.afterwards(func() {
		if w.ledger.open > 0 || w.ledger.disturbed || w.ledger.untidy {
			return
		}
		for _, e := range w.ledger.engines {
			for _, r := range e.claims {
				switch {
				case r.holds && !r.over && time.Now().Before(r.ends):
					w.fail("%s keeps the lease of %s, who has gone, for %v", e.name, w.who(r), time.Until(r.ends))
				case r.waits:
					w.fail("%s keeps the place of %s, who has gone", e.name, w.who(r))
				}
			}
		}
	})
}

// wasEvicted notes that an engine has evicted owner.
func (w *World) wasEvicted(at place, owner string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.engineOf(at, false).claim(owner).over = true
	}
}
