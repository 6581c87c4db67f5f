package etcdlock

import (
	"context"
	"runtime"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxOps is how many comparisons, and how many operations, a server takes in one
	// transaction unless it is told otherwise (--max-txn-ops).
	maxOps = 128
	// answerWithin bounds a request that goes on when those who wait for it have left.
	answerWithin = 5 * hangAfter
	// maxTaken is how many names the driver keeps that it has found taken.
	maxTaken = 1000
)

// A write puts or deletes the key of one place.
type write struct {
	dir       string
	cmps      []clientv3.Cmp
	then      []clientv3.Op
	otherwise []clientv3.Op
	wantsFree bool  // it fails when others have the resource
	deletes   bool  // it only deletes, and is not waited for in vain: see wasServed
	unsure    error // of an attempt that may have been served, but was not answered

	sent []attempt // in batches
}

// An attempt is that of one write in a batch.
type attempt struct {
	*batch
	at int // the index of its first response
}

// A batch is what goroutines of the driver send at the same moment: one transaction that
// does what all of its writes want if all their comparisons hold. Else each is sent alone.
// No two are of one resource: what one request creates has one create revision, which is a
// key's place in the queue and its fence. Transactions inside of one would need no second
// way; but servers of before July 2026 do not count their puts where space has run out
// (etcd #22134), and members that differ in that come apart.
type batch struct {
	dirs      map[string]bool
	cmps      []clientv3.Cmp
	ops       []clientv3.Op
	delivered chan struct{}
	resp      *clientv3.TxnResponse // set before delivered is closed, as is err
	err       error
}

// send sends a write that does no harm when it is served twice: first with what others of
// the driver are about to send, then alone.
func (d *Driver) send(ctx context.Context, w *write) (resp *clientv3.TxnResponse, err error) {
	err = d.passingOver(ctx, func(ctx context.Context, again bool) (err error) {
		alone := again
		if !again {
			resp, alone, err = d.sendTogether(ctx, w)
		}
		if alone {
			w.mayHave(err)
			resp, err = d.sendAlone(ctx, w)
		}
		w.mayHave(err)
		return err
	})
	return resp, err
}

// mayHave notes that the write may have been served before it failed with err.
func (w *write) mayHave(err error) {
	if err != nil && !refused(err) {
		w.unsure = err
	}
}

// sendTogether sends w with others. alone: it is to be sent alone, also after an error,
// which may be because of another.
func (d *Driver) sendTogether(ctx context.Context, w *write) (resp *clientv3.TxnResponse, alone bool, err error) {
	if ctx.Err() != nil {
		return nil, false, d.explain(ctx, context.Cause(ctx))
	}
	b, leads := d.join(w)
	if b == nil {
		return nil, true, nil
	}
	if leads {
		runtime.Gosched() // those that can run now join
		if d.depart(b) == 1 {
			w.sent = nil
			return nil, true, nil
		}
	}
	if err := d.arrives(ctx, b); err != nil {
		return nil, false, err
	}
	return b.answer(w)
}

// arrives waits for the answer to b.
func (d *Driver) arrives(ctx context.Context, b *batch) error {
	select {
	case <-b.delivered:
		return nil
	case <-d.life.Done():
		return errClosing
	case <-ctx.Done():
		return d.explain(ctx, context.Cause(ctx))
	}
}

// join puts w into the batch that is about to leave, or into a new one, which its first
// write leads. nil: w would fail the others too.
func (d *Driver) join(w *write) (b *batch, leads bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.taken[w.dir]; taken && w.wantsFree {
		return nil, false
	}
	b = d.batch
	if leads = b == nil || !b.takes(w); leads {
		b = newBatch()
		d.batch = b
	}
	b.add(w)
	return b, leads
}

func newBatch() *batch {
	return &batch{dirs: make(map[string]bool), delivered: make(chan struct{})}
}

func (b *batch) takes(w *write) bool {
	return !b.dirs[w.dir] && len(b.cmps)+len(w.cmps) <= maxOps && len(b.ops)+len(w.then) <= maxOps
}

func (b *batch) add(w *write) {
	w.sent = append(w.sent, attempt{b, len(b.ops)})
	b.dirs[w.dir] = true
	b.cmps, b.ops = append(b.cmps, w.cmps...), append(b.ops, w.then...)
}

// depart ends the joining of b and returns how many joined. One alone is not sent.
func (d *Driver) depart(b *batch) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.batch == b {
		d.batch = nil
	}
	if len(b.dirs) > 1 {
		d.deliver(b, answerWithin)
	}
	return len(b.dirs)
}

// deliver sends b. Requires d.mu.
func (d *Driver) deliver(b *batch, within time.Duration) {
	d.start(func() {
		ctx, cancel := context.WithTimeout(d.life, within)
		defer cancel()
		b.resp, b.err = d.commit(ctx, b.cmps, b.ops, nil)
		close(b.delivered)
	})
}

// answer is what became of w in its batch.
func (b *batch) answer(w *write) (resp *clientv3.TxnResponse, alone bool, err error) {
	switch {
	case b.err != nil:
		return nil, refused(b.err) && !passes(b.err) || exhausted(b.err), b.err
	case !b.resp.Succeeded:
		return nil, true, nil
	}
	at := w.sent[len(w.sent)-1].at
	own := b.resp.Responses[at : at+len(w.then)]
	return &clientv3.TxnResponse{Header: b.resp.Header, Succeeded: true, Responses: own}, false, nil
}

// sendAlone sends a write by itself, and notes whether its resource was taken.
func (d *Driver) sendAlone(ctx context.Context, w *write) (*clientv3.TxnResponse, error) {
	if w.deletes {
		return d.sendOn(ctx, w)
	}
	resp, err := d.commit(ctx, w.cmps, w.then, w.otherwise)
	if err != nil || !w.wantsFree {
		return resp, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case resp.Succeeded:
		delete(d.taken, w.dir)
	case len(d.taken) == maxTaken:
		clear(d.taken)
	default:
		d.taken[w.dir] = struct{}{}
	}
	return resp, nil
}

// sendOn sends a write by itself, and goes on when ctx ends.
func (d *Driver) sendOn(ctx context.Context, w *write) (*clientv3.TxnResponse, error) {
	b := newBatch()
	b.add(w)
	within := answerWithin
	if end, bounded := ctx.Deadline(); bounded {
		within = max(within, time.Until(end))
	}
	d.mu.Lock()
	d.deliver(b, within)
	d.mu.Unlock()
	if err := d.arrives(ctx, b); err != nil {
		return nil, err
	}
	return b.resp, b.err
}

// wasServed reports whether an attempt that was given up has deleted the key. A member that takes its
// time answers it all the same: else a release that lasts would have an unknown outcome, because
// the attempt behind it finds nothing.
func (w *write) wasServed(ctx context.Context) bool {
	for _, a := range w.sent {
		select {
		case <-a.delivered:
			if a.err == nil && a.resp.Succeeded && deletes(a.resp.Responses[a.at]) {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
	return false
}

func deletes(r *pb.ResponseOp) bool { return r.GetResponseDeleteRange().GetDeleted() > 0 }
