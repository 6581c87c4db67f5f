package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// move puts the key into a session of another TTL, where it keeps its place. If the place holds,
// the new session is kept alive first: it may be about to end, before the holder's deadline.
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
		if err := d.await(ctx, k); errors.Is(err, errGone) {
			return errNoSession
		} else if err != nil {
			return err
		}
		k = nil
	}
	d.mu.Lock()
	answered := awaiting(&p.unsure.moves, s)
	d.mu.Unlock()
	unsure, err := p.rewrite(ctx, func(e *entry) (isOurs bool) { return !e.Lingers }, clientv3.WithLease(s.id))
	d.mu.Lock()
	if unsure == nil || err == nil || errors.Is(err, errGone) || isGone(err) {
		answered()
	}
	if err == nil && p.phase != over {
		p.moveTo(s)
		p.unsure.moves = nil // their comparisons name what the key was before this move
	}
	d.mu.Unlock()
	if isGone(err) { // the new session is gone, and nothing was changed
		d.lose(s)
		return errNoSession
	}
	if err != nil {
		return err
	}
	return d.await(ctx, k)
}

// errNoSession means that a move found its new session gone, and left the key as it was.
var errNoSession = errors.New("etcdlock: a session ended as soon as it was granted")

// isUnknown reports whether a call that ended with err may have been served.
func isUnknown(err error) bool { return err != nil && !errors.Is(err, errGone) && !refused(err) }

// lease returns the lease of the session that the key is in if its TTL is ttl, else -1.
func (p *place) lease(ttl time.Duration) clientv3.LeaseID {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if !p.fits(ttl) {
		return -1
	}
	return p.in.id
}

// fits reports whether the key is in a session of that TTL. Requires Driver.mu.
func (p *place) fits(ttl time.Duration) bool {
	return p.in != nil && !p.in.gone && p.in.ttl == roundUp(ttl)
}

// isHere reports whether the key is in a session of this driver.
func (p *place) isHere() bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.in != nil
}

// rewrite changes the value of the key, which keeps its place. errGone means that there is no key.
// With errElsewhere too, there is one, but it lingers and outlives the place. unsure is the error of
// an attempt that may have been served; nil: there was none.
func (p *place) rewrite(ctx context.Context, change func(*entry) bool, lease clientv3.OpOption) (unsure, err error) {
	err = p.d.repeating(ctx, hangAfter, func(ctx context.Context) error {
		maybe, err := p.rewriteOnce(ctx, change, lease)
		unsure = cmp.Or(maybe, unsure)
		return err
	})
	return unsure, err
}

func (p *place) rewriteOnce(ctx context.Context, change func(*entry) bool, lease clientv3.OpOption) (unsure, err error) {
	for range maxRounds {
		e, err := p.look(ctx)
		if err != nil {
			return nil, err
		}
		if !change(e) {
			p.d.mu.Lock()
			defer p.d.mu.Unlock()
			p.spend()
			return nil, fmt.Errorf("%w: %w", errGone, errElsewhere)
		}
		done, err := p.d.replace(ctx, e, clientv3.OpPut(p.key, e.encode(), lease))
		switch {
		case errors.Is(err, ErrNoSpace) && p.isUnchanged(ctx, e): // it was not served, see refused
			return nil, err
		case isUnknown(err):
			return err, err
		case done || err != nil:
			return nil, err
		}
	}
	return nil, errors.New("etcdlock: the key is changed all the time")
}

// isUnchanged reports whether the key is certainly still as it was read.
func (p *place) isUnchanged(ctx context.Context, e *entry) bool {
	now, err := p.look(ctx)
	return err == nil && now.mod == e.mod
}

// replace applies op to a key unless it has changed since it was read as e.
func (d *Driver) replace(ctx context.Context, e *entry, op clientv3.Op) (done bool, err error) {
	unchanged := clientv3.Compare(clientv3.ModRevision(e.key), "=", e.mod)
	resp, err := d.commit(ctx, []clientv3.Cmp{unchanged}, []clientv3.Op{op}, nil)
	return err == nil && resp.Succeeded, err
}

