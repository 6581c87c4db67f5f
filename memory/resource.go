package memory

import (
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// resource is one resource's holders and waiters, guarded by Server.mu.
type resource struct {
	holds []*hold  // one Exclusive, or any number of Shared, by fence
	queue []*place // in the order of their first Try
}

// hold is a live lease. Without an owner it lingers.
type hold struct {
	owner   string
	mode    driver.Mode
	limit   int
	note    string
	lost    func(error)
	fence   uint64
	since   time.Time
	expires time.Time
}

// place is a waiter's place in the queue.
type place struct {
	req     *driver.Request
	since   time.Time
	expires time.Time     // unless its owner Tries again
	wake    chan struct{} // closed when it is its turn; nil once closed
}

func (p *place) close() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

func (r *resource) expire(now time.Time) {
	r.holds = slices.DeleteFunc(r.holds, func(h *hold) bool { return !now.Before(h.expires) })
	r.queue = slices.DeleteFunc(r.queue, func(p *place) bool { return !now.Before(p.expires) })
}

func (r *resource) holder(owner string) *hold {
	for _, h := range r.holds {
		if h.owner == owner && owner != "" {
			return h
		}
	}
	return nil
}

// drop removes and returns owner's hold, or nil.
func (r *resource) drop(owner string) *hold {
	h := r.holder(owner)
	if h != nil {
		r.holds = slices.DeleteFunc(r.holds, func(o *hold) bool { return o == h })
	}
	return h
}

// leave removes owner's place and reports whether there was one.
func (r *resource) leave(owner string) bool {
	before := len(r.queue)
	r.queue = slices.DeleteFunc(r.queue, func(p *place) bool { return p.req.Owner == owner })
	return len(r.queue) < before
}

// grants says whether req may hold now, behind those who hold and those who wait ahead of it.
func (r *resource) grants(req *driver.Request) bool {
	var ahead queue.Ahead
	for _, h := range r.holds {
		ahead.Add(queue.Claim{Mode: h.mode, Limit: h.limit})
	}
	for _, p := range r.queue {
		if p.req.Owner == req.Owner {
			break
		}
		ahead.Add(queue.Claim{Mode: p.req.Mode, Limit: p.req.Limit})
	}
	return ahead.Admits(queue.Claim{Mode: req.Mode, Limit: req.Limit})
}

// refuse keeps req's place, if it wants one, and says when to come back.
func (r *resource) refuse(req *driver.Request, now time.Time) *driver.Busy {
	busy := &driver.Busy{}
	if len(r.holds) > 0 {
		h := slices.MinFunc(r.holds, func(a, b *hold) int { return a.expires.Compare(b.expires) })
		busy.Holder = h.describe(now)
		busy.Retry = h.expires.Sub(now)
	}
	if !req.Queue {
		return busy
	}
	p := r.place(req, now)
	p.expires = now.Add(placeTTL)
	if p.wake == nil {
		p.wake = make(chan struct{})
	}
	busy.Wake = p.wake
	if p != r.queue[0] || busy.Retry == 0 || busy.Retry > keepPlace {
		busy.Retry = keepPlace
	}
	return busy
}

// place finds req's place or adds one at the end.
func (r *resource) place(req *driver.Request, now time.Time) *place {
	for _, p := range r.queue {
		if p.req.Owner == req.Owner {
			return p
		}
	}
	p := &place{req: req, since: now}
	r.queue = append(r.queue, p)
	return p
}

// wakeNext wakes those in the queue who would be granted, and nobody else.
func (r *resource) wakeNext() {
	for _, p := range r.queue {
		if !r.grants(p.req) {
			return
		}
		p.close()
	}
}

func (h *hold) describe(now time.Time) driver.Holder {
	return driver.Holder{
		Owner: h.owner, Mode: h.mode, Fence: h.fence, Note: h.note,
		Held: now.Sub(h.since), Left: h.expires.Sub(now),
	}
}
