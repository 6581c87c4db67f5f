package etcdlock

import (
	"context"
	"runtime"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxOps is how many comparisons, and how many operations, a server takes in one
	// transaction unless it is told otherwise (--max-txn-ops).
	maxOps = 128
	// joinedWithin bounds such a request. Those who sent it leave it before.
	joinedWithin = 2 * hangAfter
	// maxTaken is how many names the driver keeps that it has found taken.
	maxTaken = 1000
)

// An errand is a transaction on the keys of one resource. It travels with those of other
// resources that are sent at the same moment, as one transaction that does what all of them
// want if all their comparisons hold. Else each travels alone. Transactions inside of one
// would need no second way; but servers of before July 2026 do not count their
// puts where space has run out (etcd #22134), and members that differ in that come apart.
type errand struct {
	dir             string // of the resource
	cmps            []clientv3.Cmp
	then, otherwise []clientv3.Op
	wantsFree       bool        // it fails when others have the resource
	failed          func(error) // is called when it may have been served, but was not answered

	done  chan struct{} // closed when the rest is set; nil: it travels alone
	resp  *clientv3.TxnResponse
	err   error
	alone bool // it is to travel alone; after err, if any, which may be because of another
}

// run sends an errand together with what others of the driver are about to send.
func (d *Driver) run(ctx context.Context, e *errand) (*clientv3.TxnResponse, error) {
	if ctx.Err() != nil {
		return nil, d.explain(ctx, context.Cause(ctx))
	}
	d.mu.Lock()
	if _, taken := d.taken[e.dir]; taken && e.wantsFree { // it would fail the others too
		d.mu.Unlock()
		return d.sendAlone(ctx, e)
	}
	first := len(d.errands) == 0
	if !first {
		e.done = make(chan struct{})
	}
	d.errands = append(d.errands, e)
	d.mu.Unlock()
	if first {
		runtime.Gosched() // those who can run now join
		if d.sendErrands() {
			return d.sendAlone(ctx, e)
		}
	}
	select {
	case <-e.done:
		if e.alone {
			e.mayHave(e.err)
			return d.sendAlone(ctx, e)
		}
		return e.resp, e.err
	case <-d.life.Done():
		return nil, errClosing
	case <-ctx.Done():
		return nil, d.explain(ctx, context.Cause(ctx))
	}
}

// sendAlone sends an errand by itself, and notes whether its resource was taken.
func (d *Driver) sendAlone(ctx context.Context, e *errand) (*clientv3.TxnResponse, error) {
	resp, err := d.commit(ctx, e.cmps, e.then, e.otherwise)
	if err != nil || !e.wantsFree {
		return resp, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case resp.Succeeded:
		delete(d.taken, e.dir)
	case len(d.taken) == maxTaken:
		clear(d.taken)
	default:
		d.taken[e.dir] = struct{}{}
	}
	return resp, nil
}

// mayHave tells that the errand may have been served before it failed with err.
func (e *errand) mayHave(err error) {
	if err != nil && !refused(err) {
		e.failed(err)
	}
}

// sendErrands sends what has come together, unless that is one, which is left to its caller.
func (d *Driver) sendErrands() (one bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.errands
	d.errands = nil
	if len(all) == 1 {
		return true
	}
	all[0].done = make(chan struct{})
	for len(all) > 0 {
		var joined []*errand
		if joined, all = join(all); len(joined) == 1 {
			joined[0].alone = true
			close(joined[0].done)
			continue
		}
		d.start(func() { d.deliver(joined) })
	}
	return false
}

// join returns errands that may travel together, and the rest. No two are of one resource:
// what one request creates has one create revision, which is a key's place in the queue
// and its fence.
func join(all []*errand) (joined, rest []*errand) {
	dirs := make(map[string]bool, len(all))
	var cmps, ops int
	for _, e := range all {
		if full := cmps+len(e.cmps) > maxOps || ops+len(e.then) > maxOps; dirs[e.dir] || full && len(joined) > 0 {
			rest = append(rest, e)
			continue
		}
		dirs[e.dir] = true
		cmps, ops = cmps+len(e.cmps), ops+len(e.then)
		joined = append(joined, e)
	}
	return joined, rest
}

// deliver sends errands in one transaction and answers each.
func (d *Driver) deliver(joined []*errand) {
	ctx, cancel := context.WithTimeout(d.life, joinedWithin)
	defer cancel()
	var cmps []clientv3.Cmp
	var ops []clientv3.Op
	for _, e := range joined {
		cmps, ops = append(cmps, e.cmps...), append(ops, e.then...)
	}
	resp, err := d.commit(ctx, cmps, ops, nil)
	for _, e := range joined {
		switch {
		case err != nil:
			e.err, e.alone = err, refused(err) && !passes(err) || exhausted(err)
		case !resp.Succeeded:
			e.alone = true
		default:
			own := len(e.then)
			e.resp = &clientv3.TxnResponse{Header: resp.Header, Succeeded: true, Responses: resp.Responses[:own:own]}
			resp.Responses = resp.Responses[own:]
		}
		close(e.done)
	}
}

// undated is a context that keeps its deadline for itself: the client tells a server the
// time that is left, which then sets a timer for each call.
type undated struct{ context.Context }

func (undated) Deadline() (end time.Time, ok bool) { return end, false }
