package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// maxCompared is how many keys one transaction compares, all the operations that a
	// server allows by default (--max-txn-ops).
	maxCompared = 128
	// maxBuried is how many keys one deletes, by two comparisons each.
	maxBuried = maxCompared / 2
)

// RenewAll implements driver.BatchRenewer: one keep-alive serves all leases of a session,
// and one transaction reads that 128 keys are still there. The watch does not stand in for
// the read: whose member hangs looks as if nothing had been deleted.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	if err := d.usable(ctx); err != nil {
		for i := range renewals {
			renewals[i].Err = err
		}
		return
	}
	started := time.Now()
	var plain []*driver.Renewal
	var places []*place // of plain
	beats := make(map[*session]*beat)
	for i := range renewals {
		r := &renewals[i]
		p := r.Claim.(*claim).plain(r.TTL, beats)
		if p == nil {
			r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL)
			continue
		}
		plain = append(plain, r)
		places = append(places, p)
	}
	failed := d.readAll(ctx, places)
	for i, r := range plain {
		c, p := r.Claim.(*claim), places[i]
		err, unsure := failed[p]
		if !unsure {
			err = d.await(ctx, p.sess, beats[p.sess])
		}
		p.finish()
		if err == errUnread {
			r.Grant, r.Err = c.Renew(ctx, r.TTL)
			continue
		}
		r.Grant, r.Err = c.renewed(p, started, r.TTL, err)
	}
}

// plain is the place of a claim whose renewal only has to keep its session alive, for
// which it asks; nil: it takes more. The caller finishes the call.
func (c *claim) plain(ttl time.Duration, beats map[*session]*beat) *place {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	p, now := c.place, time.Now()
	if p == nil || !p.held || p.ended != nil || len(p.unsureIn) > 0 || p.late || p.sess.gone || p.sess.ttl != roundUp(ttl) || now.After(p.until) {
		return nil
	}
	if _, asked := beats[p.sess]; !asked {
		beats[p.sess] = d.beat(p.sess)
	}
	p.calling = true
	p.until = maxTime(p.until, now.Add(p.sess.ttl))
	return p
}

// errUnread says that one of many keys is not there: each is to be read by itself.
var errUnread = errors.New("etcdlock: not all keys are there")

// readAll reads whether the keys are there, and returns the places of which it is not
// known.
func (d *Driver) readAll(ctx context.Context, places []*place) map[*place]error {
	failed := make(map[*place]error)
	for len(places) > 0 {
		n := min(len(places), maxCompared)
		there, err := d.areThere(ctx, places[:n])
		if err == nil && !there {
			err = errUnread
		}
		for _, p := range places[:n] {
			if err != nil {
				failed[p] = err
			} else if !d.has(p) {
				failed[p] = errUnread
			}
		}
		places = places[n:]
	}
	return failed
}

// has reports whether no other place has, or had, the key of p, which its lease tells from
// no other then.
func (d *Driver) has(p *place) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keys[p.key] == p
}

// areThere reports whether the keys are those of all, under their sessions. Nobody else puts
// a key there, and one that two places had is not used again: so its lease says as much as
// its create revision, unless a put of ours may come late.
func (d *Driver) areThere(ctx context.Context, all []*place) (bool, error) {
	cmps := make([]clientv3.Cmp, len(all))
	d.mu.Lock()
	late := slices.ContainsFunc(all, func(p *place) bool { return len(p.unsureIn) > 0 })
	for i, p := range all {
		cmps[i] = clientv3.Compare(clientv3.LeaseValue(p.key), "=", p.sess.id)
	}
	d.mu.Unlock()
	if late {
		return false, nil
	}
	// A transaction that only compares is not linearizable: it must read as well.
	resp, err := d.commitAgain(ctx, cmps, count(all[0].key), count(all[0].key))
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}
