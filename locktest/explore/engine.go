package explore

import (
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// An engine is what Links have seen of one resource at one engine.
type engine struct {
	name   string
	fair   bool
	claims []*record
	firsts int // attempts that were the first of their claims
}

// A record is what is known of one claim.
type record struct {
	owner  string
	shared bool
	first  int       // place in the order of first attempts
	waits  bool      // it has a place
	holds  bool      // it was granted
	ends   time.Time // when the grant ends, as far as the engine has said
	over   bool      // its grant was ended by force
}

// engineOf returns what is known of a resource. Requires World.mu.
func (w *World) engineOf(name string, fair bool) *engine {
	for _, e := range w.ledger.engines {
		if e.name == name {
			return e
		}
	}
	e := &engine{name: name, fair: fair}
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
func (w *World) tried(name string, fair bool, req *driver.Request, g driver.Grant, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.engineOf(name, fair)
	r := e.claim(req.Owner)
	if r.first == 0 || !r.waits && !r.holds {
		e.firsts++
		r.first = e.firsts
	}
	r.shared = req.Mode == driver.Shared
	switch {
	case err == nil:
		w.checkGrant(e, r)
		r.waits, r.holds, r.over, r.ends = false, true, false, time.Now().Add(g.TTL)
	case errors.Is(err, driver.ErrBusy):
		r.waits, r.holds = req.Queue, false
	}
}

// resolution is how much before its time a lease may end for engines whose clocks are coarse: the
// core keeps as much back of each.
const resolution = 2 * time.Millisecond

// checkGrant: the engine grants nothing beside a lease that has not ended, and in the order of
// first attempts if it is fair. Once messages were held or lost, places may be, and with them the order.
func (w *World) checkGrant(e *engine, r *record) {
	for _, o := range e.claims {
		switch {
		case o == r || w.ledger.disturbed:
		case o.holds && !o.over && time.Until(o.ends) > resolution && !(o.shared && r.shared):
			w.fail("%s grants %s beside %s, whose lease has %v left", e.name, w.who(r), w.who(o), time.Until(o.ends))
		case e.fair && o.waits && o.first < r.first && !w.faulty && !r.holds && !(o.shared && r.shared):
			w.fail("%s grants %s before %s, who came first", e.name, w.who(r), w.who(o))
		}
	}
}

func (w *World) who(r *record) string { return driver.ShortOwner(r.owner) }

// renewed notes what an engine has answered to a Renew when it served it.
func (w *World) renewed(name, owner string, g driver.Grant, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.engineOf(name, false).claim(owner)
	switch {
	case err == nil:
		r.holds, r.ends = true, time.Now().Add(g.TTL)
	case errors.Is(err, driver.ErrLost):
		r.holds = false
	}
}

// released checks what an engine has answered to a Release when it served it: yes is said of a
// lease that is there.
func (w *World) released(name, owner string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.engineOf(name, false).claim(owner)
	late := time.Since(r.ends)
	switch {
	case err != nil || !r.holds || w.ledger.disturbed:
	case r.over:
		w.fail("%s says that %s, evicted before, is released", name, w.who(r))
	case late > w.harness.TTL/10:
		w.fail("%s says that a lease is released which ended %v before", name, late)
	}
	if err == nil || errors.Is(err, driver.ErrLost) {
		r.holds, r.waits = false, false
	}
}

// wasEvicted notes that an engine has evicted owner.
func (w *World) wasEvicted(name, owner string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.engineOf(name, false).claim(owner).over = true
	}
}
