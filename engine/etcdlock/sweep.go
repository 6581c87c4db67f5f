package etcdlock

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/several"
)

const (
	// clearAgain is when to try again to delete a key that nobody renews.
	clearAgain = 500 * time.Millisecond
	// sweepGap is the least time from one sweep to the next.
	sweepGap = 10 * time.Millisecond
)

// sweepAt schedules a sweep for then at the latest. Requires d.mu.
func (d *Driver) sweepAt(at boottime.Instant) {
	if d.armed != 0 && at >= d.armed || d.isClosed() {
		return
	}
	d.armed = at
	if d.timer != nil {
		d.timer.Reset(at.Sub(d.clock.Now()))
		return
	}
	d.timer = time.AfterFunc(at.Sub(d.clock.Now()), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.armed = 0
		d.life.Go(func() {
			ctx, cancel := context.WithTimeout(d.life, grantWithin)
			defer cancel()
			d.sweep(ctx)
		})
	})
}

// sweep deletes the keys of places that nobody has renewed for the TTL, because other places keep
// their sessions alive. The holders' deadlines have passed.
func (d *Driver) sweep(ctx context.Context) {
	unwanted := d.unrenewed()
	several.Bounded(len(unwanted), maxSingly, func(i int) { unwanted[i].clearOrAgain(ctx) })
}

// clearOrAgain deletes the key of a place on which a call has begun, or leaves it to a later sweep.
func (p *place) clearOrAgain(ctx context.Context) {
	err := p.clear(ctx)
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err != nil {
		p.until = p.d.clock.Now().Add(clearAgain)
	}
	p.finish()
}

// unrenewed returns the places that are unwanted, with a call begun on each, and sets the timer
// for the next. It starts the watch for what has been held for a while.
func (d *Driver) unrenewed() (all []*place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock.Now()
	next := now.Add(time.Hour)
	for _, p := range d.all() {
		if p.phase == held && now < p.since.Add(holdQuietly) {
			next = min(next, p.since.Add(holdQuietly))
		} else if p.phase == held {
			d.watch.want()
		}
		if now < p.until {
			next = min(next, p.until)
		} else if p.calls == 0 { // else the end of its last call sets the timer
			if p.on(unwanted, errExpired); p.phase == leaving {
				p.calls++
				all = append(all, p)
			}
		}
	}
	if len(d.of) > 0 {
		d.sweepAt(max(next, now.Add(sweepGap)))
	}
	return all
}
