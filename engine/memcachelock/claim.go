package memcachelock

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/record"
)

const (
	// maxTurns is how often a call starts over because the record has changed meanwhile. Only late
	// commands of its own claim, evictions and expiry change it, rarely twice.
	maxTurns = 5
	// barTTL is how long a name stays taken after a claim was given up whose add may still arrive.
	// A server that was stopped serves all waiting commands at once, in any order.
	barTTL = 2 * time.Second
	// Waiters poll at intervals of a part of the time for which the same owner holds the name:
	// about 13 tries a second at first, and 4 after two seconds. With the core's first tries and
	// the marks, that is below 20 commands a second.
	paceFirst, paceLast, paceShare = 80 * time.Millisecond, 250 * time.Millisecond, 8
)

// A phase is what the last answer said about a claim. The package documentation has the table.
type phase uint8

const (
	idle    phase = iota // no answer yet: another process may hold the lease, and this one takes over
	refused              // another owner had the name
	held
	over // released, lost, or taken over
)

// claim implements driver.Claim.
type claim struct {
	req    driver.Request
	key    string // the key of the record
	marks  string // the key of the waiters' mark
	server *server
	turns  *turns

	phase  phase
	adrift int       // adds that had no answer and are not known to have arrived
	since  time.Time // when the claim was granted
	other  sight     // what it has seen of the holder in the way
}

// A sight is what a claim has seen of another owner's lease.
type sight struct {
	holder        driver.Holder
	since, marked time.Time // when it first saw that holder, and when it last left a mark
}

// answered changes the phase by the outcome of a call: yes is the phase if err is nil.
func (c *claim) answered(err error, yes phase) {
	switch {
	case err == nil:
		c.phase = yes
	case errors.Is(err, driver.ErrBusy):
		c.phase = refused
	case errors.Is(err, driver.ErrLost):
		c.phase = over
	}
}

// call makes a call that does no harm when it is served twice.
func (c *claim) call(ctx context.Context, f func(on *conn) error) error {
	err := c.server.call(ctx, c.server.links.Watch, f)
	for links.Again(ctx, err) {
		err = c.server.call(ctx, c.server.links.Watch, f)
	}
	return err
}

// Try implements driver.Claim.
func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	if away := c.turns.away(c.key); away > 0 && c.req.Queue && c.phase != held && c.adrift == 0 {
		return driver.Grant{}, &driver.Busy{Retry: away}
	}
	guess := c.phase == idle || c.phase == over // that the name is free, which saves reading it
	err := c.call(ctx, func(on *conn) error {
		return c.change(on, guess, []string{c.key}, func(r *record.Record, _ item) (time.Duration, error) {
			a, _ := r.Try(lasting{}, &c.req, 0, 0)
			if a.Granted {
				return granted(c.req.TTL) + early, nil
			}
			c.see(on, a.Holder)
			return 0, c.busy()
		})
	})
	if errors.Is(err, errUnsettled) && c.phase != held && c.adrift == 0 {
		err = c.busy() // several owners had it in turn, and each was gone when it looked
	}
	if c.phase == idle && c.adrift == 0 && errors.Is(err, errUnreached) {
		c.phase = over // the owner's first Try left nothing, so its release need not wait for the server
	}
	if c.answered(err, held); err != nil {
		return driver.Grant{}, err
	}
	c.since, c.other = time.Now(), sight{}
	return driver.Grant{TTL: granted(c.req.TTL)}, nil
}

// Renew implements driver.Claim.
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if err := checkTTL(ttl); err != nil {
		return driver.Grant{}, err
	}
	err := c.call(ctx, func(on *conn) error {
		return c.change(on, false, []string{c.key}, func(r *record.Record, _ item) (time.Duration, error) {
			_, err := r.Renew(lasting{}, c.req.Owner, ttl)
			return granted(ttl) + early, err
		})
	})
	if c.answered(err, held); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{TTL: granted(ttl)}, nil
}

// Release implements driver.Claim. It swaps the item for one that has expired. A delete could hit
// the successor of a lease that has just ended.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	if err := cmp.Or(how.Check(features), checkTTL(how.Linger)); err != nil {
		return err
	}
	if how.Linger > 0 {
		return c.giveUp(ctx, granted(how.Linger)+early)
	}
	return c.giveUp(ctx, expired)
}

// Note returns ErrUnsupported.
func (*claim) Note(context.Context, string) error { return driver.ErrUnsupported }

