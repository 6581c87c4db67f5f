package etcdlock

import (
	"context"
	"runtime"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxOps is the default limit of a server (--max-txn-ops) for the comparisons, and for the
	// operations, of one transaction.
	maxOps = 128
	// batchWithin bounds the request of a batch. Its callers stop waiting earlier.
	batchWithin = 2 * deletedAfter
	// maxTaken is how many taken resources the driver remembers.
	maxTaken = 1000
)

// A write puts or deletes the key of one place.
type write struct {
	dir       string
	cmps      []clientv3.Cmp
	then      []clientv3.Op
	otherwise []clientv3.Op
	wantsFree bool  // it fails if others have keys of the resource
	deletes   bool  // its outcome must be known, and a second attempt would not show what the first one did
	unsure    error // the error of an attempt that may have been served but was not answered

	at int // the index of its first response in its batch
}

// writes are the writes that a driver is about to send. Guarded by Driver.mu.
type writes struct {
	batch *batch              // the batch that others may join; nil: none
	taken map[string]struct{} // dirs that were taken when last wanted free

	sending atomic.Int64 // how many writes are being sent; not guarded
}

// A batch is the writes that goroutines of the driver send at the same moment: one transaction that
// does all of them if all their comparisons hold. Otherwise each is sent alone. No two writes are
// for one resource, because keys made by one request share a create revision, which is a key's
// place in the queue and its fence.
//
// Nested transactions would need no second try. But servers from before July 2026 do not count
// their puts when space has run out (etcd #22134), and members that differ in this diverge.
type batch struct {
	dirs      map[string]bool
	cmps      []clientv3.Cmp
	ops       []clientv3.Op
	delivered chan struct{}
	resp      *clientv3.TxnResponse // set before delivered is closed, as is err
	err       error
}

// send sends a write that does no harm when it is served twice: first with the writes that other
// goroutines of the driver are about to send, then alone. While nobody else sends, it does not look
// for others, because that costs a yield of the processor.
func (d *Driver) send(ctx context.Context, w *write) (resp *clientv3.TxnResponse, err error) {
	wait := hangAfter
	if w.deletes {
		wait = deletionWait(ctx)
	}
	again := d.writes.sending.Add(1) == 1
	defer d.writes.sending.Add(-1)
	err = d.repeating(ctx, wait, func(ctx context.Context) (err error) {
		alone := again
		if again = true; !alone {
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

// mayHave records that the write may have been served although it failed with err.
func (w *write) mayHave(err error) {
	if err != nil && !refused(err) {
		w.unsure = err
	}
}

// sendTogether sends w with others. alone reports that it must be sent alone, as after an error
// that another write may have caused.
func (d *Driver) sendTogether(ctx context.Context, w *write) (resp *clientv3.TxnResponse, alone bool, err error) {
	if ctx.Err() != nil {
		return nil, false, d.explain(ctx, ctx.Err())
	}
	b, leads := d.join(w)
	if b == nil {
		return nil, true, nil
	}
	if leads {
		runtime.Gosched() // lets other goroutines join
		if d.depart(b) == 1 {
			return nil, true, nil
		}
	}
	if err := d.waitUntil(ctx, b.delivered); err != nil {
		return nil, false, err
	}
	return b.answer(w)
}

// join puts w into the batch that is about to leave, or into a new one, which its first write
// leads. It returns nil if w would make the others fail.
func (d *Driver) join(w *write) (b *batch, leads bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.writes.taken[w.dir]; taken && w.wantsFree {
		return nil, false
	}
	b = d.writes.batch
	if leads = b == nil || !b.takes(w); leads {
		b = &batch{dirs: make(map[string]bool), delivered: make(chan struct{})}
		d.writes.batch = b
	}
	w.at = len(b.ops)
	b.dirs[w.dir] = true
	b.cmps, b.ops = append(b.cmps, w.cmps...), append(b.ops, w.then...)
	return b, leads
}

func (b *batch) takes(w *write) bool {
	return !b.dirs[w.dir] && len(b.cmps)+len(w.cmps) <= maxOps && len(b.ops)+len(w.then) <= maxOps
}

// depart closes b to others and returns how many joined. A single write is not sent.
func (d *Driver) depart(b *batch) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writes.batch == b {
		d.writes.batch = nil
	}
	if len(b.dirs) > 1 {
		d.life.Go(func() {
			ctx, cancel := context.WithTimeout(d.life, batchWithin)
			defer cancel()
			b.resp, b.err = d.commit(ctx, b.cmps, b.ops, nil)
			close(b.delivered)
		})
	}
	return len(b.dirs)
}

// answer returns the outcome of w in its batch.
func (b *batch) answer(w *write) (resp *clientv3.TxnResponse, alone bool, err error) {
	switch {
	case b.err != nil:
		return nil, refused(b.err) && !passes(b.err) || exhausted(b.err), b.err
	case !b.resp.Succeeded:
		return nil, true, nil
	}
	own := b.resp.Responses[w.at : w.at+len(w.then)]
	return &clientv3.TxnResponse{Header: b.resp.Header, Succeeded: true, Responses: own}, false, nil
}

// sendAlone sends one write and notes whether its resource was taken.
func (d *Driver) sendAlone(ctx context.Context, w *write) (*clientv3.TxnResponse, error) {
	resp, err := d.commit(ctx, w.cmps, w.then, w.otherwise)
	if err != nil || !w.wantsFree {
		return resp, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case resp.Succeeded:
		delete(d.writes.taken, w.dir)
	case len(d.writes.taken) == maxTaken:
		clear(d.writes.taken)
	default:
		d.writes.taken[w.dir] = struct{}{}
	}
	return resp, nil
}
