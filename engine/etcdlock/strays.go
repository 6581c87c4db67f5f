package etcdlock

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// A stray is a key in a session of this driver that belongs to none of its claims: the cluster was
// restored and has keys again that were released since. The session keeps it alive, so nobody else
// would ever end it. Restoring a cluster breaks all connections first. So a session is searched
// when it is kept alive over another stream than before.

// lookThrough deletes the strays of s, and ends leases that a restored key may hold. Requires d.mu.
func (d *Driver) lookThrough(s *session) {
	if s == nil || s.gone {
		return
	}
	d.life.Go(func() {
		ctx, cancel := context.WithTimeout(d.life, grantWithin)
		defer cancel()
		err := d.endFormer(ctx, s)
		if err == nil {
			err = d.deleteStrays(ctx, s)
		}
		if err != nil && !refused(err) {
			d.mu.Lock()
			defer d.mu.Unlock()
			s.stream = 0 // so that the next keep-alive searches again
		}
	})
}

// endFormer ends the places in s whose keys have other revisions than when they were granted. Such
// a key may be a restored one of the same name.
func (d *Driver) endFormer(ctx context.Context, s *session) error {
	d.mu.Lock()
	var all []*place
	for _, p := range d.all() {
		if p.in == s && (p.phase == queued || p.phase == held) {
			all = append(all, p)
		}
	}
	d.mu.Unlock()
	return d.eachGone(ctx, all, func(gone []*place) {
		for _, p := range gone {
			d.lost(p, errDeleted)
		}
	})
}

// deleteStrays deletes the keys in s that no place has. A place that is over has deleted its own key.
func (d *Driver) deleteStrays(ctx context.Context, s *session) error {
	var resp *clientv3.LeaseTimeToLiveResponse
	err := d.repeating(ctx, hangAfter, func(ctx context.Context) (err error) {
		resp, err = d.client.TimeToLive(clientv3.WithRequireLeader(ctx), s.id, clientv3.WithAttachedKeys())
		return d.explain(ctx, err)
	})
	if err != nil {
		return err
	}
	for _, key := range resp.Keys {
		// If only the client's keys have a namespace, the server returns keys with it.
		if at := strings.Index(string(key), d.root); at >= 0 {
			if err := d.deleteStray(ctx, s, string(key[at:])); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteStray deletes a key if it is in s and no place has it.
func (d *Driver) deleteStray(ctx context.Context, s *session, key string) error {
	d.mu.Lock()
	known := d.at(key) != nil
	d.mu.Unlock()
	if _, ok := d.nameOf(key); !ok || known {
		return nil
	}
	e, err := d.get(ctx, key)
	if err != nil || e == nil || e.lease != s.id {
		return err
	}
	if p := d.strayed(s, *e); p != nil {
		p.clearOrAgain(ctx)
	}
	return nil
}

// strayed gives a key to a new place that is leaving, so that no claim takes it meanwhile, and
// begins a call on it. It returns nil if a place has the key.
func (d *Driver) strayed(s *session, e entry) *place {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at(e.key) != nil {
		return nil
	}
	c := &claim{d: d, req: driver.Request{Owner: e.Owner}, dir: dirOf(e.key)}
	p := d.adopted(c, e)
	p.moveTo(s)
	p.calls++
	p.on(release, errDeleted)
	return p
}