// giveUp replaces the lease by a record without an owner that keeps the name taken for life;
// expired: it does not. While adds may still arrive, the name stays taken for barTTL at least, so
// that they find it taken.
func (c *claim) giveUp(ctx context.Context, life time.Duration) error {
	if (c.phase == refused || c.phase == over) && c.adrift == 0 {
		return errNone
	}
	if c.adrift > 0 {
		life = max(life, barTTL)
	}
	var lost error
	wanted := false // another process waits
	give := func(on *conn) error {
		return c.change(on, false, []string{c.key, c.marks}, func(r *record.Record, mark item) (time.Duration, error) {
			wanted = mark.version != 0 && string(mark.value) != c.turns.id
			if life == expired {
				return expired, r.Release(c.req.Owner)
			}
			if lost = r.Linger(lasting{}, c.req.Owner, life); lost == nil || c.adrift == 0 || len(r.Claims) > 0 {
				return life, lost
			}
			r.Claims = []record.Claim{{Status: record.Lingering, TTL: life}}
			return life, nil
		})
	}
	attempt := func() error {
		if err := c.server.call(ctx, c.server.links.WatchLate, give); err != nil {
			return err
		}
		return lost
	}
	err := attempt()
	for links.Again(ctx, err) {
		unsure := fmt.Errorf("memcachelock: it may have been given up: %v", err)
		if err = attempt(); errors.Is(err, driver.ErrLost) { // the first attempt may have given it up
			err = unsure
		}
	}
	if c.answered(err, over); err == nil || errors.Is(err, driver.ErrLost) {
		c.adrift = 0
		c.turns.ended(c.key, c.since, wanted)
	}
	return err
}

// change reads the record, lets f change it, and writes it if it is unchanged at the server.
// Otherwise it starts over. keys are the record's key and the key of the mark that f gets. f
// returns how long the record must last, or an error if there is nothing to write. With guess,
// change first assumes that there is no record.
func (c *claim) change(on *conn, guess bool, keys []string, f func(r *record.Record, mark item) (time.Duration, error)) error {
	twice := false
	for range maxTurns {
		found := make([]item, 2)
		if !guess {
			if err := on.gets(keys, found); err != nil {
				return err
			}
		}
		guess = false
		r := c.read(found[0])
		life, err := f(&r, found[1])
		if err != nil {
			return err
		}
		switch err := c.write(on, &r, life, found[0].version); {
		case errors.Is(err, errRefused):
			continue
		case err != nil:
			return err
		case !on.slow || twice || life == expired:
			return nil
		case !r.Holds(c.req.Owner):
			return c.lastingWhole(on, &r, life)
		}
		c.answered(nil, held)
		twice = true // so that the lease lasts for its whole TTL
	}
	return errUnsettled
}

// lastingWhole writes a record without the lease once more. The server may have been stopped before
// the first write, and of that record's time nothing may be left. If another record is there now,
// the name is taken again.
func (c *claim) lastingWhole(on *conn, r *record.Record, life time.Duration) error {
	found := make([]item, 1)
	if err := on.gets([]string{c.key}, found); err != nil {
		return err
	}
	if found[0].version != 0 && !bytes.Equal(found[0].value, r.Encode()) {
		return nil
	}
	if err := c.write(on, r, life, found[0].version); !errors.Is(err, errRefused) {
		return err
	}
	return nil
}

// read returns the record in an item. What other clients have stored counts as the owner of a
// lease.
func (c *claim) read(found item) record.Record {
	if found.version == 0 {
		return record.Record{}
	}
	r, err := record.Decode(found.value)
	if err != nil || len(found.value) == 0 {
		return record.Record{Claims: []record.Claim{{Owner: string(found.value), Status: record.Lingering}}}
	}
	if r.Holds(c.req.Owner) && c.phase != held { // an add without an answer has arrived, or another process made the lease
		c.adrift = max(0, c.adrift-1)
		c.answered(nil, held)
	}
	return r
}

// write stores the record. errRefused means that the item does not have version was. A record that
// expires at once is written without a value, because a server may have no room.
func (c *claim) write(on *conn, r *record.Record, life time.Duration, was uint64) error {
	var value []byte
	if life != expired {
		value = r.Encode()
	}
	if was != 0 {
		return on.store("cas", c.key, value, life, was)
	}
	err := on.store("add", c.key, value, life, 0)
	if _, answer := errors.AsType[answerError](err); err != nil && !answer {
		c.adrift++
	}
	return err
}

// lasting is the Clock of a record that ends together with its item.
type lasting struct{}

func (lasting) Now() int64                         { return 0 }
func (lasting) Left(c *record.Claim) time.Duration { return c.TTL }
func (lasting) Knows(*record.Claim) bool           { return false }
func (lasting) Start(*record.Claim)                {}

// lookEvery is how often a waiter leaves a mark.
const lookEvery = time.Second

// see remembers the holder, and leaves a mark if the claim will come back.
func (c *claim) see(on *conn, in *record.Claim) {
	now := time.Now()
	if c.other.since.IsZero() || in.Owner != c.other.holder.Owner.Reveal() {
		c.other.since = now
	}
	c.other.holder = driver.Holder{Owner: driver.OwnerOf(in.Owner), Mode: driver.Exclusive, Note: in.Note}
	c.turns.refused(c.key)
	if c.req.Queue && now.Sub(c.other.marked) >= lookEvery {
		c.other.marked = now
		_ = on.store("set", c.marks, []byte(c.turns.id), markTTL, 0) // if it fails, only fairness suffers
	}
}

func (c *claim) busy() *driver.Busy {
	pace := min(max(time.Since(c.other.since)/paceShare, paceFirst), paceLast)
	spread := pace / 2 // keeps waiters that began together apart
	return &driver.Busy{Retry: pace - spread/2 + rand.N(spread), Holder: c.other.holder}
}
