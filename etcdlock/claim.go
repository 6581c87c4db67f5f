package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// waitTTL is the longest session of a key that waits: a process that died waiting
	// delays those behind it by no more. Who asks for longer leases moves when granted.
	waitTTL = 10 * time.Second
	// lookAgain is how often the next in line looks by itself, should the watch miss
	// something; others come back when a third of their place's TTL is over.
	lookAgain = time.Second
	// maxRounds bounds how often one Try begins again because its key or its session
	// was taken away meanwhile.
	maxRounds = 5
)

// claim implements driver.Claim, driver.Lingerer and driver.Noter.
type claim struct {
	d     *Driver
	req   driver.Request
	dir   string // what its keys begin with
	value string // of its keys

	place     *place // guarded by Driver.mu; nil: none
	releasing bool   // guarded by Driver.mu; the release of place has an unknown outcome
	tried     bool   // guarded by Driver.mu; it knows what keys it has
}

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	if err := c.d.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	var err error
	for range maxRounds {
		var g driver.Grant
		if g, err = c.attempt(ctx); !errors.Is(err, errGone) && !errors.Is(err, errAgain) {
			return g, err
		}
	}
	return driver.Grant{}, fmt.Errorf("etcdlock: the key was taken away %d times: %w", maxRounds, err)
}

// attempt goes on from where the claim is. errGone: its key or session is gone; begin
// again.
func (c *claim) attempt(ctx context.Context) (driver.Grant, error) {
	p, err := c.here(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	started := p.begin(c.req.TTL)
	defer p.finish()
	if next, sure := p.isNext(started); next {
		if !sure {
			if err := p.keep(ctx, c.req.TTL); err != nil {
				return driver.Grant{}, c.drop(p, err)
			}
		}
		return c.granted(p, started)
	}
	read := p.look
	if p.rev == 0 {
		read = func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return p.put(ctx, p.sess, c.req.Queue && p.sess.ttl <= waitTTL)
		}
	}
	resp, err := read(ctx)
	if err != nil {
		return driver.Grant{}, c.drop(p, err)
	}
	g, err := c.decide(ctx, p, resp, started)
	return g, c.drop(p, err)
}

// here is the place of the claim: the one it has, or a new one.
func (c *claim) here(ctx context.Context) (*place, error) {
	d := c.d
	d.mu.Lock()
	c.tried = true
	p, releasing := c.place, c.releasing
	if p != nil && p.ended != nil && !releasing {
		p, c.place = nil, nil
	}
	d.mu.Unlock()
	if releasing { // else it could come late
		if err := c.end(ctx); err != nil && !errors.Is(err, driver.ErrLost) {
			return nil, err
		}
		p = nil
	}
	if p != nil {
		return p, nil
	}
	s, err := d.session(ctx, c.req.TTL)
	if err != nil {
		return nil, err
	}
	return c.newPlace(s, "", 0), nil
}

// newPlace is a place with a new key in s, or with one that is there since rev.
func (c *claim) newPlace(s *session, key string, rev int64) *place {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if key == "" {
		key = d.freeKey(s, c.dir)
	}
	p := &place{claim: c, key: key, named: s, rev: rev, sess: s, until: time.Now().Add(roundUp(c.req.TTL))}
	if old := d.keys[key]; old != nil { // which may believe in the key for longer than p
		p.named, p.late = old.named, true
		for _, in := range old.in { // the key is in one of them, until it moves
			p.enterSession(in)
		}
	}
	d.keys[key] = p
	p.enterSession(s)
	d.watch.attend(p)
	c.place = p
	return p
}

// freeKey is a key for one more claim in s. Keys are used again, because the server's
// index keeps those that were deleted until it is compacted, and a read of the resource
// goes over them. Requires d.mu.
func (d *Driver) freeKey(s *session, dir string) string {
	first := dir + strconv.FormatInt(int64(s.id), 16)
	key := first
	for n := 1; d.keys[key] != nil || s.retired[key]; n++ {
		key = fmt.Sprintf("%s-%d", first, n)
	}
	return key
}

// drop forgets a place whose key is gone.
func (c *claim) drop(p *place, err error) error {
	if !errors.Is(err, errGone) {
		return err
	}
	c.d.lost(p, errDeleted)
	return err
}

// isNext reports whether nothing is ahead: it holds already, or the watch has told so. It
// is sure of it when its key needs no reading. The watch tells of its own key too, in
// order: so the key was there when the last one ahead went. From then on only somebody who
// ends leases by force deletes it, as long as its session lives; and that it does, for the
// TTL, a keep-alive has told that was sent within the last moment. A leader that is new may
// answer one although the end of the lease is decided: so its TTL must not have passed
// since the key was found.
func (p *place) isNext(started time.Time) (next, sure bool) {
	d := p.claim.d
	d.mu.Lock()
	defer d.mu.Unlock()
	turn := p.rev != 0 && p.turn && p.reliable()
	sure = turn && !p.held &&
		d.keys[p.key] == p && // no other place has adopted the key
		p.settled && len(p.in) == 1 && // it is in that session
		p.sess.ttl == roundUp(p.claim.req.TTL) &&
		p.sess.covers(started) &&
		started.Before(p.found.Add(p.sess.ttl))
	return p.held || turn, sure
}

// granted makes p held by a call that started then.
func (c *claim) granted(p *place, started time.Time) (driver.Grant, error) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.ended != nil { // meanwhile
		return driver.Grant{}, errGone
	}
	if !p.held {
		p.held, p.since = true, time.Now()
	}
	p.until = started.Add(roundUp(c.req.TTL))
	p.wakeUp()
	p.ahead, p.heard, p.turn = nil, nil, false
	d.watch.settle(p)
	if c.req.Lost != nil {
		d.listenIfHeld()
	}
	return driver.Grant{TTL: roundUp(c.req.TTL), Fence: driver.FenceOf(p.rev)}, nil
}
