package memcachelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// maxTurns is how often a call starts again because the key changed under it. Only
	// its own claim's late commands, evictions and expiry do that, seldom twice.
	maxTurns = 5
	// barTTL is how long a name stays taken after a claim whose add may still arrive was
	// given up. A server that was stopped serves all that waits for it at once, in any
	// order.
	barTTL = 2
	// lookEvery is how often a waiter reads who holds the name. In between it only adds:
	// one command instead of two.
	lookEvery = time.Second
	// The pace of waiters is a share of the time for which the same owner holds the name:
	// at first about 13 tries a second, 4 when it has held for two. With the core's first
	// tries and the looks it stays below 20 commands a second.
	paceFirst, paceLast, paceShare = 80 * time.Millisecond, 250 * time.Millisecond, 8
)

// ownerEnd stands between owner and note in the value of an item. An item without an
// owner keeps the name taken for nobody. What other clients store is an owner without a
// note.
const ownerEnd = "\n"

// claim implements driver.Claim and driver.Lingerer.
type claim struct {
	req    driver.Request
	key    string // of the lock
	marks  string // key of the mark of who waits
	server *server
	turns  *turns

	tried  bool // else another process may have, and this one takes over
	held   bool // by the last answer
	adrift int  // adds that were sent, have no answer, and were not seen to have arrived

	holder driver.Holder // who was in the way when it looked last
	looked time.Time     // when that was; zero: never
	since  time.Time     // when it saw that holder first
}

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	c.tried = true
	if away := c.turns.away(c.key); away > 0 && c.req.Queue && !c.held && c.adrift == 0 {
		return driver.Grant{}, &driver.Busy{Retry: away}
	}
	if err := c.server.call(ctx, c.try); err != nil {
		return driver.Grant{}, err
	}
	c.held, c.looked = true, time.Time{}
	c.turns.granted(c.key)
	return driver.Grant{TTL: granted(c.req.TTL)}, nil
}

func (c *claim) try(l *line) error {
	for range maxTurns {
		err := l.add(&memcache.Item{Key: c.key, Value: c.value(), Expiration: expiration(c.req.TTL)})
		switch {
		case err == nil && !l.again():
			return nil
		case err == nil:
			c.held = true
			continue
		case !refused(err) && !errors.Is(err, errNotSent):
			c.adrift++
			return err
		case !refused(err):
			return err
		case c.knows():
			return c.busy()
		}
		found, err := l.get(c.key)
		switch {
		case err != nil:
			return err
		case found == nil: // given up in this instant
			continue
		case ownerOf(found) != c.req.Owner:
			c.see(found)
			if c.req.Queue {
				c.mark(l)
			}
			return c.busy()
		}
		if !c.held { // an add without an answer has arrived, or another process made it
			c.adrift = max(0, c.adrift-1)
			c.held = true
		}
		// The new version is also what stops a late release.
		found.Value, found.Expiration = c.value(), expiration(c.req.TTL)
		if err := l.swap(found); !refused(err) && (err != nil || !l.again()) {
			return err
		}
	}
	return errUnsettled
}

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if err := checkTTL(ttl); err != nil {
		return driver.Grant{}, err
	}
	err := c.server.call(ctx, func(l *line) error {
		err := c.replace(l, c.value(), expiration(ttl))
		if err == nil && l.again() {
			err = c.replace(l, c.value(), expiration(ttl))
		}
		return err
	})
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{TTL: granted(ttl)}, nil
}

// Release implements driver.Claim. A delete could hit the successor of a lease that has
// just ended; the swap for an item that has expired already cannot.
func (c *claim) Release(ctx context.Context) error {
	return c.giveUp(ctx, -1)
}

// Linger implements driver.Lingerer.
func (c *claim) Linger(ctx context.Context, d time.Duration) error {
	if err := checkTTL(d); err != nil {
		return err
	}
	return c.giveUp(ctx, expiration(d))
}

// giveUp leaves an item without an owner in place of the lease.
func (c *claim) giveUp(ctx context.Context, expiration int32) error {
	if c.tried && !c.held && c.adrift == 0 {
		return fmt.Errorf("%w: it was not granted", driver.ErrLost)
	}
	if c.adrift > 0 {
		expiration = max(expiration, barTTL)
	}
	err := c.server.call(ctx, func(l *line) error {
		for range maxTurns {
			err := c.replace(l, []byte(ownerEnd), expiration)
			if err == nil {
				c.endTurn(l)
			}
			if c.adrift == 0 || !errors.Is(err, errGone) {
				return err
			}
			barred := c.bar(l)
			if barred == nil {
				return errGone
			}
			if !refused(barred) {
				return barred
			}
		}
		return errUnsettled
	})
	if err == nil || errors.Is(err, driver.ErrLost) {
		c.held, c.adrift = false, 0
	}
	return err
}

// bar takes the name for nobody, so that an add of this claim finds it taken when it
// arrives. refused: it has arrived, or somebody else has the name.
func (c *claim) bar(l *line) error {
	return l.add(&memcache.Item{Key: c.key, Value: []byte(ownerEnd), Expiration: barTTL})
}

// Reasons of a loss.
var (
	errGone  = fmt.Errorf("%w: it expired, or the server evicted or forgot it", driver.ErrLost)
	errTaken = fmt.Errorf("%w: taken over", driver.ErrLost)
)

// replace puts value in place of the claim's item.
func (c *claim) replace(l *line, value []byte, expiration int32) error {
	for range maxTurns {
		found, err := l.get(c.key)
		switch {
		case err != nil:
			return err
		case found == nil:
			return errGone
		case ownerOf(found) != c.req.Owner:
			return errTaken
		}
		found.Value, found.Expiration = value, expiration
		if err := l.swap(found); !refused(err) {
			return err
		}
	}
	return errUnsettled
}

func (c *claim) value() []byte { return []byte(c.req.Owner + ownerEnd + c.req.Note) }

func ownerOf(item *memcache.Item) string {
	owner, _, _ := strings.Cut(string(item.Value), ownerEnd)
	return owner
}

// knows reports whether the claim looked a moment ago and cannot itself be what is there.
func (c *claim) knows() bool {
	return c.req.Queue && !c.held && c.adrift == 0 && !c.looked.IsZero() && time.Since(c.looked) < lookEvery
}

// see remembers who is in the way.
func (c *claim) see(found *memcache.Item) {
	owner, note, _ := strings.Cut(string(found.Value), ownerEnd)
	now := time.Now()
	if c.looked.IsZero() || owner != c.holder.Owner {
		c.since = now
	}
	c.held, c.looked = false, now
	c.holder = driver.Holder{Owner: owner, Mode: driver.Exclusive, Note: note}
}

func (c *claim) busy() *driver.Busy {
	pace := min(max(time.Since(c.since)/paceShare, paceFirst), paceLast)
	spread := pace / 2 // so that waiters who began together do not stay together
	return &driver.Busy{Retry: pace - spread/2 + rand.N(spread), Holder: c.holder}
}
