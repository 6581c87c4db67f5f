package etcdlock

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// put makes the key under the conditions cmps, unless it exists or must not come any more. Without
// conditions and without queue, it makes the key only if the resource has none. s is the session to
// put it into; nil: the place's. It returns the keys that the resource then has.
func (p *place) put(ctx context.Context, s *session, queue bool, cmps ...clientv3.Cmp) (answer, error) {
	if queue || len(cmps) > 0 {
		cmps = append(cmps, created(p.key, 0))
	} else {
		cmps = append(cmps, none(p.claim.dir))
	}
	d := p.d
	d.mu.Lock()
	if p.phase != idle { // another claim of its owner, or the end of its session, has changed it
		d.mu.Unlock()
		return answer{}, errAgain
	}
	if s == nil {
		s = p.in
	}
	p.moveTo(s)
	floor := d.seen.Load()
	if len(p.unsure.puts) == 0 {
		p.unsure.floor = floor
	}
	answered := awaiting(&p.unsure.puts, s)
	p.listen()
	k, limited := d.keepAlive(s), p.wantsLimit()
	d.mu.Unlock()
	w := p.putOf(s, queue, limited, cmps)
	resp, err := d.send(ctx, w)
	if err == nil && !resp.Succeeded && queue { // rare, so reading separately is cheaper than with each put
		if resp, err = d.read(ctx, p.refusalReads(limited)...); err == nil {
			resp.Succeeded = false
		}
	}
	d.mu.Lock()
	if w.unsure == nil {
		answered()
	}
	if err == nil && resp.Succeeded {
		if p.phase < leaving {
			p.moveTo(s)
		}
		p.exists(resp.Header.Revision)
		if resp.Header.Revision <= floor {
			err = p.regressed(floor)
		}
	} else if err == nil && p.phase == idle && resp.Responses[0].GetResponseRange().Count > 0 { // the owner has marks
		err = driver.ErrBarred
		p.on(no, err)
	}
	d.mu.Unlock()
	switch {
	case isGone(err):
		d.lose(s)
		return answer{}, errGone
	case err != nil:
		return answer{}, err
	}
	return answer{resp, limited}, d.await(ctx, k)
}

// regressed gives up a place whose key has a revision that is not above the floor. Requires
// Driver.mu.
func (p *place) regressed(floor int64) error {
	p.on(release, errReleased) // Release or the next Try deletes the key
	return fmt.Errorf("%w: from %d to %d", ErrFenceRegressed, floor, p.rev)
}

// putOf is a put of the key in s. If it comes late, after Release, it finds the tombstone or the
// mark of its owner, or that the session's lease is gone. A put that does not queue is often
// refused, and reads why.
func (p *place) putOf(s *session, queue, limited bool, cmps []clientv3.Cmp) *write {
	marks := p.marks()
	w := &write{
		dir: p.claim.dir, wantsFree: !queue,
		cmps: append(cmps, created(p.d.tombstone(p.key, s.id), 0), none(marks)),
		then: make([]clientv3.Op, 0, 3),
	}
	if limited {
		w.then = append(w.then, p.d.limitOf(p.claim.dir))
	}
	w.then = append(w.then, clientv3.OpPut(p.key, p.claim.value, clientv3.WithLease(s.id)))
	if queue {
		w.then = append(w.then, keysOf(p.claim.dir))
	} else {
		w.otherwise = p.refusalReads(limited)
	}
	return w
}

// refusalReads returns the reads that explain a refused put: whether the owner has marks, and the
// queue.
func (p *place) refusalReads(limited bool) []clientv3.Op {
	reads := []clientv3.Op{clientv3.OpGet(p.marks(), clientv3.WithPrefix(), clientv3.WithCountOnly())}
	if limited {
		reads = append(reads, p.d.limitOf(p.claim.dir))
	}
	return append(reads, keysOf(p.claim.dir))
}

// marks returns the beginning of the marks that keep the place's owner out.
func (p *place) marks() string { return p.d.markDir(p.claim.dir, p.claim.req.Owner) }

// An answer is the answer to a put or a read of the resource.
type answer struct {
	*clientv3.TxnResponse
	limited bool // it has read the limit
}

// wantsLimit reports whether a read of the queue must also read the limit: p is shared, or another
// place that waits, and learns from the read, is shared. Requires Driver.mu.
func (p *place) wantsLimit() bool {
	return slices.ContainsFunc(p.line.places, func(one *place) bool {
		return one.claim.req.Mode == driver.Shared && (one == p || one.phase < held)
	})
}

// readLine reads the queue of the resource and keeps the place alive.
func (p *place) readLine(ctx context.Context) (answer, error) {
	d := p.d
	d.mu.Lock()
	p.listen()
	s, k, limited := p.in, d.keepAlive(p.in), p.wantsLimit()
	d.mu.Unlock()
	if s == nil { // the key is in another process's session
		if err := p.keep(ctx, min(p.claim.req.TTL, waitTTL)); err != nil {
			return answer{}, err
		}
	}
	reads := []clientv3.Op{keysOf(p.claim.dir)}
	if limited {
		reads = d.readsOf(p.claim.dir)
	}
	resp, err := d.read(ctx, reads...)
	if err != nil {
		return answer{}, err
	}
	return answer{resp, limited}, d.await(ctx, k)
}

// readQueue returns the queue that resp shows, and where the place's key is in it; -1: it
// has none.
func (p *place) readQueue(resp *clientv3.TxnResponse) (queue []entry, own int) {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.phase >= leaving { // it was released or lost meanwhile
		return nil, -1
	}
	last := resp.Responses[len(resp.Responses)-1].GetResponseRange()
	if last == nil || p.in != nil && p.isAlone(resp, last.Kvs) { // nobody else has a key
		return []entry{{content: content{Owner: p.claim.req.Owner}, key: p.key, rev: p.rev, lease: p.in.id}}, 0
	}
	queue = entries(p.claim.dir, last.Kvs)
	own = slices.IndexFunc(queue, func(e entry) bool { return e.key == p.key && (p.claim.isOurs(e) || e.rev == p.rev) })
	if own >= 0 {
		p.exists(queue[own].rev)
		if p.in != nil && p.in.id != queue[own].lease { // a put came late, or another process has moved it
			p.moveTo(nil)
		}
	}
	return queue, own
}

// isAlone reports whether resp is of a put that has just made the key, and whether the read after
// it shows only that key. Then nothing need be decoded. Requires Driver.mu.
func (p *place) isAlone(resp *clientv3.TxnResponse, read []*mvccpb.KeyValue) bool {
	n := len(resp.Responses)
	return resp.Succeeded && n > 1 && resp.Responses[n-2].GetResponsePut() != nil &&
		len(read) == 1 && read[0].CreateRevision == resp.Header.Revision && p.rev == resp.Header.Revision
}
