package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// created compares the create revision of a key.
func created(key string, rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
}

// write is commit of what changes the key.
func (p *place) write(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	d := p.claim.d
	resp, err := d.commit(ctx, cmps, then, otherwise)
	if err != nil && !refused(err) {
		d.mu.Lock()
		p.late = true
		d.mu.Unlock()
	}
	return resp, err
}

// put makes the key, unless it is there or must not come any more. Unless queue, it makes
// it only if the resource has no keys. It returns what keys the resource then has.
func (p *place) put(ctx context.Context, s *session, queue bool) (*clientv3.TxnResponse, error) {
	read := clientv3.OpGet(p.claim.dir, clientv3.WithPrefix())
	if queue {
		return p.putIf(ctx, s, nil, []clientv3.Op{read}, read)
	}
	empty := clientv3.Compare(clientv3.CreateRevision(p.claim.dir).WithPrefix(), "=", 0)
	return p.putIf(ctx, s, []clientv3.Cmp{empty}, nil, read)
}

// putIf is put under further conditions. A put that comes late, after Release, finds the
// tomb, or that the session's lease is gone.
func (p *place) putIf(ctx context.Context, s *session, cmps []clientv3.Cmp, then []clientv3.Op, otherwise clientv3.Op) (*clientv3.TxnResponse, error) {
	d := p.claim.d
	wantsFree := len(cmps) > 0
	cmps = append(cmps, created(p.key, 0), created(d.tomb(p.key, s.id), 0))
	then = append([]clientv3.Op{clientv3.OpPut(p.key, p.claim.value, clientv3.WithLease(s.id))}, then...)
	d.mu.Lock()
	p.enterSession(s)
	p.sess = s
	was := slices.Contains(p.unsureIn, s)
	if !was {
		p.unsureIn = append(p.unsureIn, s)
	}
	p.listenFrom()
	b := d.beat(s)
	d.mu.Unlock()
	floor := d.seen.Load()
	hung := false
	resp, err := d.runAgain(ctx, &errand{
		dir: p.claim.dir, cmps: cmps, then: then, otherwise: []clientv3.Op{otherwise},
		wantsFree: wantsFree, failed: func(error) { hung = true },
	})
	d.mu.Lock()
	if !hung && !was {
		p.unsureIn = slices.DeleteFunc(p.unsureIn, func(in *session) bool { return in == s })
	}
	if err == nil && resp.Succeeded {
		p.settleIn(s)
		p.exists(resp.Header.Revision)
	}
	d.mu.Unlock()
	switch {
	case isGone(err):
		d.lose(s)
		return nil, errGone
	case err != nil:
		return nil, err
	case resp.Succeeded && resp.Header.Revision <= floor:
		return nil, fmt.Errorf("%w: from %d to %d", ErrFenceRegressed, floor, resp.Header.Revision)
	}
	return resp, d.await(ctx, s, b)
}

// look reads those ahead, keeping the session alive.
func (p *place) look(ctx context.Context) (*clientv3.TxnResponse, error) {
	d := p.claim.d
	d.mu.Lock()
	p.listenFrom()
	s := p.sess
	b := d.beat(s)
	d.mu.Unlock()
	resp, err := d.read(ctx, p.lookAhead()...)
	if err != nil {
		return nil, err
	}
	return resp, d.await(ctx, s, b)
}

// lookAhead reads the keys up to the claim's own, and who is first. Only who shares wants
// to know how the others do.
func (p *place) lookAhead() []clientv3.Op {
	ahead := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMaxCreateRev(p.rev)}
	if p.shared() {
		return []clientv3.Op{clientv3.OpGet(p.claim.dir, ahead...)}
	}
	return []clientv3.Op{
		clientv3.OpGet(p.claim.dir, clientv3.WithFirstCreate()...),
		clientv3.OpGet(p.claim.dir, append(ahead, clientv3.WithKeysOnly())...),
	}
}

