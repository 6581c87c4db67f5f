package explore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// A lease is one that a client got.
type lease struct {
	*leasehold.Lease
	client  *client
	wish    wish
	resumes *lease    // the one of another process that goes on as this one
	called  time.Time // when its holder asked for it
	begun   time.Time
	owner   string    // of its grant; see World.ownerOf
	stale   bool      // it had ended before its holder got it
	asked   time.Time // guarded by World.mu; when Release was called first
	lingers time.Time // guarded by World.mu; until when nobody else may hold
	evicted bool      // guarded by World.mu; somebody has begun to evict it, or its holder left it to another process
}

// Owner shadows that of the Lease, which would keep its grant from being kept.
func (l *lease) Owner() string { return l.owner }

// believes reports whether its holder may act on it, as far as it knows.
func (l *lease) believes() bool { return !l.client.process.dead && l.Context().Err() == nil }

// lost reports whether it ended before its holder gave it up.
func (l *lease) lost() bool {
	return l.Context().Err() != nil && errors.Is(context.Cause(l.Context()), driver.ErrLost)
}

// A ledger is what has come of the schedule so far.
type ledger struct {
	leases    []*lease            // in the order in which they began
	evicted   map[string]bool     // owners whom somebody has begun to evict
	ended     map[string]eviction // of owners, when they were told that this was done
	engines   []*engine           // what Links have seen of them
	asked     []*asked            // claims that want to know of others who wait
	settings  settings            // calls that set the limit of the resource
	forgotten time.Time           // when the engine may have ended leases that others count on
	disturbed bool                // the engine forgot, or its clock was set
	untidy    bool                // somebody died or a request was served twice, and may have left something
	open      int                 // calls without an answer
}

func newLedger() ledger {
	return ledger{evicted: make(map[string]bool), ended: make(map[string]eviction)}
}

// fail ends the schedule: a promise is broken. Requires World.mu.
func (w *World) fail(format string, args ...any) {
	if w.violation != "" || w.over {
		return
	}
	w.violation = fmt.Sprintf(format, args...)
	if w.verbose {
		w.log = append(w.log, fmt.Sprintf("%8.3f  BROKEN  %s", w.now().Seconds(), w.violation))
	}
	w.stop()
}

// stop has all clients come to their end. Requires World.mu.
func (w *World) stop() {
	if w.over || isClosed(w.stopped) {
		return
	}
	w.over = true
	close(w.stopped)
	for _, c := range w.clients {
		if c.cancel != nil {
			c.cancel()
		}
	}
}

// asks begins a call that may grant: it returns how many leases have begun.
func (w *World) asks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ledger.leases)
}

// begins checks a lease that was just granted, by a call that began when so many leases had.
func (w *World) begins(l *lease, asked int) *lease {
	w.tell("%s holds, token %d.%d", l.client.name, l.Token()>>10, l.Token()&1023)
	l.begun = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	l.owner = w.ownerOf(l)
	l.evicted = w.ledger.evicted[l.Owner()]
	w.checkToken(l, asked)
	l.stale = !l.believes()
	if late := time.Since(l.Deadline()); late > 0 && !l.client.process.dead {
		w.fail("%s gets a lease %v after its deadline", l.client.name, late)
	}
	switch {
	case l.stale:
	case l.evicted:
		w.checkLate(l)
	default:
		w.checkAlone(l)
		w.checkLingers(l)
		w.checkGivenBack(l)
	}
	w.ledger.untidy = w.ledger.untidy || l.wish.atLeast > 0
	w.ledger.leases = append(w.ledger.leases, l)
	return l
}

// checkGivenBack: where nothing happened, whoever waits for what another process keeps waits for a few uses, and not until
// that process does without it. Requires World.mu.
func (w *World) checkGivenBack(l *lease) {
	if waited := l.begun.Sub(l.called); w.kept > 0 && w.recalls && w.changed.IsZero() && waited >= w.ttl(0.15) {
		w.fail("%s waited %v for what is kept", l.client.name, waited)
	}
}

// checkToken: tokens grow in the order of grants. All leases that began before one was asked for
// were granted before it. Of exclusive ones those that began before it began were, too, unless it
// was handed over or resumed, and so granted long ago, or is of those that may end without notice.
func (w *World) checkToken(l *lease, asked int) {
	all := w.ledger.leases
	granted := len(all) // leases that began before l was granted
	for i, o := range all {
		if o.Owner() == l.Owner() && o.Name() == l.Name() {
			w.checkSameGrant(o, l)
			granted = min(granted, i)
		}
	}
	handedOver := granted < len(all) && l.resumes == nil
	for i, before := range all[:granted] {
		ordered := !l.shared() && !before.shared() && !w.excused(l)
		if before.Name() == l.Name() && (ordered || i < asked && !handedOver) && l.Token() <= before.Token() && l.Token() != 0 {
			w.fail("the token of %s does not grow: %d after %d of %s", l.client.name, l.Token(), before.Token(), before.client.name)
		}
	}
	for _, before := range all[granted:max(granted, asked)] {
		if l.resumes != nil && before.Owner() != l.Owner() && l.Token() <= before.Token() {
			w.fail("%s resumed a lease with token %d after %s held with %d", l.client.name, l.Token(), before.client.name, before.Token())
		}
	}
}

