package serve

import (
	"cmp"
	"context"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// observeLoss is for a lease that ended before it was released, as this instance found out.
func (s *Server) observeLoss(e told) {
	if e.kind == wire.EventEvicted {
		s.metrics.lost.count(label("cause", causeEvicted))
		s.webhook.tell(wire.NoticeEvicted, e.notice())
		return
	}
	if e.Details != nil && !e.Details.Renews() {
		return // one that nobody means to renew
	}
	about := e.notice()
	if about.Cause = causeUnexplained; e.kind == wire.Expired {
		about.Cause = causeExpired
	}
	s.metrics.lost.count(label("cause", about.Cause))
	s.webhook.tell(wire.NoticeLost, about)
}

// observeEviction is for a lease that a client has evicted here.
func (s *Server) observeEviction(e told) {
	s.metrics.evictions.count("")
	s.webhook.tell(wire.NoticeEvicted, e.notice())
}

// observeWaits tells of claims that wait for long, until ctx ends.
func (s *Server) observeWaits(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, about := range s.claims.longWaits(s.webhook.LongWait, time.Now()) {
				s.webhook.tell(wire.NoticeWait, about)
			}
		case <-ctx.Done():
			return
		}
	}
}

// A queuePlace is a place in the queue, as this instance knows it. The zero value is none.
type queuePlace struct {
	since   time.Time
	waiter  driver.Holder // who waits, as if it held
	blocker driver.Holder // who held when it was last refused
	asked   time.Time     // when that was
	told    bool          // that the wait is long
}

// queues is for a refusal that has given a claim a place, or has kept it. Requires the turn.
func (c *claims) queues(one *claim, blocker driver.Holder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	one.on(onPlace)
	one.until = now.Add(keepPlace) // as long as its place, and longer
	one.place = queuePlace{cmp.Or(one.place.since, now), one.holder(), blocker, now, one.place.told}
}

// longWaits are those that have waited for longer than bound, each once.
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
		about.Token, about.Waited = "", wire.Millis(now.Sub(p.since)) // the token is of what it held before
		if p.blocker != (driver.Holder{}) {
			h := holderOf(p.blocker.Later(now.Sub(p.asked)))
			about.Holders = []wire.NoticeHolder{{Owner: h.Owner, Handle: h.Handle, Note: h.Note, Held: h.Held}}
		}
		all = append(all, about)
	}
	return all
}

// notice is what a notice says of the event.
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

// milliseconds are 0 where they are unknown.
func milliseconds(ms *int64) int64 {
	if ms == nil {
		return 0
	}
	return *ms
}

// holder is of the lease that the claim has. Requires the turn.
func (one *claim) holder() driver.Holder {
	return driver.Holder{Owner: driver.OwnerOf(one.key.owner), Mode: one.req.Mode, Fence: one.lease.fence, Note: one.req.Note}
}
