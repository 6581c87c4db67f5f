package explore

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// An engine records what Links have seen of one resource at one engine.
type engine struct {
	place
	name   string
	fair   bool
	claims []*record
	firsts int       // number of attempts that were the first of their claims
	forgot []*record // what it knew when it restarted without its data
	limit  int       // an operator's limit; 0: none
}

// A record is what is known about one claim.
type record struct {
	owner string
	user  user
	first int       // its place in the order of first attempts
	waits bool      // it has a place
	left  bool      // it was released; later attempts of it do not count
	holds bool      // it was granted
	ends  time.Time // when the grant ends, according to the engine's answers
	over  bool      // its grant was ended by force
}

// A place identifies a resource at a node. node is "" if there is only one engine.
type place struct{ node, resource string }

func (p place) String() string { return strings.TrimSpace(p.node + " " + p.resource) }

// engineOf returns the record of a resource. Requires World.mu.
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

// hasForgotten reports whether the engine has restarted since it knew owner.
func (e *engine) hasForgotten(owner string) bool {
	return slices.ContainsFunc(e.forgot, func(r *record) bool { return r.owner == owner })
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

// tried checks the engine's answer to a Try, when it is served.
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

// resolution is how early a lease may end on engines with coarse clocks. The core allows for as
// much.
const resolution = 2 * time.Millisecond

// checkGrant: the engine grants nothing that conflicts with a lease that has not ended. If it is
// fair, it grants in the order of first attempts. After messages were held or lost, places may be
// lost, and with them the order. An attempt that arrives after its claim was given up takes a place
// that may end meanwhile. A claim that already holds may exceed a limit that was lowered since.
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

// renewed records the engine's answer to a Renew, when it is served.
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

// released checks the engine's answer to a Release, when it is served. The answer may be nil only
// if the lease is there.
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

// asked adds to the number of calls without an answer.
func (w *World) asked(more int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.open += more
}

// overlap fails the schedule because two calls on one claim overlap.
func (w *World) overlap(op string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail("%s is asked for while another call on its claim is under way", op)
}

// checkBeliefs: no client believes that it holds for longer than the engine keeps its lease. With
// several engines, that must be true of most.
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
		if r := e.claim(l.Owner()); e.hasForgotten(l.Owner()) || r.holds && !r.ends.Before(l.Deadline()) {
			keep++
		} else {
			ends = r.ends
		}
	}
	if all > 0 && 2*keep <= all {
		w.fail("%s believes to hold until %v, which the engine ends at %v", l.client.name, w.at(l.Deadline()), w.at(ends))
	}
}

// checkFreed: if every call was answered, no lease or place remains after its client has ended.
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

// wasEvicted records that an engine has evicted owner.
func (w *World) wasEvicted(at place, owner string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.engineOf(at, false).claim(owner).over = true
	}
}
