package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// decide acts on what the resource's keys were: a grant, a refusal, or more to do.
func (c *claim) decide(ctx context.Context, p *place, resp *clientv3.TxnResponse, started time.Time) (driver.Grant, error) {
	for range maxTurns {
		queue, own := c.read(p, resp)
		if other := slices.IndexFunc(queue[:ahead(queue, own)], c.isOurs); other >= 0 {
			return driver.Grant{}, c.adopt(ctx, p, queue[other])
		}
		before := queue[:ahead(queue, own)]
		free := p.admittedBehind(before)
		var err error
		switch {
		case own < 0 && p.rev != 0:
			return driver.Grant{}, errGone
		case own < 0 && slices.ContainsFunc(queue, func(e entry) bool { return e.key == p.key }):
			return driver.Grant{}, c.avoid(ctx, p)
		case own < 0 && free:
			// It would hold, if nobody has come since.
			same := clientv3.Compare(clientv3.ModRevision(c.dir).WithPrefix(), "<", resp.Header.Revision+1)
			resp, err = p.putIf(ctx, p.sess, []clientv3.Cmp{same}, nil, clientv3.OpGet(c.dir, clientv3.WithPrefix()))
		case own < 0 && c.req.Queue:
			resp, err = c.queueUp(ctx, p)
		case own < 0:
			return driver.Grant{}, c.refuseWithoutPlace(ctx, p, queue)
		case free && p.fits(queue[own]):
			return c.granted(p, started)
		case free:
			if err = p.keep(ctx, c.req.TTL); err == nil {
				return c.granted(p, started)
			}
		default:
			return c.wait(p, before, resp.Header.Revision, started)
		}
		if err != nil {
			return driver.Grant{}, err
		}
	}
	return driver.Grant{}, c.avoid(ctx, p) // the key is kept out for another reason
}

// maxTurns bounds how often others may come between a read and a put that relies on it.
const maxTurns = 100

// read returns the queue that resp shows, and where the claim's own key is in it; -1: it
// has none.
func (c *claim) read(p *place, resp *clientv3.TxnResponse) (queue []entry, own int) {
	last := resp.Responses[len(resp.Responses)-1].GetResponseRange()
	if last == nil || len(last.Kvs) == 1 && p.isNew(last.Kvs[0]) { // it is alone
		return []entry{{content: content{Owner: c.req.Owner}, key: p.key, rev: p.rev, lease: p.sess.id}}, 0
	}
	queue = entries(c.dir, last.Kvs)
	own = slices.IndexFunc(queue, func(e entry) bool { return e.key == p.key && (c.isOurs(e) || e.rev == p.rev) })
	if own >= 0 {
		c.d.mu.Lock()
		p.exists(queue[own].rev)
		c.d.mu.Unlock()
	}
	if first := resp.Responses[0].GetResponseRange(); len(resp.Responses) == 2 && first != nil && len(first.Kvs) == 1 && len(queue) > 0 {
		// The others were read without their values.
		if e := newEntry(first.Kvs[0]); e.rev == queue[0].rev {
			queue[0] = e
		}
	}
	return queue, own
}

// isNew reports whether kv is the key that the place has just been given.
func (p *place) isNew(kv *mvccpb.KeyValue) bool {
	return kv.Version == 1 && kv.CreateRevision == p.rev && string(kv.Key) == p.key
}

// ahead is how many of the queue are before the claim's own.
func ahead(queue []entry, own int) int {
	if own < 0 {
		return len(queue)
	}
	return own
}

// isOurs finds a key of the same owner: made by another process, or before this claim.
func (c *claim) isOurs(e entry) bool { return e.Owner == c.req.Owner }

// fits reports whether the key is where its lease is long enough.
func (p *place) fits(e entry) bool {
	d := p.claim.d
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.lease == p.sess.id && p.sess.ttl == roundUp(p.claim.req.TTL)
}

// adopt gives up p for the key e of the same owner, unless that has expired here.
func (c *claim) adopt(ctx context.Context, p *place, e entry) error {
	if old := c.d.expiredAt(e.key); old != nil {
		if err := c.d.bury(ctx, []*place{old}); err != nil {
			return err
		}
		return errAgain
	}
	if p.rev != 0 || len(p.unsureIn) > 0 {
		if _, err := p.remove(ctx); err != nil {
			return err
		}
	}
	c.d.mu.Lock()
	p.leave()
	c.d.mu.Unlock()
	s, err := c.d.session(ctx, c.req.TTL)
	if err != nil {
		return err
	}
	c.newPlace(s, e.key, e.rev)
	return errAgain
}

// errAgain has Try begin again: the claim has another place, or the watch hears now.
var errAgain = errors.New("etcdlock: begin again")

// queueUp makes the key at the end of the queue, in a session short enough to wait in.
func (c *claim) queueUp(ctx context.Context, p *place) (*clientv3.TxnResponse, error) {
	s, err := c.d.session(ctx, min(c.req.TTL, waitTTL))
	if err != nil {
		return nil, err
	}
	return p.put(ctx, s, true)
}

// avoid gives up a key that somebody else has.
func (c *claim) avoid(ctx context.Context, p *place) error {
	if err := p.keepOut(ctx); err != nil {
		return err
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	p.late = true
	p.leave()
	c.place = nil
	return errAgain
}

// refuseWithoutPlace is the refusal of a claim that does not queue: it leaves nothing.
func (c *claim) refuseWithoutPlace(ctx context.Context, p *place, queue []entry) error {
	if len(p.unsureIn) > 0 { // an earlier attempt may still come
		if _, err := p.remove(ctx); err != nil {
			return err
		}
	}
	c.d.mu.Lock()
	p.leave()
	c.place = nil
	c.d.mu.Unlock()
	return &driver.Busy{Retry: lookAgain, Holder: queue[0].holder()}
}

// wait is the refusal of a claim that has its place. It does not wait for the watch: who
// is refused before the watch hears is woken when it does, to read again.
func (c *claim) wait(p *place, before []entry, rev int64, started time.Time) (driver.Grant, error) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p.ended != nil:
		return driver.Grant{}, errGone
	case !p.reliable() && d.watch.live:
		return driver.Grant{}, errAgain
	}
	d.listen()
	busy := &driver.Busy{Wake: p.waitFor(before, rev), Retry: p.sess.ttl / 3, Holder: before[0].holder()}
	switch {
	case !d.watch.live:
		busy.Retry = retryDeaf
	case len(before) == 1:
		busy.Retry = min(busy.Retry, lookAgain)
	}
	p.found, p.until = started, time.Now().Add(p.sess.ttl)
	return driver.Grant{}, busy
}