// delete deletes the key of a place and reports whether there was one. It leaves a key that lingers;
// left then says who has released the lease: another process that had resumed it, or this one. With
// mustKnow, it fails if there was none, perhaps because of a deletion without an answer.
func (p *place) delete(ctx context.Context, mustKnow bool) (was bool, left, err error) {
	d := p.d
	d.mu.Lock()
	isOver, isKnown := p.phase == over, p.in != nil && !p.unsure.mayCome()
	var cmps []clientv3.Cmp
	if isKnown {
		cmps = []clientv3.Cmp{created(p.key, p.rev), clientv3.Compare(clientv3.LeaseValue(p.key), "=", p.in.id)}
	}
	d.mu.Unlock()
	if isOver {
		return false, nil, nil
	}
	// Without space the server refuses puts, including late puts of the key.
	if err := p.keepOut(ctx); err != nil && !errors.Is(err, ErrNoSpace) {
		return false, nil, err
	}
	w := toDelete(p.key, cmps...)
	w.deletes = mustKnow
	if isKnown {
		resp, err := d.send(ctx, w)
		if err != nil {
			return false, nil, err
		}
		was = hasDeleted(resp)
	}
	var stays *entry
	if !was { // perhaps it is in another session
		var unsure error
		if was, stays, unsure, err = p.deleteIf(ctx, mustKnow, p.mayRelease); err == nil && !was && mustKnow {
			err = cmp.Or(unsure, w.unsure)
		}
		if err != nil {
			return false, nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if stays != nil {
		p.spend()
	} else if !was {
		d.lookThrough(p.in) // it may belong to another place that had the same key before
	}
	switch {
	case stays == nil || !stays.Lingers || stays.rev != p.rev:
	case slices.Contains(p.lingers, stays.lease): // by a release without an answer
		left = errReleased
	default:
		left = errElsewhere
	}
	p.on(yes, errReleased)
	return was, left, nil
}

// mayRelease reports whether the key, as it was read, is that of p and does not linger.
func (p *place) mayRelease(e *entry) bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return !e.Lingers && (e.rev == p.rev || len(p.unsure.puts) > 0 && p.claim.isOurs(*e))
}

// deleteIf reads the key and deletes it as it was read, if isOurs accepts it. With mustKnow, the
// first deletion may hang for longer. stays is a key that isOurs does not accept. unsure is the
// error of a deletion that may have been served; nil: there was none.
func (p *place) deleteIf(ctx context.Context, mustKnow bool, isOurs func(*entry) bool) (was bool, stays *entry, unsure, err error) {
	for {
		e, err := p.d.get(ctx, p.key)
		if err != nil {
			return false, nil, unsure, err
		}
		if e == nil || !isOurs(e) {
			return false, e, unsure, nil
		}
		wait := hangAfter
		if mustKnow {
			wait = deletionWait(ctx)
		}
		err = p.d.repeating(ctx, wait, func(ctx context.Context) (err error) {
			if was, err = p.d.replace(ctx, e, clientv3.OpDelete(p.key)); isUnknown(err) {
				unsure = err
			}
			return err
		})
		if was || err != nil {
			return was, nil, unsure, err
		}
	}
}

// toDelete is a write that deletes a key if cmps hold.
func toDelete(key string, cmps ...clientv3.Cmp) *write {
	return &write{dir: dirOf(key), deletes: true, cmps: cmps, then: []clientv3.Op{clientv3.OpDelete(key)}}
}

// delete deletes the key of e, if it was not created anew, and reports whether there was one. If an
// attempt had no answer and the next finds no key, the outcome is unknown: that attempt, or another
// process, may have deleted it.
func (d *Driver) delete(ctx context.Context, e entry) (was bool, err error) {
	w := toDelete(e.key, created(e.key, e.rev))
	resp, err := d.send(ctx, w)
	if err != nil {
		return false, err
	}
	if was = hasDeleted(resp); !was {
		err = w.unsure
	}
	return was, err
}

func hasDeleted(resp *clientv3.TxnResponse) bool {
	return resp.Succeeded && resp.Responses[0].GetResponseDeleteRange().Deleted > 0
}

// keepOut keeps out the puts that may still come. It leaves a tombstone for each one while its
// session lives; after that, the put has no lease.
func (p *place) keepOut(ctx context.Context) error {
	d := p.d
	d.mu.Lock()
	puts := slices.Compact(slices.Clone(p.unsure.puts)) // most are of one session
	d.mu.Unlock()
	for _, s := range puts {
		put := clientv3.OpPut(d.tombstone(p.key, s.id), "", clientv3.WithLease(s.id))
		if _, err := d.commitAgain(ctx, nil, put); isGone(err) {
			continue
		} else if err != nil {
			return err
		}
		d.mu.Lock()
		s.spent[p.key] = true
		d.mu.Unlock()
	}
	return nil
}

// clear deletes the key of a place that is leaving, if the key is in a session of this driver. It
// compares what it has read, because another process may resume the lease meanwhile.
func (p *place) clear(ctx context.Context) error {
	d := p.d
	if err := p.keepOut(ctx); err != nil && !errors.Is(err, ErrNoSpace) {
		return err
	}
	_, stays, _, err := p.deleteIf(ctx, false, p.knows)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if stays != nil {
		p.spend()
	}
	p.on(yes, nil)
	return nil
}

// knows reports whether the key, as it was read, still belongs to p, so that no other process has
// resumed it or used it again.
func (p *place) knows(e *entry) bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	is := func(s *session) bool { return s.id == e.lease }
	if slices.ContainsFunc(p.unsure.puts, is) {
		return true // the put came late, so the revision is unknown
	}
	return e.rev == p.rev && (p.in != nil && is(p.in) || slices.ContainsFunc(p.unsure.moves, is))
}
