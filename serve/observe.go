package serve

import (
	"cmp"
	"context"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// observeLoss notifies the webhook of a lease that ended before it was released, as this instance
// has found. It counts the lease if it is ours: a client's of this instance.
func (s *Server) observeLoss(e told, ours bool) {
	if e.kind == wire.EventEvicted {
		if ours {
			s.metrics.lost.count(label("cause", causeEvicted))
		}
		s.webhook.tell(wire.NoticeEvicted, e.time, e.notice())
		return
	}
	if e.kind == wire.EventReleased || e.Details != nil && !e.Details.Renews() {
		return // its holder gave it up, or nobody meant to renew it
	}
	about := e.notice()
	if about.Cause = causeUnexplained; e.kind == wire.Expired {
		about.Cause = causeExpired
	}
	s.metrics.lost.count(label("cause", about.Cause))
	s.webhook.tell(wire.NoticeLost, e.time, about)
}

// observeEviction counts an eviction by a client here, and notifies the webhook.
func (s *Server) observeEviction(e told) {
	s.metrics.evictions.count("")
	s.webhook.tell(wire.NoticeEvicted, e.time, e.notice())
}

// observeWaits notifies the webhook of long waits, until ctx ends.
func (s *Server) observeWaits(ctx context.Context) {
	for pause.For(ctx, sweepEvery) == nil {
		for _, about := range s.claims.longWaits(s.webhook.LongWait, time.Now()) {
			s.webhook.tell(wire.NoticeWait, time.Time{}, about)
		}
	}
}

// A queuePlace is a place in the queue, as this instance knows it. The zero value means none.
type queuePlace struct {
	since   time.Time
	waiter  driver.Holder // the waiter, as a holder
	blocker driver.Holder // a holder at the last refusal
	asked   time.Time     // when that was
	told    bool          // the long wait was reported
}

// queues records a refusal that has given a claim a place, or has kept it. Requires the turn.
func (c *claims) queues(one *claim, blocker driver.Holder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	one.on(onPlace)
	one.until = now.Add(keepPlace) // no place lasts longer
	one.place = queuePlace{cmp.Or(one.place.since, now), one.holder(), blocker, now, one.place.told}
}

// longWaits returns the waits that are longer than bound. It returns each once.
func (c *claims) longWaits(bound time.Duration, now time.Time) (all []wire.NoticeData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		p := &one.place
		if one.phase != queued || p.told || now.Sub(p.since) < bound {
			continue
		}
		p.told = true
		about := eventOf(one.key.name, p.waiter).notice()
		about.Token, about.Waited = "", wire.Millis(now.Sub(p.since)) // the token was from an earlier lease
		if p.blocker != (driver.Holder{}) {
			h := holderOf(p.blocker.Later(now.Sub(p.asked)))
			about.Holders = []wire.NoticeHolder{{Owner: h.Owner, Handle: h.Handle, Note: h.Note, Held: h.Held}}
		}
		all = append(all, about)
	}
	return all
}

// notice returns the contents of a notice about the event.
func (e told) notice() wire.NoticeData {
	about := wire.NoticeData{
		Name: e.Name, Owner: e.Owner, Handle: e.Handle, Mode: e.Mode, Note: e.Note, Reason: e.Reason, By: e.by,
		Held: milliseconds(e.held), Silent: milliseconds(e.silent),
	}
	if e.Token != token(0) {
		about.Token = e.Token
	}
	if d := e.Details; d != nil {
		about.Host, about.User, about.Link = d.Host, d.User, d.Link
	}
	return about
}

// milliseconds returns *ms, or 0 if it is unknown.
func milliseconds(ms *int64) int64 {
	if ms == nil {
		return 0
	}
	return *ms
}

// holder returns the claim's lease as a holder. Requires the turn.
func (one *claim) holder() driver.Holder {
	return driver.Holder{Owner: driver.OwnerOf(one.owner), Mode: one.req.Mode, Fence: one.lease.fence, Note: one.req.Note}
}