// checkSameGrant: tokens grow from hand-over to hand-over, and do not go back when resumed.
func (w *World) checkSameGrant(before, l *lease) {
	if l.Token() < before.Token() || l.Token() == before.Token() && l.resumes == nil && l.Token() != 0 {
		w.fail("the token of %s went back: %d after %d of the same grant", l.client.name, l.Token(), before.Token())
	}
}

func (l *lease) shared() bool { return l.wish.user().shared }

// checkAlone: of exclusive holders at most one believes at any instant, and of shared ones no
// more than limits allow. Two can only come to believe when one begins.
func (w *World) checkAlone(l *lease) {
	together := []*lease{l}
	for _, o := range w.ledger.leases {
		if o.Name() != l.Name() || !o.believes() || w.excused(o) || o.Owner() == l.Owner() && l.resumes != nil {
			continue
		}
		if !l.shared() || !o.shared() {
			w.fail("%s and %s both believe to hold, until %v and %v", o.client.name, l.client.name, w.at(o.Deadline()), w.at(l.Deadline()))
			return
		}
		together = append(together, o)
	}
	w.checkRoom(together)
}

// checkLingers: nobody holds while a lease lingers that was released.
func (w *World) checkLingers(l *lease) {
	for _, o := range w.ledger.leases {
		if left := time.Until(o.lingers); o.Name() == l.Name() && left > resolution && !w.excused(o) {
			w.fail("%s holds, while the lease of %s lingers for %v", l.client.name, o.client.name, left)
		}
	}
}

// checkLate: who was evicted before it got its lease has no greater token than who holds since.
func (w *World) checkLate(l *lease) {
	for _, o := range w.ledger.leases {
		if o.Name() == l.Name() && o.believes() && !w.excused(o) && !o.shared() && !l.shared() && o.Owner() != l.Owner() && o.Token() < l.Token() {
			w.fail("%s holds, evicted before, with token %d beside %s with %d", l.client.name, l.Token(), o.client.name, o.Token())
		}
	}
}

// excused reports whether another may hold beside l by documentation.
func (w *World) excused(l *lease) bool {
	forgotten := w.ledger.forgotten
	return l.evicted || !forgotten.IsZero() && l.begun.Before(forgotten.Add(w.harness.TTL))
}

func (w *World) at(t time.Time) time.Duration { return t.Sub(w.start).Round(time.Millisecond) }

// evicts says that owner may be evicted from now on.
func (w *World) evicts(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.evicted[owner] = true
	for _, l := range w.ledger.leases {
		l.evicted = l.evicted || l.Owner() == owner
	}
}

// An eviction is when one began and was done.
type eviction struct{ begun, done time.Time }

// isEvicted notes what came of an eviction that began then.
func (w *World) isEvicted(owner string, begun time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.ledger.ended[owner] = eviction{begun, time.Now()}
	}
}

// checkEvicted: who was evicted while it held does not go on: its lease is renewed by no call that began after. Requires World.mu.
func (w *World) checkEvicted() {
	for _, l := range w.ledger.leases {
		at, ended := w.ledger.ended[l.Owner()]
		if ended && l.begun.Before(at.begun) && l.believes() && l.Deadline().After(at.done.Add(w.harness.TTL)) {
			w.fail("%s believes to hold until %v, though it was evicted at %v", l.client.name, w.at(l.Deadline()), w.at(at.done))
		}
	}
}

// releases checks what Release answered: never yes when another may have held meanwhile. It
// reports whether the outcome is known.
func (w *World) releases(l *lease, asked time.Time, lost bool, err error) (known bool) {
	w.tell("%s: Release: %v", l.client.name, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.asked.IsZero() {
		l.asked = asked
	}
	if err == nil && lost {
		w.fail("Release of %s says released, of a lease that had ended", l.client.name)
	}
	if err == nil && l.wish.atLeast > 0 {
		l.lingers = l.begun.Add(w.ttl(l.wish.atLeast))
	}
	if err == nil && time.Since(l.begun) > leasehold.DefaultHandOver {
		w.checkReleased(l)
	}
	return err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, leasehold.ErrReleased)
}

