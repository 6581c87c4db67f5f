package explore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// A lease is a lease that a client got.
type lease struct {
	*leasehold.Lease
	client  *client
	wish    wish
	resumes *lease    // the lease of another process that this one resumes
	called  time.Time // when its Acquire was called
	begun   time.Time
	owner   string    // owner of its grant; see World.ownerOf
	stale   bool      // it had ended before the client got it
	longest float64   // guarded by World.mu; the longest TTL that was asked for, in TTLs
	asked   time.Time // guarded by World.mu; when Release was first called
	lingers time.Time // guarded by World.mu; until when AtLeast keeps others out
	evicted bool      // guarded by World.mu; an eviction of it has begun, or the client left it to another process
}

// Owner hides the method of the Lease, because reading the owner forbids keeping the grant.
func (l *lease) Owner() string { return l.owner }

// believes reports whether the client may act under the lease, as far as it knows.
func (l *lease) believes() bool { return !l.client.process.dead && l.Context().Err() == nil }

// lost reports whether the lease ended before the client released it.
func (l *lease) lost() bool {
	return l.Context().Err() != nil && errors.Is(context.Cause(l.Context()), driver.ErrLost)
}

// A ledger records what has happened in the schedule.
type ledger struct {
	leases    []*lease            // in the order of their beginnings
	evicted   map[string]bool     // owners whose eviction has begun
	ended     map[string]eviction // by owner, evictions that were confirmed
	engines   []*engine           // what Links have seen of engines
	asked     []*asked            // claims that want to know whether others wait
	settings  settings            // the calls that set the limit of the resource
	forgotten time.Time           // when the engine may have ended leases without notice
	disturbed bool                // the engine forgot its data, or its clock was set
	untidy    bool                // a process died or a request was served twice, so something may be left
	open      int                 // number of calls without an answer
}

func newLedger() ledger {
	return ledger{evicted: make(map[string]bool), ended: make(map[string]eviction)}
}

// fail ends the schedule because a promise is broken. Requires World.mu.
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

// stop lets all clients end. Requires World.mu.
func (w *World) stop() {
	if w.over || waiting.Closed(w.stopped) {
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

// asks returns how many leases have begun, for a call that is about to begin.
func (w *World) asks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ledger.leases)
}

// begins checks and records a new lease. asked is what asks returned before its call.
func (w *World) begins(l *lease, asked int) *lease {
	w.tell("%s holds, token %d.%d", l.client.name, l.Token()>>10, l.Token()&1023)
	l.begun = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	l.owner = w.ownerOf(l)
	l.evicted = w.ledger.evicted[l.Owner()]
	l.longest = float64(max(l.wish.ttls, 1))
	w.checkToken(l, asked)
	l.stale = !l.believes()
	if late := time.Since(l.Deadline()); late > 0 && !l.client.process.dead {
		w.fail("%s gets a lease %v after its deadline", l.client.name, late)
	}
	switch {
	case l.stale:
	case l.evicted:
		w.checkLate(l)
	case w.excused(l):
	default:
		w.checkAlone(l)
		w.checkLingers(l)
		w.checkGivenBack(l)
	}
	w.ledger.untidy = w.ledger.untidy || l.wish.atLeast > 0
	w.ledger.leases = append(w.ledger.leases, l)
	return l
}

// checkGivenBack: without changes, a client waits only for a few uses of a lease that another
// process keeps. It does not wait until that process stops using it. Requires World.mu.
func (w *World) checkGivenBack(l *lease) {
	if waited := l.begun.Sub(l.called); w.kept > 0 && w.recalls && w.changed.IsZero() && waited >= w.ttl(0.15) {
		w.fail("%s waited %v for what is kept", l.client.name, waited)
	}
}

// checkToken: tokens grow in the order of grants. All leases that began before the call for l were
// granted before l. So were exclusive leases that began before l did. The exceptions are a lease
// that was handed over or resumed, because it was granted long ago, and one that may have ended
// without notice.
func (w *World) checkToken(l *lease, asked int) {
	all := w.ledger.leases
	granted := len(all) // number of leases that began before l was granted
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

// checkSameGrant: within a grant, tokens grow with each hand-over, and do not get smaller when a
// lease is resumed.
func (w *World) checkSameGrant(before, l *lease) {
	if l.Token() < before.Token() || l.Token() == before.Token() && l.resumes == nil && l.Token() != 0 {
		w.fail("the token of %s went back: %d after %d of the same grant", l.client.name, l.Token(), before.Token())
	}
}

func (l *lease) shared() bool { return l.wish.user().shared }

// checkAlone: at any instant at most one exclusive holder believes that it holds, and no more
// shared ones than limits allow. Such a conflict begins with a lease, so it suffices to check new
// ones.
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

// checkLingers: nobody else holds while AtLeast keeps a released lease.
func (w *World) checkLingers(l *lease) {
	for _, o := range w.ledger.leases {
		if left := time.Until(o.lingers); o.Name() == l.Name() && left > resolution && !w.excused(o) {
			w.fail("%s holds, while the lease of %s lingers for %v", l.client.name, o.client.name, left)
		}
	}
}

// checkLate: a client that was evicted before it got its lease has no greater token than its
// successor.
func (w *World) checkLate(l *lease) {
	for _, o := range w.ledger.leases {
		if o.Name() == l.Name() && o.believes() && !w.excused(o) && !o.shared() && !l.shared() && o.Owner() != l.Owner() && o.Token() < l.Token() {
			w.fail("%s holds, evicted before, with token %d beside %s with %d", l.client.name, l.Token(), o.client.name, o.Token())
		}
	}
}

// excused reports whether the documentation lets another client hold at the same time as l: l was
// evicted, or the engine may have forgotten it and has not renewed it since. Requires World.mu.
func (w *World) excused(l *lease) bool {
	forgotten := w.ledger.forgotten
	return l.evicted || !forgotten.IsZero() && !l.Deadline().After(forgotten.Add(w.ttl(l.longest)))
}

func (w *World) at(t time.Time) time.Duration { return t.Sub(w.start).Round(time.Millisecond) }

// evicts records that owner may be evicted from now on.
func (w *World) evicts(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.evicted[owner] = true
	for _, l := range w.ledger.leases {
		l.evicted = l.evicted || l.Owner() == owner
	}
}

// An eviction holds the times of an eviction's call and of its answer.
type eviction struct{ begun, done time.Time }

// isEvicted records the outcome of an eviction that began at the given time.
func (w *World) isEvicted(owner string, begun time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.ledger.ended[owner] = eviction{begun, time.Now()}
	}
}

