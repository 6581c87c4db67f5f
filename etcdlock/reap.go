package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// reapAt sets the timer of s unless it fires by then. Requires d.mu.
func (d *Driver) reapAt(s *session, at time.Time) {
	if !s.armed.IsZero() && !at.Before(s.armed) || d.closed {
		return
	}
	s.armed = at
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Until(at), func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.start(func() { d.reap(s) })
		})
	} else {
		s.timer.Reset(time.Until(at))
	}
}

// reap deletes the keys of places that nobody has renewed for the TTL: the session lives
// on for the others. Their holders' deadlines have passed.
func (d *Driver) reap(s *session) {
	d.mu.Lock()
	s.armed = time.Time{}
	now := time.Now()
	var expired []*place
	var first time.Time
	for p := range s.places {
		switch {
		case p.calling || now.Before(p.until):
			if first.IsZero() || p.until.Before(first) {
				first = p.until
			}
		case p.rev == 0 && len(p.unsureIn) == 0:
			p.over(errDeleted)
		default:
			p.expire()
			expired = append(expired, p)
		}
	}
	if !first.IsZero() {
		d.reapAt(s, maxTime(first, now.Add(10*time.Millisecond)))
	}
	d.mu.Unlock()
	if len(expired) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(d.life, grantWithin)
	defer cancel()
	if d.bury(ctx, expired) != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !s.gone {
			d.reapAt(s, time.Now().Add(reapAgain))
		}
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// bury deletes the keys of places that have expired, unless another process has resumed
// them.
func (d *Driver) bury(ctx context.Context, expired []*place) error {
	for len(expired) > 0 {
		n := min(len(expired), maxBuried)
		if err := d.buryAll(ctx, expired[:n]); err != nil {
			return err
		}
		expired = expired[n:]
	}
	return nil
}

// buryAll deletes the keys in one transaction if all are as they were left.
func (d *Driver) buryAll(ctx context.Context, expired []*place) error {
	var cmps []clientv3.Cmp
	var ops []clientv3.Op
	each := false
	d.mu.Lock()
	for _, p := range expired {
		each = each || len(p.unsureIn) > 0 || !p.alone()
		cmps = append(cmps, p.isIn(p.sess.id)...)
		ops = append(ops, clientv3.OpDelete(p.key))
	}
	d.mu.Unlock()
	if each {
		return d.buryEach(ctx, expired)
	}
	resp, err := d.commit(ctx, cmps, ops, nil)
	if tooMany(err) || err == nil && !resp.Succeeded {
		return d.buryEach(ctx, expired)
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range expired {
		p.leave()
	}
	return nil
}

func (d *Driver) buryEach(ctx context.Context, expired []*place) error {
	for _, p := range expired {
		for over := false; !over; {
			var err error
			if over, err = p.bury(ctx); err != nil {
				return err
			}
		}
		d.mu.Lock()
		p.leave()
		d.mu.Unlock()
	}
	return nil
}

// bury deletes the key of a place that is over, if it is in a session of this driver. It
// names what it has read: another process may resume the lease meanwhile. false: the key
// was changed.
func (p *place) bury(ctx context.Context) (over bool, err error) {
	if err := p.keepOut(ctx); err != nil && !errors.Is(err, ErrNoSpace) {
		return false, err
	}
	// Of keys only, a server of 3.7 does not tell the lease.
	resp, err := p.claim.d.read(ctx, clientv3.OpGet(p.key))
	if err != nil {
		return false, err
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 || !p.knows(clientv3.LeaseID(kvs[0].Lease)) {
		return true, nil
	}
	same := clientv3.Compare(clientv3.ModRevision(p.key), "=", kvs[0].ModRevision)
	resp, err = p.write(ctx, []clientv3.Cmp{same}, []clientv3.Op{clientv3.OpDelete(p.key)}, nil)
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

// alone reports whether no other place lives that has the key of p, which has expired.
// Requires Driver.mu.
func (p *place) alone() bool {
	d := p.claim.d
	last := d.keys[p.key]
	return (last == nil || last == p) && len(d.watch.own[p.key]) == 0
}

// knows reports whether the key, under that lease, is still that of p: no other process
// has resumed it, and no other place.
func (p *place) knows(lease clientv3.LeaseID) bool {
	d := p.claim.d
	d.mu.Lock()
	defer d.mu.Unlock()
	is := func(s *session) bool { return s.id == lease }
	return p.alone() && (p.sess.id == lease || slices.ContainsFunc(p.in, is) || slices.ContainsFunc(p.unsureIn, is))
}

// expiredAt is the place here that has key and is over, its key still to be deleted; nil:
// there is none.
func (d *Driver) expiredAt(key string) *place {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.keys[key]
	if p == nil || p.calling || p.ended == nil && !time.Now().After(p.until) {
		return nil
	}
	p.expire()
	return p
}

// reapAll deletes what this driver knows to have expired.
func (d *Driver) reapAll(ctx context.Context) error {
	d.mu.Lock()
	now := time.Now()
	var expired []*place
	for _, places := range d.watch.own {
		for _, p := range places {
			if !p.calling && now.After(p.until) {
				p.expire()
				expired = append(expired, p)
			}
		}
	}
	d.mu.Unlock()
	return d.bury(ctx, expired)
}
