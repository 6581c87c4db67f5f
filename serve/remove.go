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

// remove sends a waiter away whose call waits here.
//
// Its place is its own to give up, which it does, or which ends within seconds. An instance cannot: the owner may have been
// granted the lease by another one a moment before, and to release what it has would end that lease.
func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	var c wire.RemoveCall
	if !s.read(w, r, &c) {
		return
	}
	if err := checkRemoval(&c); err != nil {
		s.rejected(w, err)
		return
	}
	v := about(w, c.Name, cmp.Or(c.Owner, c.Handle))
	if v.Reason = c.Reason; !s.may(w, Evict, c.Name) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 2*callBound)
	defer cancel()
	err := s.removeNow(ctx, &c, v.who())
	if busy, granted := errors.AsType[*driver.Busy](err); granted {
		s.busy(w, busy, wire.CodeBusy, false)
		return
	}
	if err != nil {
		s.failed(w, err)
		return
	}
	s.done(w)
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

// betweenCalls is for how long a waiter may have no call here, from one to the next, and betweenLooks how soon it is looked for
// again.
const betweenCalls, betweenLooks = 2 * time.Second, 20 * time.Millisecond

// removeNow ends the wait that c names. A waiter that is granted its lease meanwhile is a *driver.Busy.
func (s *Server) removeNow(ctx context.Context, c *wire.RemoveCall, by string) error {
	var one *claim
	for end := time.Now().Add(betweenCalls); ; {
		found := false
		one, found = s.claims.remove(c.Name, cmp.Or(c.Owner, c.Handle), sentAway{by, c.Reason})
		if one != nil {
			break
		}
		if !found || time.Now().After(end) || pause.For(ctx, betweenLooks) != nil {
			return s.waitsElsewhere(ctx, c)
		}
	}
	defer s.claims.leave(one)
	if err := take(ctx, one); err != nil { // its call has an answer then
		return err
	}
	defer one.calling.End()
	if s.claims.granted(one) {
		return &driver.Busy{Holder: driver.Holder{Owner: driver.OwnerOf(one.key.owner), Mode: one.req.Mode, Fence: one.lease.fence, Note: one.req.Note}}
	}
	if !one.queued.IsZero() { // else its call has given it up by itself
		s.hub.left(one)
	}
	return nil
}

// waitsElsewhere says why nobody who waits here is the one that c names.
func (s *Server) waitsElsewhere(ctx context.Context, c *wire.RemoveCall) error {
	state, err := s.inspect(ctx, c.Name)
	if err != nil {
		return err
	}
	is := func(o driver.Owner) bool {
		return o.Reveal() != "" && (o.Reveal() == c.Owner || wire.Handle(o.Reveal()) == cmp.Or(c.Handle, c.Owner))
	}
	for _, h := range state.Holders {
		if is(h.Owner) {
			return &driver.Busy{Holder: h}
		}
	}
	for _, w := range state.Waiters {
		if is(w.Owner) {
			return fmt.Errorf("%w: it waits at another instance, or without the service: end its program", driver.ErrUnsupported)
		}
	}
	return fmt.Errorf("%w: it does not wait", driver.ErrLost)
}

// remove ends the wait of an owner, given whole or by its handle, and refuses its later attempts here. It returns the
// claim, which leave follows; nil: no call of such an owner waits here. queued: it has a place, and another call may come.
func (c *claims) remove(name, owner string, away sentAway) (waits *claim, queued bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[key{name, owner}]
	for k, other := range c.all {
		if one == nil && k.name == name && wire.Handle(k.owner) == owner {
			one = other
		}
	}
	if one == nil || one.waiting == nil {
		return nil, one != nil && one.isQueued()
	}
	why := driver.Evicted("removed from the queue: " + away.reason)
	c.removed[one.key], one.away = why, away
	one.users++
	one.waiting(why)
	return one, true
}

// marks says of waiters whether they wait here, so that remove can send them away.
func (c *claims) marks(shown *wire.State, waiters []driver.Waiter) {
	if len(waiters) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	here := make(map[string]bool)
	for k, one := range c.all {
		if k.name == shown.Name && (one.waiting != nil || one.isQueued()) {
			here[wire.Handle(k.owner)] = true
		}
	}
	for i, w := range waiters { // another service shows handles in place of owners
		shown.Waiters[i].Here = here[shown.Waiters[i].Handle] || here[w.Owner.Reveal()]
	}
}

// isQueued reports whether the claim has a place in the queue, as far as is known. Requires claims.mu.
func (one *claim) isQueued() bool { return one.phase == queued && time.Now().Before(one.until) }

// removedHere is why this instance has sent the claim's owner away; nil: it has not. Requires mu.
func (c *claims) removedHere(one *claim) error {
	if one.phase == held {
		return nil
	}
	return cmp.Or(c.removed[one.key], c.removedBefore[one.key])
}

// wasSentAway is who has removed the claim from the queue.
func (c *claims) wasSentAway(one *claim) sentAway {
	c.mu.Lock()
	defer c.mu.Unlock()
	return one.away
}

// granted reports whether a claim that was removed has its lease all the same, which was granted before.
func (c *claims) granted(one *claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.phase != held {
		return false
	}
	one.away = sentAway{}
	delete(c.removed, one.key)
	delete(c.removedBefore, one.key)
	return true
}
