package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/several"
)

const (
	// clearAgain is when to try again to delete what nobody renews.
	clearAgain = 500 * time.Millisecond
	// sweepGap is the least time from one sweep to the next.
	sweepGap = 10 * time.Millisecond
)

// clear deletes the key of a place that is leaving, if it is in a session of this driver: it
// names what it has read, as another process may resume the lease meanwhile.
func (p *place) clear(ctx context.Context) error {
	d := p.d
	if err := p.keepOut(ctx); err != nil && !errors.Is(err, ErrNoSpace) {
		return err
	}
	for {
		resp, err := d.read(ctx, clientv3.OpGet(p.key)) // of keys only, a server of 3.7 does not tell the lease
		if err != nil {
			return err
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		there, ours := len(kvs) > 0, false
		if there && p.knows(kvs[0]) {
			resp, err = d.commit(ctx, []clientv3.Cmp{unchanged(kvs[0])}, []clientv3.Op{clientv3.OpDelete(p.key)}, nil)
			if err != nil {
				return err
			}
			if ours = true; !resp.Succeeded {
				continue
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if there && !ours {
			p.spend()
		}
		p.on(yes, nil)
		return nil
	}
}

// knows reports whether the key, as it was read, is still that of p: no other process has resumed it, or used
// it again.
func (p *place) knows(kv *mvccpb.KeyValue) bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	is := func(s *session) bool { return s.id == clientv3.LeaseID(kv.Lease) }
	if slices.ContainsFunc(p.unsure.puts, is) {
		return true // also one that came late, at another revision
	}
	return kv.CreateRevision == p.rev && (p.in != nil && is(p.in) || slices.ContainsFunc(p.unsure.moves, is))
}

// sweepAt has a sweep begin by then. Requires d.mu.
func (d *Driver) sweepAt(at boottime.Instant) {
	if d.armed != 0 && at >= d.armed || d.closed {
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
		d.start(func() {
			ctx, cancel := context.WithTimeout(d.life, grantWithin)
			defer cancel()
			d.sweep(ctx)
		})
	})
}

// sweep deletes the keys of places that nobody has renewed for the TTL: their sessions live
// on for others. Their holders' deadlines have passed.
func (d *Driver) sweep(ctx context.Context) {
	unwanted := d.unrenewed()
	several.Bounded(len(unwanted), maxSingly, func(i int) {
		p := unwanted[i]
		err := p.clear(ctx)
		d.mu.Lock()
		defer d.mu.Unlock()
		if err != nil {
			p.until = d.clock.Now().Add(clearAgain)
		}
		p.finish()
	})
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
			d.wantWatch()
		}
		if now < p.until {
			next = min(next, p.until)
		} else if p.calls == 0 { // else its end tells
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
