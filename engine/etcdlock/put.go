package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// put makes the key, unless it is there or must not come any more. Unless queue, it makes
// it only if the resource has no keys. It returns what keys the resource then has.
func (p *place) put(ctx context.Context, s *session, queue bool) (*clientv3.TxnResponse, error) {
	if queue {
		return p.putIf(ctx, s, true, created(p.key, 0))
	}
	return p.putIf(ctx, s, false, none(p.claim.dir))
}

// putIf is put under conditions, which also tell that the key is not there.
func (p *place) putIf(ctx context.Context, s *session, queue bool, cmps ...clientv3.Cmp) (*clientv3.TxnResponse, error) {
	d := p.d
	d.mu.Lock()
	if p.phase != idle { // meanwhile, by another claim of its owner, or by the end of its session
		d.mu.Unlock()
		return nil, errAgain
	}
	p.moveTo(s)
	floor := d.seen.Load()
	if len(p.unsure.puts) == 0 {
		p.unsure.floor = floor
	}
	answered := awaiting(&p.unsure.puts, s)
	p.listen()
	k := d.keepAlive(s)
	d.mu.Unlock()
	w := p.putOf(s, queue, cmps)
	resp, err := d.send(ctx, w)
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
	} else if err == nil && p.phase == idle && marked(resp) {
		err = driver.ErrBarred
		p.on(no, err)
	}
	d.mu.Unlock()
	switch {
	case isGone(err):
		d.lose(s)
		return nil, errGone
	case err != nil:
		return nil, err
	}
	return resp, d.await(ctx, s, k)
}

// regressed gives up a place whose key has a revision that is not above the floor. Requires Driver.mu.
func (p *place) regressed(floor int64) error {
	p.on(release, errReleased) // by Release, or the next Try
	return fmt.Errorf("%w: from %d to %d", ErrFenceRegressed, floor, p.rev)
}

// putOf is a put of the key in s. One that comes late, after Release, finds the tombstone, the mark of its
// owner, or that the session's lease is gone. Refused, it reads whether there are marks, and the queue.
func (p *place) putOf(s *session, queue bool, cmps []clientv3.Cmp) *write {
	marks, read := p.d.markDir(p.claim.dir, p.claim.req.Owner), clientv3.OpGet(p.claim.dir, clientv3.WithPrefix())
	w := &write{
		dir: p.claim.dir, wantsFree: !queue,
		cmps:      append(cmps, created(p.d.tombstone(p.key, s.id), 0), none(marks)),
		then:      []clientv3.Op{clientv3.OpPut(p.key, p.claim.value, clientv3.WithLease(s.id))},
		otherwise: []clientv3.Op{clientv3.OpGet(marks, clientv3.WithPrefix(), clientv3.WithCountOnly()), read},
	}
	if queue {
		w.then = append(w.then, read)
	}
	return w
}

// marked reports whether a put was refused because of a mark, or with one.
func marked(refused *clientv3.TxnResponse) bool {
	return refused.Responses[0].GetResponseRange().Count > 0
}

// readAhead reads those ahead, keeping the place alive.
func (p *place) readAhead(ctx context.Context) (*clientv3.TxnResponse, error) {
	d := p.d
	d.mu.Lock()
	p.listen()
	s := p.in
	var k *keepAlive
	if s != nil {
		k = d.keepAlive(s)
	}
	d.mu.Unlock()
	if s == nil { // another process's
		if err := p.keep(ctx, min(p.claim.req.TTL, waitTTL)); err != nil {
			return nil, err
		}
	}
	resp, err := d.read(ctx, clientv3.OpGet(p.claim.dir, clientv3.WithPrefix(), clientv3.WithMaxCreateRev(p.revision())))
	if err != nil {
		return nil, err
	}
	return resp, d.await(ctx, s, k)
}

// readQueue returns the queue that resp shows, and where the place's key is in it; -1: it
// has none.
func (p *place) readQueue(resp *clientv3.TxnResponse) (queue []entry, own int) {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.phase >= leaving { // meanwhile
		return nil, -1
	}
	last := resp.Responses[len(resp.Responses)-1].GetResponseRange()
	if last == nil { // nobody else has a key
		return []entry{{content: content{Owner: p.claim.req.Owner}, key: p.key, rev: p.rev, lease: p.in.id}}, 0
	}
	queue = entries(p.claim.dir, last.Kvs)
	own = slices.IndexFunc(queue, func(e entry) bool { return e.key == p.key && (p.claim.isOurs(e) || e.rev == p.rev) })
	if own >= 0 {
		p.exists(queue[own].rev)
		if p.in != nil && p.in.id != queue[own].lease { // by a put that came late, or by another process
			p.moveTo(nil)
		}
	}
	return queue, own
}