// checkReleased: between the grant of l and its Release, nobody of another process has held. What is kept is released by
// what the engine said within that time. A lease
// that was handed over is of its owner's first grant, which a moved clock may have ended before.
func (w *World) checkReleased(l *lease) {
	since, granted := false, make(map[string]time.Time)
	for _, o := range w.ledger.leases {
		if _, ok := granted[o.Owner()]; !ok {
			granted[o.Owner()] = o.called
		}
		after := granted[o.Owner()].After(l.begun) || !w.excused(o) // otherwise it may be from before
		if since && after && !o.stale && o.Name() == l.Name() && o.client.process != l.client.process && o.Owner() != l.Owner() && o.begun.Before(l.asked.Add(-w.kept)) && !(o.shared() && l.shared()) {
			w.fail("Release of %s says released, but %s has held since", l.client.name, o.client.name)
		}
		since = since || o == l
	}
}

// refused checks a call that got nothing: in the plain order nothing fails, but who is too heavy. unanswered is how many
// calls of the process had ended without an answer before.
func (w *World) refused(c *client, waited bool, u user, called time.Time, unanswered int, err error) {
	w.tell("%s: %v", c.name, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if errors.Is(err, driver.ErrTooHeavy) {
		w.checkRefusedAsHeavy(c, u, called)
		return
	}
	// The release that follows may end before it has an answer, too. It has one where only the attempt had none.
	released := c.process.ended == (ended{unanswered + 1, true})
	if w.slow.Load() && errors.Is(err, context.DeadlineExceeded) && !released {
		w.lossy.Store(true)
	}
	if w.changed.IsZero() && !w.over && (waited || !errors.Is(err, driver.ErrBusy)) && !errors.Is(err, driver.ErrUnsupported) {
		w.fail("a call of %s fails though nothing happened: %v", c.name, err)
	}
}

// patience is how many TTLs after the last change everybody has been served.
const patience = 40

// limitWaiting: nobody waits without end once there are no more changes.
func (w *World) limitWaiting() {
	since := w.start
	if w.changed.After(since) {
		since = w.changed
	}
	if time.Since(since) < patience*w.harness.TTL {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running > 0 && !w.calm {
		w.fail("%d clients still wait %v after the last change", w.running, time.Since(since).Round(time.Second))
	}
}

// checkLeft: after everybody has gone, nothing is left.
func (w *World) checkLeft(l *leasehold.Locker) {
	for _, name := range w.names() {
		ctx, cancel := context.WithTimeout(context.Background(), w.harness.TTL)
		state, err := l.Inspect(ctx, name)
		cancel()
		if errors.Is(err, driver.ErrUnsupported) {
			return
		}
		w.afterwards(func() {
			switch {
			case err != nil:
				w.fail("Inspect fails though nothing happens: %v", err)
			case len(state.Holders)+len(state.Waiters) > 0:
				w.fail("left behind: %v %v", state.Holders, state.Waiters)
			}
		})
	}
}

// checkOutlived: what others have left is over, though the process of l goes on.
func (w *World) checkOutlived(l *leasehold.Locker) {
	if left := w.left(l); left != "" {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fail("left behind though its process goes on: %s", left)
	}
}

// left is what there is of what others used beside l, as far as it can be seen.
func (w *World) left(l *leasehold.Locker) string {
	if held, waits := w.sees(l); held+waits > 0 {
		return fmt.Sprintf("%d leases and %d places", held, waits)
	}
	return ""
}

// sees counts the leases and places of the resource.
func (w *World) sees(l *leasehold.Locker) (held, waits int) {
	if w.inspect != nil {
		state := w.inspect(resource)
		return len(state.Holders), len(state.Waiters)
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.harness.TTL)
	defer cancel()
	state, _ := l.Inspect(ctx, resource) // without an answer nothing is known
	return len(state.Holders), len(state.Waiters)
}

// isLast reports whether all clients but one have gone. From then on nothing is changed.
func (w *World) isLast() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = w.running == 1
	return w.calm
}

// checkTold checks that a Trace gets one begin and one end of each wait, hold and renewal.
func (w *World) checkTold() {
	w.afterwards(func() {
		if err := w.told.Err(); err != nil {
			w.fail("%v", err)
		}
		for _, e := range w.told.Open() {
			w.fail("a Trace: %+v has no end", e)
		}
	})
}

// afterwards lets the findings of check count although the schedule is over.
func (w *World) afterwards(check func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = w.violation != ""
	check()
	w.over = true
}

// view writes what is known of leases.
func (lg *ledger) view(b *strings.Builder, coarse func(time.Duration) int) {
	for _, l := range lg.leases {
		if l.believes() {
			fmt.Fprint(b, "|", l.client.name, coarse(time.Until(l.Deadline())))
		}
	}
	for _, e := range lg.engines {
		for _, c := range e.claims {
			fmt.Fprint(b, "|", e.name, c.waits, c.holds, coarse(time.Until(c.ends)))
		}
	}
}