// keep restarts the lease with ttl, reading whether the key is still there. errGone: it
// is not.
func (p *place) keep(ctx context.Context, ttl time.Duration) error {
	d := p.claim.d
	d.mu.Lock()
	s := p.sess
	fits := s.ttl == roundUp(ttl) && !s.gone
	var b *beat
	if fits {
		b = d.beat(s)
	}
	d.mu.Unlock()
	if !fits {
		return p.move(ctx, ttl)
	}
	resp, err := d.commitAgain(ctx, p.isIn(s.id), count(p.key), count(p.key))
	switch {
	case err != nil:
		return err
	case resp.Succeeded:
		return d.await(ctx, s, b)
	case resp.Responses[0].GetResponseRange().Count == 0:
		return errGone
	}
	return p.move(ctx, ttl) // another process had resumed it
}

// isIn compares that the key is still the place's, and under that lease.
func (p *place) isIn(id clientv3.LeaseID) []clientv3.Cmp {
	return []clientv3.Cmp{created(p.key, p.rev), clientv3.Compare(clientv3.LeaseValue(p.key), "=", id)}
}

func count(key string) []clientv3.Op {
	return []clientv3.Op{clientv3.OpGet(key, clientv3.WithCountOnly())}
}

// move puts the key under a session of another TTL. It keeps its place. A move that comes
// late changes nothing: it names the revision that it has read.
func (p *place) move(ctx context.Context, ttl time.Duration) error {
	d := p.claim.d
	s, err := d.session(ctx, ttl)
	if err != nil {
		return err
	}
	d.mu.Lock()
	p.enterSession(s)
	b := d.beat(s)
	d.mu.Unlock()
	err = p.rewrite(ctx, func(*content) {}, clientv3.WithLease(s.id))
	if isGone(err) { // the new one: nothing was changed
		d.lose(s)
		return errors.New("etcdlock: a session ended as soon as it was granted")
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	p.settleIn(s)
	d.mu.Unlock()
	return d.await(ctx, s, b)
}

// remove deletes the key and reports whether there was one. That it is gone after an
// attempt of unknown outcome stays unknown: that one, or somebody else, may have done it.
func (p *place) remove(ctx context.Context) (was bool, err error) {
	// Without space the server refuses puts: that of a late key too.
	if err := p.keepOut(ctx); err != nil && !errors.Is(err, ErrNoSpace) {
		return false, err
	}
	d := p.claim.d
	d.mu.Lock()
	same := []clientv3.Cmp{created(p.key, p.rev)}
	if len(p.unsureIn) > 0 {
		same = nil // what came late has another revision
	}
	d.mu.Unlock()
	var unknown error
	resp, err := d.runAgain(ctx, &errand{
		dir: p.claim.dir, cmps: same, then: []clientv3.Op{clientv3.OpDelete(p.key)},
		failed: func(err error) {
			unknown = err
			d.mu.Lock()
			p.late = true
			d.mu.Unlock()
		},
	})
	if err != nil {
		return false, err
	}
	was = resp.Succeeded && resp.Responses[0].GetResponseDeleteRange().Deleted > 0
	if !was {
		err = unknown
	}
	return was, err
}

// keepOut keeps the puts out that may still come, each for as long as its session lives:
// after that, it has no lease.
func (p *place) keepOut(ctx context.Context) error {
	d := p.claim.d
	d.mu.Lock()
	in := slices.Clone(p.unsureIn)
	d.mu.Unlock()
	for _, s := range in {
		tomb := clientv3.OpPut(d.tomb(p.key, s.id), "", clientv3.WithLease(s.id))
		if _, err := d.commitAgain(ctx, nil, []clientv3.Op{tomb}, nil); isGone(err) {
			continue
		} else if err != nil {
			return err
		}
		d.mu.Lock()
		s.tombs++
		d.mu.Unlock()
	}
	return nil
}