// lease is that of the session that the key is in, if that is one of ttl; -1: it is not.
func (p *place) lease(ttl time.Duration) clientv3.LeaseID {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if !p.fits(ttl) {
		return -1
	}
	return p.in.id
}

// move puts the key into a session of another TTL. It keeps its place. What holds is moved when that session was
// kept alive: it may be about to end, before the holder's deadline.
func (p *place) move(ctx context.Context, ttl time.Duration) error {
	d := p.d
	s, err := d.session(ctx, ttl)
	if err != nil {
		return err
	}
	d.mu.Lock()
	k, holds := d.keepAlive(s), p.phase == held
	d.mu.Unlock()
	if holds {
		if err := d.await(ctx, s, k); errors.Is(err, errGone) {
			return errNoSession
		} else if err != nil {
			return err
		}
		k = nil
	}
	d.mu.Lock()
	answered := awaiting(&p.unsure.moves, s)
	d.mu.Unlock()
	err = p.rewrite(ctx, func(v *content) (isOurs bool) { return !v.Lingers }, clientv3.WithLease(s.id))
	d.mu.Lock()
	if !isUnknown(err) {
		answered()
	}
	if err == nil && p.phase != over {
		p.moveTo(s)
		p.unsure.moves = nil // they named what the key was before
	}
	d.mu.Unlock()
	if isGone(err) { // the new one: nothing was changed
		d.lose(s)
		return errNoSession
	}
	if err != nil {
		return err
	}
	return d.await(ctx, s, k)
}

// errNoSession is of a move that found the session gone, and left the key where it was.
var errNoSession = errors.New("etcdlock: a session ended as soon as it was granted")

// isUnknown reports whether a call that ended with err may have been served.
func isUnknown(err error) bool { return err != nil && !errors.Is(err, errGone) && !refused(err) }

// rewrite changes the value of the key, which keeps its place. errGone: there is no key, or it is not to be changed.
func (p *place) rewrite(ctx context.Context, change func(*content) bool, lease clientv3.OpOption) error {
	for range maxRounds {
		kv, err := p.look(ctx)
		if err != nil {
			return err
		}
		value := decode(kv.Value)
		if !change(&value) {
			return errGone
		}
		resp, err := p.d.commit(ctx, []clientv3.Cmp{unchanged(kv)}, []clientv3.Op{clientv3.OpPut(p.key, value.encode(), lease)}, nil)
		if err != nil || resp.Succeeded {
			return err
		}
	}
	return errors.New("etcdlock: the key is changed all the time")
}

// delete deletes the key and reports whether there was one. That it is gone after an
// attempt of unknown outcome stays unknown: that one, or somebody else, may have done it.
func (p *place) delete(ctx context.Context) (was bool, err error) {
	d := p.d
	d.mu.Lock()
	w := &write{dir: p.claim.dir, deletes: true, then: []clientv3.Op{clientv3.OpDelete(p.key)}}
	if len(p.unsure.puts) == 0 { // else what came late has another revision
		w.cmps = []clientv3.Cmp{created(p.key, p.rev)}
	}
	isOver := p.phase == over
	d.mu.Unlock()
	if isOver {
		return false, nil
	}
	// Without space the server refuses puts: that of a late key too.
	if err := p.keepOut(ctx); err != nil && !errors.Is(err, ErrNoSpace) {
		return false, err
	}
	resp, err := d.send(ctx, w)
	if err != nil {
		return false, err
	}
	if was = resp.Succeeded && resp.Responses[0].GetResponseDeleteRange().Deleted > 0; !was && w.unsure != nil {
		return false, w.unsure
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !was {
		d.lookThrough(p.in) // it may be another's that had the same key before
	}
	p.on(yes, errReleased)
	return was, nil
}

// keepOut keeps the puts out that may still come, by a tombstone for each as long as its
// session lives: after that, it has no lease.
func (p *place) keepOut(ctx context.Context) error {
	d := p.d
	d.mu.Lock()
	puts := slices.Clone(p.unsure.puts)
	d.mu.Unlock()
	for _, s := range puts {
		put := clientv3.OpPut(d.tombstone(p.key, s.id), "", clientv3.WithLease(s.id))
		if _, err := d.commitAgain(ctx, nil, put); isGone(err) {
			continue
		} else if err != nil {
			return err
		}
		d.mu.Lock()
		s.tombstones++
		d.mu.Unlock()
	}
	return nil
}
