package etcdlock

import (
	"context"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// A holder whose Request has Wanted is notified of the places behind its own. The watch of changes
// reports the places that come and go while it is live. One watch reports both, because their order
// matters.
//
// A read reports the other places: when the watch begins, when a place is granted behind which the
// watch may have missed some, and with each renewal, in the same transaction. The next renewal
// reports what the watch misses.

// asks reports whether a claim that has p wants to know that others wait. Requires Driver.mu.
func (p *place) asks() bool { return slices.ContainsFunc(p.claims, (*claim).asks) }

func (c *claim) asks() bool { return c.req.Wanted != nil && !c.hushed }

// hush stops the calls of Wanted.
func (c *claim) hush() {
	if c.req.Wanted != nil {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		c.hushed = true
	}
}

// wantsRecalls reports whether any claim asks. Requires d.mu.
func (d *Driver) wantsRecalls() bool { return slices.ContainsFunc(d.all(), (*place).asks) }

// changed notifies holders of the keys that came behind theirs.
func (d *Driver) changed(events []*clientv3.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range events {
		d.changes.last = e.Kv.ModRevision
		key := string(e.Kv.Key)
		switch l := d.of[dirOf(key)]; {
		case l == nil:
		case e.Type == clientv3.EventTypeDelete:
			delete(l.came, key)
		case e.IsCreate(): // otherwise it is a note, or a move to another session
			l.comes(key, e.Kv)
		}
	}
}

// comes handles each new key of the resource. Requires Driver.mu.
func (l *line) comes(key string, kv *mvccpb.KeyValue) {
	if l.came == nil {
		l.came = make(map[string]int64)
	}
	l.came[key] = kv.CreateRevision
	for _, p := range l.places {
		if p.phase != held || kv.CreateRevision <= p.rev || !p.asks() {
			continue
		}
		switch e := newEntry(kv); {
		case e.Owner == p.claim.req.Owner: // made by another process, or come late
		case p.excludes() || e.mode() == driver.Exclusive:
			p.recall()
		default: // it may hold too
			p.lookBehind()
		}
	}
}

// recallNow is called for a place that holds from now on: others may have come behind it before.
// Requires Driver.mu.
func (p *place) recallNow() {
	if !p.asks() {
		return
	}
	w, behind := &p.d.changes, false
	for _, rev := range p.line.came {
		if behind = rev > p.rev; behind {
			break
		}
	}
	heard := p.named != nil && w.live && p.rev >= w.from // the watch has reported everything since its key was put
	switch {
	case !heard, behind && (!p.excludes() || w.last < p.line.freed): // the keys that came may be gone
		p.lookBehind()
	case behind:
		p.recall()
	}
}

// excludes reports whether everybody else with a key of the resource waits for p. A key of another
// process may be shared. Requires Driver.mu.
func (p *place) excludes() bool { return p.named != nil && p.claim.req.Mode == driver.Exclusive }

// recall notifies the holders by p that others wait. Requires Driver.mu.
func (p *place) recall() {
	if p.phase != held || p.recalls || !p.asks() {
		return
	}
	p.recalls = true // covers all that come until the goroutine begins
	p.d.life.Go(func() {
		for _, c := range p.recalled() {
			c.req.Wanted()
		}
	})
}

// recalled returns the holders to notify now.
func (p *place) recalled() (all []*claim) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.recalls = false; p.phase != held {
		return nil
	}
	for _, c := range p.claims {
		if c.asks() {
			all = append(all, c)
		}
	}
	return all
}

// lookBehind reads whether others are behind p. If that fails, the next renewal finds out. Requires
// Driver.mu.
func (p *place) lookBehind() {
	if p.phase != held || p.looks || !p.asks() {
		return
	}
	p.looks = true // covers all that come until the read begins
	p.d.life.Go(func() {
		p.d.mu.Lock()
		p.looks = false
		p.d.mu.Unlock()
		p.d.lookBehind([]*place{p})
	})
}

// lookBehindAll notifies the holders of waiters from before the watch began. Requires d.mu.
func (d *Driver) lookBehindAll() {
	for _, l := range d.of {
		l.came = nil // some of these may have left
	}
	all := slices.DeleteFunc(d.all(), func(p *place) bool { return p.phase != held || !p.asks() })
	if len(all) > 0 {
		d.life.Go(func() { d.lookBehind(all) })
	}
}

// lookBehind reads whether others are behind the places of all, and notifies their holders.
func (d *Driver) lookBehind(all []*place) {
	ctx, cancel := context.WithTimeout(d.life, grantWithin)
	defer cancel()
	for some := range slices.Chunk(all, maxOps/2) { // each place has two reads
		read, err := d.holdTrue(ctx, nil, "", some...)
		for i := 0; i < len(some) && err == nil && !read && len(some) > 1; i++ { // too many reads at once, so read one by one
			_, err = d.holdTrue(ctx, nil, "", some[i])
		}
	}
}

// readsBehind returns the reads that find others behind each of all, for as many of the first as a
// server accepts reads. The others are read one by one.
func (d *Driver) readsBehind(all []*place) (first []*place, ops []clientv3.Op) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, p := range all {
		opts := []clientv3.OpOption{clientv3.WithPrefix()}
		if p.excludes() && !p.line.nests { // one more key is enough
			opts = append(opts, clientv3.WithKeysOnly(), clientv3.WithLimit(2))
		}
		reads := []clientv3.Op{clientv3.OpGet(p.claim.dir, opts...)}
		if !p.excludes() {
			reads = d.readsOf(p.claim.dir)
		}
		if len(ops)+len(reads) > maxOps {
			d.life.Go(func() { d.lookBehind(all[i:]) })
			return all[:i], ops
		}
		ops = append(ops, reads...)
	}
	return all, ops
}

// haveRead notifies the holders of all behind whom the reads of resp have found others.
func (d *Driver) haveRead(all []*place, resp *clientv3.TxnResponse) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := 0
	for _, p := range all {
		var l limit
		if !p.excludes() {
			l, _ = d.limitIn(p.claim.dir, resp) // a damaged limit delays nobody here
			i++
		}
		read := resp.Responses[i].GetResponseRange()
		i++
		switch queue := entries(p.claim.dir, read.Kvs); {
		case len(queue) > len(l.holders(queue)):
			p.recall()
		case read.More: // some of the keys that were read belong to other resources
			p.line.nests = true
			p.lookBehind()
		}
	}
}