// checkEvicted: a holder that was evicted ends. No renewal that began afterwards succeeds. Requires
// World.mu.
func (w *World) checkEvicted() {
	for _, l := range w.ledger.leases {
		at, ended := w.ledger.ended[l.Owner()]
		if ended && l.begun.Before(at.begun) && l.believes() && l.Deadline().After(at.done.Add(w.harness.TTL)) {
			w.fail("%s believes to hold until %v, though it was evicted at %v", l.client.name, w.at(l.Deadline()), w.at(at.done))
		}
	}
}

// releases checks the result of a Release. It must not be nil if another may have held meanwhile.
// Without changes, a lease that is renewed is not lost, and its Release does not fail. releases
// reports whether the outcome is known.
func (w *World) releases(l *lease, asked time.Time, lost bool, err error) (known bool) {
	w.tell("%s: Release: %v", l.client.name, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.asked.IsZero() {
		l.asked = asked
	}
	if w.changed.IsZero() && !l.wish.noRenew && !l.evicted && l.resumes == nil {
		switch {
		case lost:
			w.fail("the lease of %s is lost though nothing happened", l.client.name)
		case err != nil && !errors.Is(err, leasehold.ErrReleased):
			w.fail("Release of %s fails though nothing happened: %v", l.client.name, err)
		}
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

// checkReleased: between the grant of l and its Release, no other process has held. A kept lease is
// released on the basis of the engine's last confirmation, which may be as old as Keep. A lease
// that was handed over belongs to its owner's first grant, which a moved clock may have ended
// before.
func (w *World) checkReleased(l *lease) {
	since, granted := false, make(map[string]time.Time)
	for _, o := range w.ledger.leases {
		if _, ok := granted[o.Owner()]; !ok {
			granted[o.Owner()] = o.called
		}
		after := granted[o.Owner()].After(l.begun) || !w.excused(o) // otherwise o may have begun before
		if since && after && !o.stale && o.Name() == l.Name() && o.client.process != l.client.process && o.Owner() != l.Owner() && o.begun.Before(l.asked.Add(-w.kept)) && !(o.shared() && l.shared()) {
			w.fail("Release of %s says released, but %s has held since", l.client.name, o.client.name)
		}
		since = since || o == l
	}
}

// refused checks a call without a lease. Without changes, no call fails except one that is too
// heavy. unanswered is how many calls of the process had ended without an answer before.
func (w *World) refused(c *client, waited bool, u user, called time.Time, unanswered int, err error) {
	w.tell("%s: %v", c.name, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if errors.Is(err, driver.ErrTooHeavy) {
		w.checkRefusedAsHeavy(c, u, called)
		return
	}
	// The release that follows may end without an answer as well. If exactly one call more is
	// unanswered, the last one was answered, and no other is under way, only the attempt had none.
	released := c.process.ended == (ended{unanswered + 1, true, 0})
	if w.slow.Load() && errors.Is(err, context.DeadlineExceeded) && !released {
		w.lossy.Store(true)
	}
	if w.changed.IsZero() && !w.over && (waited || !errors.Is(err, driver.ErrBusy)) && !errors.Is(err, driver.ErrUnsupported) {
		w.fail("a call of %s fails though nothing happened: %v", c.name, err)
	}
}

// patience is the time in TTLs after the last change within which all clients must be served.
const patience = 40

// limitWaiting fails the schedule if a client waits too long after the last change.
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

// checkLeft: after all clients have ended, nothing is left.
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

// checkOutlived: what other processes have left is over, although the process of l still runs.
func (w *World) checkOutlived(l *leasehold.Locker) {
	if left := w.left(l); left != "" {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fail("left behind though its process goes on: %s", left)
	}
}

// left describes the leases and places of the resource that remain, as far as they can be seen.
func (w *World) left(l *leasehold.Locker) string {
	if held, waits := w.sees(l); held+waits > 0 {
		return fmt.Sprintf("%d leases and %d places", held, waits)
	}
	return ""
}

// sees counts the leases and places of the resource. It asks through l if OnState was not called.
func (w *World) sees(l *leasehold.Locker) (held, waits int) {
	if w.inspect != nil {
		state := w.inspect(resource)
		return len(state.Holders), len(state.Waiters)
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.harness.TTL)
	defer cancel()
	state, _ := l.Inspect(ctx, resource) // after an error the state is empty
	return len(state.Holders), len(state.Waiters)
}

// isLast reports whether only one client is left. From then on there are no changes.
func (w *World) isLast() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = w.running == 1
	return w.calm
}

// checkTold checks that a Trace gets one beginning and one end of each wait, hold and renewal.
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

// afterwards runs check so that its findings count, although the schedule is over.
func (w *World) afterwards(check func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = w.violation != ""
	check()
	w.over = true
}

// view writes what is known about leases, for noteState.
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
