package explore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// checkState checks the engine's state, if OnState was called.
func (w *World) checkState() {
	if w.inspect == nil {
		return
	}
	for _, name := range w.names() {
		now := w.inspect(name)
		w.mu.Lock()
		w.checkServed(w.seen[name], now)
		w.checkKept(now)
		w.mu.Unlock()
		w.seen[name] = now
	}
}

// names returns the resource of all scenarios, and others of which a client has had a lease.
func (w *World) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := []string{resource}
	if slices.ContainsFunc(w.ledger.leases, func(l *lease) bool { return l.Name() == other }) {
		all = append(all, other)
	}
	return all
}

// checkServed: the engine grants nothing beyond a limit. A fair engine serves waiters in the order
// of their first attempts. After messages were held or lost, places may be lost, and with them the
// order.
func (w *World) checkServed(before, now driver.State) {
	waits := func(all []driver.Waiter, owner string) int {
		return slices.IndexFunc(all, func(o driver.Waiter) bool { return o.Owner.Reveal() == owner })
	}
	for i, h := range now.Holders {
		if h.Owner.Reveal() == "" || slices.ContainsFunc(before.Holders, func(o driver.Holder) bool { return o.Owner == h.Owner }) {
			continue
		}
		ahead := before.Waiters
		if i := waits(ahead, h.Owner.Reveal()); i >= 0 {
			ahead = ahead[:i]
		}
		if !w.fair || w.faulty {
			ahead = nil
		}
		var first []user // waiters that may hold beside h, and may have been granted without knowing it
		for _, o := range ahead {
			if waits(now.Waiters, o.Owner.Reveal()) < 0 {
				continue
			}
			if o.Mode != driver.Shared || h.Mode != driver.Shared {
				w.fail("%s is granted before %s, who came first", h.Owner.String(), o.Owner.String())
			}
			if one := userOf(o.Mode, 0, o.Weight); !one.tooHeavy(now.Limit) {
				first = append(first, one)
			}
		}
		if w.fair { // otherwise one of several servers may have granted what the others refuse, until that is given back
			w.checkRoomAt(before, now, i, first)
		}
	}
}

// checkKept: no client believes that it holds for longer than the engine keeps its lease.
func (w *World) checkKept(now driver.State) {
	if w.ledger.disturbed {
		return
	}
	for _, l := range w.ledger.leases {
		if l.Name() != now.Resource || !l.believes() || w.excused(l) {
			continue
		}
		i := slices.IndexFunc(now.Holders, func(h driver.Holder) bool { return h.Owner.Reveal() == l.Owner() })
		if i < 0 {
			w.fail("%s believes to hold until %v, but the engine has no lease of it", l.client.name, w.at(l.Deadline()))
		} else if ends := time.Now().Add(now.Holders[i].Left); ends.Before(l.Deadline()) {
			w.fail("%s believes to hold until %v, which the engine ends at %v", l.client.name, w.at(l.Deadline()), w.at(ends))
		}
	}
}

// viewState writes the engine's state, for noteState.
func (w *World) viewState(b *strings.Builder) {
	for _, name := range []string{resource, other} {
		for _, h := range w.seen[name].Holders {
			fmt.Fprint(b, "|", name, h.Mode, w.coarse(h.Left))
		}
		fmt.Fprint(b, "|", len(w.seen[name].Waiters))
	}
}

// awaitArrival waits until no message is in flight, at most for as long as one may be held.
func (w *World) awaitArrival() {
	time.Sleep(100 * hop)
	for end := time.Now().Add(3 * w.harness.TTL); !w.quiet.Load() && time.Now().Before(end); {
		time.Sleep(100 * hop)
	}
}
