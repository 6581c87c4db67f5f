package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// remove ends the wait of a waiter whose call waits at this instance.
//
// It cannot remove the place in the queue. Another instance may have granted the owner its lease a
// moment ago, and a release would end that lease. The waiter gives up its place itself, or the
// place ends within seconds.
func (s *Server) remove(w http.ResponseWriter, r *http.Request, c *wire.RemoveCall) {
	if err := checkRemoval(c); err != nil {
		s.rejected(w, err)
		return
	}
	v := about(w, c.Name, cmp.Or(c.Owner, c.Handle))
	v.Reason = c.Reason
	s.operate(v, r, 2*callBound, s.heldOrFailed, func(ctx context.Context) error { return s.removeNow(ctx, c, v.who()) })
}

func checkRemoval(c *wire.RemoveCall) error {
	if err := driver.CheckName(c.Name); err != nil {
		return err
	}
	switch {
	case (c.Owner == "") == (c.Handle == ""):
		return errors.New("want the owner, or its handle")
	case strings.TrimSpace(c.Reason) == "":
		return errors.New("the reason is missing: it is what the waiter is told")
	}
	if err := driver.CheckNote(c.Reason); err != nil {
		return fmt.Errorf("reason: %w", err)
	}
	return nil
}

// betweenCalls is how long a waiter may have no call here between two calls. betweenLooks is how
// often remove checks for its next call.
const betweenCalls, betweenLooks = 2 * time.Second, 20 * time.Millisecond

// removeNow ends the wait that c names. If the waiter is granted its lease meanwhile, the error is
// a *driver.Busy. If that is unknown, its next call finds out, and then a repeated removal.
func (s *Server) removeNow(ctx context.Context, c *wire.RemoveCall, by string) error {
	var one *claim
	for end := time.Now().Add(betweenCalls); ; {
		found := false
		one, found = s.claims.remove(c.Name, cmp.Or(c.Owner, c.Handle), &removal{at: time.Now(), by: by, reason: c.Reason})
		if one != nil {
			break
		}
		if !found || s.claims.removedBefore(c.Name, cmp.Or(c.Owner, c.Handle)) || time.Now().After(end) || pause.For(ctx, betweenLooks) != nil {
			return s.waitsElsewhere(ctx, c)
		}
	}
	if err := take(ctx, one); err != nil { // its call will be answered
		s.quit(one)
		return err
	}
	defer s.leave(one)
	if s.claims.granted(one) {
		return &driver.Busy{Holder: one.holder()}
	}
	if one.doubt != nil {
		return fmt.Errorf("the waiter may have been granted the lease: %v", one.doubt)
	}
	if !one.queued.IsZero() { // otherwise its call has given up the place
		s.hub.left(one)
	}
	return nil
}

// waitsElsewhere returns why no call that waits here matches c; nil: it was removed before.
func (s *Server) waitsElsewhere(ctx context.Context, c *wire.RemoveCall) error {
	state, err := s.inspect(ctx, c.Name)
	if err != nil {
		return err
	}
	owner := cmp.Or(c.Owner, c.Handle)
	for _, h := range state.Holders {
		if wire.Names(owner, h.Owner) {
			return &driver.Busy{Holder: h}
		}
	}
	if s.claims.removedBefore(c.Name, owner) {
		return nil // its place may be shown until it ends
	}
	for _, w := range state.Waiters {
		if wire.Names(owner, w.Owner) {
			return fmt.Errorf("%w: it waits at another instance, or without the service: end its program", driver.ErrUnsupported)
		}
	}
	return fmt.Errorf("%w: it does not wait", driver.ErrLost)
}

// remove ends the wait of an owner, given in full or by its handle, and refuses its later attempts
// here. It returns the claim, for which leave must follow, or nil if no call of the owner waits
// here. queued means that it has a place, so another call may come.
func (c *claims) remove(name, owner string, gone *removal) (waits *claim, queued bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := cmp.Or(c.all[lease{name, wire.Handle(owner)}], c.all[lease{name, owner}])
	if one == nil || one.waiting == nil {
		return nil, one != nil && one.isQueued()
	}
	c.removed.put(one.key, gone)
	one.users++
	one.waiting(gone.why())
	return one, true
}

// removedBefore reports whether an earlier removal of an owner, given in full or by its handle, has
// left it without a lease.
func (c *claims) removedBefore(name, owner string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range []lease{{name, wire.Handle(owner)}, {name, owner}} {
		if gone, ok := c.removed.get(key); ok && gone.refused != nil {
			return true
		}
	}
	return false
}

// marks sets for each waiter whether it waits here, so that remove can end its wait.
func (c *claims) marks(shown *wire.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, w := range shown.Waiters {
		one := c.all[lease{shown.Name, w.Handle}]
		shown.Waiters[i].Here = one != nil && (one.waiting != nil || one.isQueued())
	}
}

// isQueued reports whether the claim is known to have a place in the queue. Requires claims.mu.
func (one *claim) isQueued() bool { return one.phase == queued && time.Now().Before(one.until) }

// A removal is who has removed a waiter from the queue at this instance, and why.
type removal struct {
	at         time.Time
	by, reason string
	// refused is the waiter's last call here that found no lease, while no other call of its owner
	// was known to be in flight elsewhere; nil: there is none.
	refused *order // guarded by claims.mu
}

func (r *removal) why() error { return driver.Evicted("removed from the queue: " + r.reason) }

// removedHere returns why this instance has removed the claim's owner from the queue; nil: it has
// not. refused means that its place alone can have got a lease since the owner was found without
// one: now is its caller's next call, or has no number. The owner does not get that lease. Requires
// mu.
func (c *claims) removedHere(one *claim, now order) (why error, refused bool) {
	gone, ok := c.removed.get(one.key)
	if !ok || one.phase == held {
		return nil, false
	}
	if refused = gone.refused != nil && !now.skips(*gone.refused); refused {
		gone.refused = &now
	}
	return gone.why(), refused
}

// removalOf returns how this instance has removed the claim's owner from the queue; nil: it has not.
func (c *claims) removalOf(one *claim) *removal {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone, _ := c.removed.get(one.key)
	return gone
}

// refuses records that a claim that was removed from the queue has no lease.
func (c *claims) refuses(one *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gone, ok := c.removed.get(one.key); ok && one.sure >= one.last.number {
		last := one.last
		gone.refused = &last
	}
}

// granted reports whether a claim was granted its lease before its removal. It then undoes the
// removal.
func (c *claims) granted(one *claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.phase != held {
		return false
	}
	c.removed.delete(one.key)
	return true
}
