package etcdlock

import (
	"context"
	"errors"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// get reads one key; nil: there is none. If only keys are read, a server of 3.7 does not report the
// lease.
func (d *Driver) get(ctx context.Context, key string) (*entry, error) {
	resp, err := d.read(ctx, clientv3.OpGet(key))
	if err != nil {
		return nil, err
	}
	for _, kv := range found(resp, 0) {
		e := newEntry(kv)
		return &e, nil
	}
	return nil, nil
}

// A look is the result of reading a resource.
type look struct {
	queue []entry // the keys, in order
	limit limit   // without doubts
	rev   int64   // the revision of the read
}

// holders returns the keys of the queue that hold.
func (l look) holders() []entry { return l.limit.holders(l.queue) }

// list reads the keys and the limit of the resource at dir.
func (d *Driver) list(ctx context.Context, dir string) (look, error) {
	resp, err := d.read(ctx, d.readsOf(dir)...)
	if err != nil {
		return look{}, err
	}
	l, err := d.limitIn(dir, resp)
	if err == nil {
		l, err = d.settled(ctx, dir, l)
	}
	return look{entries(dir, found(resp, 1)), l, resp.Header.Revision}, err
}

// found returns what the i-th operation of a transaction has read.
func found(resp *clientv3.TxnResponse, i int) []*mvccpb.KeyValue {
	return resp.Responses[i].GetResponseRange().GetKvs()
}

// look returns the key as it is. errGone means that it does not exist, or is not the key of the
// place.
func (p *place) look(ctx context.Context) (*entry, error) {
	e, err := p.d.get(ctx, p.key)
	if err == nil && (e == nil || e.rev != p.revision()) {
		err = errGone
	}
	return e, err
}

// eachGone calls tell with the places of all whose keys are gone. A key counts only with the
// revision of its place, because it may be an earlier one or another process's. tell is called
// after each transaction, so that nobody waits for the rest.
func (d *Driver) eachGone(ctx context.Context, all []*place, tell func(gone []*place)) error {
	for some := range slices.Chunk(all, maxOps) {
		gone, err := d.goneOf(ctx, some)
		if tell(gone); err != nil {
			return err
		}
	}
	return nil
}

// goneOf returns the places of some whose keys are gone. It may return some of them even with an
// error.
func (d *Driver) goneOf(ctx context.Context, some []*place) (gone []*place, err error) {
	cmps := make([]clientv3.Cmp, len(some))
	for i, p := range some {
		cmps[i] = created(p.key, p.revision())
	}
	there, err := d.holdTrue(ctx, cmps, some[0].key)
	for i := 0; i < len(some) && err == nil && !there; i++ {
		if _, err = some[i].look(ctx); errors.Is(err, errGone) {
			gone, err = append(gone, some[i]), nil
		}
	}
	return gone, err
}

// keysExist reports whether the keys of all exist in their sessions. If it returns false, each must
// be read by itself, because the server may not accept so many at once. Several must hold, and no put
// of theirs may come late: then a key's lease of etcd proves as much as its create revision, because
// nobody else puts the key.
func (d *Driver) keysExist(ctx context.Context, all []*place) (bool, error) {
	cmps := make([]clientv3.Cmp, 0, len(all))
	var asking []*place
	d.mu.Lock()
	for _, p := range all {
		if p.asks() {
			asking = append(asking, p)
		}
		if p.in == nil {
			d.mu.Unlock()
			return false, nil
		}
		cmps = append(cmps, clientv3.Compare(clientv3.LeaseValue(p.key), "=", p.in.id))
	}
	if len(all) == 1 {
		cmps = append(cmps, created(all[0].key, all[0].rev))
	}
	d.mu.Unlock()
	return d.holdTrue(ctx, cmps, all[0].key, asking...)
}

// holdTrue reports whether all of cmps hold. It returns false if they do not, or if they are too
// many for the server at once. If they hold, it notifies the holders of asking of those behind
// them.
func (d *Driver) holdTrue(ctx context.Context, cmps []clientv3.Cmp, key string, asking ...*place) (bool, error) {
	// A transaction that only compares is not linearizable: it must read as well.
	reads := []clientv3.Op{clientv3.OpGet(key, clientv3.WithCountOnly())}
	if len(asking) > 0 {
		asking, reads = d.readsBehind(asking)
	}
	resp, err := d.commitAgain(ctx, cmps, reads...)
	switch {
	case tooMany(err):
		return false, nil
	case err != nil:
		return false, err
	case resp.Succeeded:
		d.haveRead(asking, resp)
	}
	return resp.Succeeded, nil
}

// created compares the create revision of a key.
func created(key string, rev int64) clientv3.Cmp {
	var c clientv3.Cmp
	to := c.GetCompare() // clientv3.Compare would clone it by reflection
	to.Key, to.Target, to.Result = []byte(key), pb.Compare_CREATE, pb.Compare_EQUAL
	to.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: rev}
	return c
}

// none compares that there is no key that begins with dir.
func none(dir string) clientv3.Cmp {
	c := created(dir, 0)
	c.GetCompare().RangeEnd = []byte(clientv3.GetPrefixRangeEnd(dir))
	return c
}
