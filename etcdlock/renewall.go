package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
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
	// maxSingly is how many leases are renewed by themselves at a time.
	maxSingly = 32
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
	var plain, singly []*driver.Renewal
	var places []*place // of plain
	beats := make(map[*session]*beat)
	for i := range renewals {
		r := &renewals[i]
		p := r.Claim.(*claim).plain(r.TTL, beats)
		if p == nil {
			singly = append(singly, r)
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
			singly = append(singly, r)
			continue
		}
		r.Grant, r.Err = c.renewed(p, started, r.TTL, err)
	}
	// After the plain ones, and several at a time: one that hangs holds up no other.
	room := make(chan struct{}, maxSingly)
	var renewing sync.WaitGroup
	for _, r := range singly {
		room <- struct{}{}
		renewing.Go(func() {
			r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL)
			<-room
		})
	}
	renewing.Wait()
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

// errUnread says that many keys were not read as being there: each is to be read by itself.
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

// areThere reports whether the keys are those of all, under their sessions; false: each is
// to be read by itself, as the server may not take so many at once. Nobody else puts a key
// there, and one that two places had is not used again: so its lease says as much as its
// create revision, unless a put of ours may come late.
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
	if tooMany(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}
