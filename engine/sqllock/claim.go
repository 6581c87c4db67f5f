package sqllock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/record"
)

const (
	// placeTTL is how long a place in a queue outlives the last heartbeat of its process. A dead
	// process delays the waiters behind its own for this long. A process that is paused for longer
	// may lose its places.
	placeTTL = 8 * time.Second
	// placeMicros is placeTTL in microseconds, as text for statements.
	placeMicros = "8000000"
	// keepPlace is the interval at which a waiter must call Try. While its process sends
	// heartbeats, Try answers from memory.
	keepPlace = time.Second
	// overdue is how long a waiter may go without a Try. The next heartbeat removes its place.
	overdue = keepPlace * 3 / 2
	// plainReleaseWindow is about a round trip and a commit: hardly any waiter can have come so
	// soon after the grant. A release within it first tries the plain statement, because the one
	// that grants the lock to a waiter costs the server more.
	plainReleaseWindow = 2 * time.Millisecond
	// mostPasses is how often a release waits for a row that others change, such as by joining its
	// queue, before it only wakes the waiters. The release of a lease that is over makes as many
	// statements more, because they find nothing either.
	mostPasses = 3
	// goneTTL is how long the mark of a release refuses an acquiring call that arrives after it.
	// Both were sent: only a server or a connection that stood still can reverse them.
	goneTTL = 30 * time.Second
)

// A phase follows from the last answer about a claim; see the package's documentation.
type phase uint8

const (
	idle phase = iota
	refused
	queued
	held
	leaving
	over
)

// A claim implements [driver.Claim].
type claim struct {
	d   *Driver
	req driver.Request

	phase phase
	gone  bool    // in phase over: it was released, not lost
	lease lease   // in phase held
	turn  *waiter // in phase queued: it is notified when the turn of this claim may have come

	lateGrant bool // a grant or a place by one statement has no answer, and may still be applied
	lateWrite bool // a write of the row has no answer, and may still be applied

	recall *recall // notifies this claim of waiters by messages; nil: messages are not used
	others bool    // the last answer said that others wait, and Wanted was not called
}

// A lease is what a claim knows about its own lease. The zero value means that it has none.
type lease struct {
	number int64         // its fence is driver.FenceOf it
	ttl    time.Duration // of the last grant or renewal; 0: unknown
	alone  time.Time     // when it was granted while nobody waited; zero: others may have waited, or it was renewed
}

// moves sets the phase after a call. If err is nil, the phase is yes; otherwise it follows from
// err.
func (c *claim) moves(err error, yes phase) {
	busy, isBusy := errors.AsType[*driver.Busy](err)
	switch {
	case err == nil:
		c.phase = yes
	case isBusy && busy.Wake != nil:
		c.phase = queued
	case isBusy:
		c.phase = refused
	case errors.Is(err, driver.ErrLost):
		c.phase = over
	}
	c.gone = false
	if c.phase != held {
		c.lease, c.others = lease{}, false
		if c.recall != nil {
			c.d.watch.ended(c.recall, c.phase == queued)
		}
	}
	if c.phase != queued {
		c.turn = nil
	}
}

// holds records a grant or a renewal.
func (c *claim) holds(number int64, ttl time.Duration) driver.Grant {
	c.moves(nil, held)
	c.lease = lease{number: number, ttl: ttl}
	if c.recall != nil && c.d.watch.granted(c.recall, ttl) {
		c.others = true
	}
	return driver.Grant{TTL: roundUp(ttl), Fence: driver.FenceOf(number)}
}

// collect records a grant that was delivered to a waiting claim. Every call starts with it.
func (c *claim) collect() {
	if c.phase == queued && c.turn != nil {
		if number := c.turn.number.Load(); number != 0 {
			c.holds(number, min(placeTTL, c.req.TTL)) // no longer than this
		}
	}
}

func (c *claim) uncertain() bool { return c.lateGrant || c.lateWrite }

// errUndecided means that only the row can tell.
var errUndecided = errors.New("undecided")

// tell calls Wanted if the last answer said that others wait.
func (c *claim) tell() {
	if c.others && c.phase == held {
		c.others = false
		c.req.Wanted()
	}
}

// text chooses the statement for this claim: plain, or asking if the claim wants to know that
// others wait, or each if it wants to know of each waiter.
func (c *claim) text(plain, asking, each string) string {
	switch asksFor(&c.req) {
	case asksOnce:
		return cmp.Or(asking, plain)
	case asksEach:
		return cmp.Or(each, asking, plain)
	}
	return plain
}

// told splits an answer to one of askingTexts into the number of a grant and whether others wait.
func told(answer int64) (number int64, others bool) { return max(answer, -answer), answer < 0 }

// Try implements [driver.Claim].
func (c *claim) Try(ctx context.Context) (g driver.Grant, err error) {
	if c.d.closed.Load() { // a closed driver does not wait for others
		return g, driver.ErrClosed
	}
	defer c.tell()
	if c.recall != nil {
		c.d.watch.try(c.recall)
		defer func() { c.d.watch.tried(c.recall, c.phase == held || c.phase == queued) }()
	}
	began := boottime.Now()
	c.collect()
	if c.req.Queue {
		defer c.d.watch.begin(&c.req, began)()
		if err := c.remembered(ctx); err != nil {
			return g, err
		}
		asking, none := c.d.lanes.Begin(ctx, c.req.Resource)
		if none != nil {
			return g, asking.End(none)
		}
		defer func() { err = asking.End(err) }()
	}
	attempt, answer := c.d.doubt.calls().Begin(ctx)
	if g, err = c.try(attempt, began); again(ctx, answer, err) {
		g, err = c.try(ctx, began)
	}
	return g, err
}

// remembered returns a refusal from memory if the claim waits and, as far as its driver knows, its
// turn has not come. It returns nil if the tables must be read. The place counts only while
// heartbeats are sent, so remembered may wait for one.
func (c *claim) remembered(ctx context.Context) error {
	if c.phase != queued || c.uncertain() || ctx.Err() != nil || c.d.watch.remembered(c.turn) == nil {
		return nil
	}
	if _, err := c.d.watch.ensureAlive(ctx); err != nil {
		return err
	}
	if busy := c.d.watch.remembered(c.turn); busy != nil {
		return busy
	}
	return nil
}

func (c *claim) try(ctx context.Context, began boottime.Instant) (g driver.Grant, err error) {
	sure := !c.uncertain()
	g, err = c.fastPath(ctx)
	if busy, isBusy := errors.AsType[*driver.Busy](err); err == errUndecided || isBusy && c.req.Queue {
		return c.byRecord(ctx, began, busy, sure)
	} else if isBusy {
		c.moves(err, refused)
	} else if err == nil {
		c.d.watch.disarm(&c.req)
	}
	return g, err
}

// byRecord takes the resource or a place in the queue. first is the refusal that the fast path
// found. sure means that no call of this claim was uncertain at that time.
func (c *claim) byRecord(ctx context.Context, began boottime.Instant, first *driver.Busy, sure bool) (driver.Grant, error) {
	if !c.req.Queue {
		g, _, _, err := c.long(ctx, nil, false)
		return g, err
	}
	// Registered before the state is read, so that no later release can be missed.
	turn := c.d.watch.arm(&c.req, c.recall, began)
	g, err := c.enter(ctx, turn)
	switch _, isBusy := errors.AsType[*driver.Busy](err); {
	case isBusy:
	case err == nil, errors.Is(err, driver.ErrBarred), errors.Is(err, driver.ErrTooHeavy):
		c.d.watch.disarm(&c.req)
	default: // there may be a place, which the next Try finds
		c.d.watch.unanswered(turn)
		if first != nil && sure && ctx.Err() != nil {
			// There is no time left to queue. The refusal that was found still holds.
			return g, first
		}
	}
	return g, err
}

// fastPath grants by one statement where that is enough: the resource is free, and nobody waits or
// this claim is next. Where a read is enough to refuse, it refuses. Otherwise it returns
// errUndecided.
func (c *claim) fastPath(ctx context.Context) (driver.Grant, error) {
	place := c.phase == queued
	switch {
	case c.phase == held, c.phase == leaving, c.uncertain(), !place && c.fitsMaybe():
		return driver.Grant{}, errUndecided
	case c.d.traits.oneWriter && !place:
		// Where writers exclude each other, a refusal must not cost a write.
		if err := c.look(ctx); err != errUndecided {
			return driver.Grant{}, err
		}
	}
	if c.req.Mode == driver.Exclusive && (!place || c.d.texts.next != "") {
		number, granted, err := c.grantPlain(ctx, place)
		switch {
		case err != nil:
			c.lateGrant, c.lateWrite = !place, place // a waiter's statement has no effect once its place is gone
			return driver.Grant{}, err
		case granted:
			number, others := told(number)
			g := c.holds(number, c.req.TTL)
			c.others = c.others || others
			if !place {
				c.lease.alone = time.Now()
			}
			return g, nil
		case c.req.Queue:
			return driver.Grant{}, &driver.Busy{Retry: keepPlace}
		}
	}
	if c.req.Queue || place {
		return driver.Grant{}, errUndecided
	}
	return driver.Grant{}, c.look(ctx)
}

// grantPlain asks for an exclusive grant by one statement: as the next in the queue if the claim
// has a place. Otherwise the resource must be free, and others who ask now may share the statement.
func (c *claim) grantPlain(ctx context.Context, place bool) (number int64, granted bool, err error) {
	d, ttl := c.d, record.Micros(c.req.TTL)
	if place {
		return d.number(ctx, c.text(d.texts.next, d.texts.asking.next, d.texts.asking.nextEach), c.req.Resource, c.req.Owner, ttl, c.req.Note)
	}
	if d.texts.grantAll != "" && d.batches.free.has(c.req.Resource) {
		number, alone, err := d.batches.grants.ask(ctx, request{Name: c.req.Resource, Owner: c.req.Owner, TTL: ttl, Note: c.req.Note, Asks: d.listensFor(&c.req)})
		if !alone {
			return number, err == nil, err
		}
		defer d.batches.grants.answered()
	}
	number, granted, err = d.number(ctx, c.text(d.texts.grant, d.texts.asking.grant, d.texts.asking.grantEach), c.req.Resource, c.req.Owner, ttl, c.req.Note)
	if !granted {
		d.batches.free.note(c.req.Resource, false)
	}
	return number, granted, err
}

// fitsMaybe reports whether to read the row first, without taking a place and without a look. It
// does so for a shared claim that does not wait, which loses nothing by it. A shared claim that
// waits must have reason to expect a grant: the resource had room when its row was last read.
func (c *claim) fitsMaybe() bool {
	return c.req.Mode == driver.Shared && (!c.req.Queue || c.d.roomy.has(c.req.Resource))
}

// look reads the resource. It returns a *driver.Busy if somebody is in the way, and otherwise
// errUndecided.
func (c *claim) look(ctx context.Context) error {
	r, err := c.d.lookAt(ctx, c.req.Resource, false)
	if err != nil {
		return err
	}
	switch a := r.obstacle(&c.req); {
	case a.Granted, r.Holds(c.req.Owner):
		return errUndecided
	case a.Heavy:
		return driver.ErrTooHeavy
	default:
		return c.refusal(r, &a, nil)
	}
}

// mostJoins is how often enter takes a place again if the place is gone when the row is read.
const mostJoins = 3

// enter takes a place, unless the claim has one, and then checks whether its turn has come.
func (c *claim) enter(ctx context.Context, turn *waiter) (g driver.Grant, err error) {
	joined := c.d.watch.placed(turn)
	placed := joined || c.phase == held || c.phase == leaving
	var number int64
	// A place that is gone, or had no answer, may come late, with a number that is over: the row says which count.
	if late := c.d.texts.join == "" && (c.phase == queued || c.lateGrant); !placed && (late || c.fitsMaybe()) {
		if g, placed, number, err = c.long(ctx, turn, false); placed {
			return g, err
		}
	}
	for range mostJoins {
		if !placed {
			proc, err := c.d.watch.ensureAlive(ctx)
			if err != nil {
				return g, err // nothing was sent for this claim
			}
			r, err := c.d.join(ctx, &c.req, proc, number)
			if err != nil {
				c.lateGrant = true // the place may have been taken, and a release may grant it the lock
				return g, err
			}
			if joined = true; r != nil {
				// From now on, any call that frees the resource sees the place.
				if a := r.obstacle(&c.req); !a.Granted && !a.Heavy {
					return g, c.waits(turn, true, c.refusal(r, &a, turn), int64(r.Fence))
				}
			}
		}
		if g, placed, number, err = c.long(ctx, turn, joined); placed {
			return g, err
		}
	}
	return g, err
}

// waits records a refusal. The last grant of the resource had the number last.
func (c *claim) waits(turn *waiter, placed bool, busy *driver.Busy, last int64) error {
	if c.moves(busy, held); turn != nil {
		c.turn = turn
		c.d.watch.refused(turn, placed, last, busy)
	}
	return busy
}

// long acquires by the row's record and the first places. It sets placed if nothing is left to do:
// the claim was granted, or it has the place that it needs, or it needs none. Otherwise the caller
// must take a place, with the number after or a greater one. joined means that the claim has taken
// a place, which may be behind those that are read.
func (c *claim) long(ctx context.Context, turn *waiter, joined bool) (g driver.Grant, placed bool, after int64, err error) {
	var number, last, left int64 // left: the number of the claim's place, if the grant leaves it in the table
	var busy *driver.Busy
	var barred, heavy, lapses, others, room bool
	err = c.d.changeFor(ctx, c.req.Resource, change{waits: turn != nil, decide: func(r *row) bool {
		// This release must give a lease another fence, so that a late release does not end it. A place stays.
		was := c.phase == leaving && r.Holds(c.req.Owner) && r.Release(c.req.Owner) == nil
		a, changed := r.try(&c.req)
		number, last, busy, after = int64(driver.NumberOf(a.Fence)), int64(r.Fence), nil, r.served+1
		place := r.placeOf(c.req.Owner)
		placed = turn == nil || place != nil || joined && r.hides(c.req.Owner)
		if barred, heavy = a.Barred, a.Heavy; !a.Granted && !barred && !heavy {
			busy = c.refusal(r, &a, turn)
			if turn == nil { // no release follows that would refuse what may still come
				c.bar(r)
				changed = c.uncertain()
			}
		}
		if others = a.Granted && c.req.Wanted != nil && r.Awaited(c.req.Owner); a.Granted && c.recall != nil {
			r.listens(&c.req)
		}
		if left = 0; a.Granted && place != nil {
			if served, _ := r.over(); place.seq > served {
				left = place.seq
			}
		}
		room = r.hasRoomFor(&c.req)
		lapses = place != nil && r.lapses()
		return changed || was
	}})
	if err != nil {
		c.lateWrite = true
		return g, true, 0, err
	}
	switch c.d.roomy.note(c.req.Resource, room); {
	case barred:
		c.moves(driver.ErrBarred, held)
		return g, true, 0, driver.ErrBarred
	case heavy:
		if turn != nil { // its place blocks others; if this fails, a later heartbeat removes it
			_, _ = c.d.changed(ctx, c.d.texts.leave, c.req.Resource, c.req.Owner)
		}
		return g, true, 0, driver.ErrTooHeavy
	case busy != nil:
		if turn == nil {
			c.lateGrant, c.lateWrite = false, false
		}
		if lapses {
			c.d.keepNewcomersOut(ctx, c.req.Resource)
		}
		return g, placed, after, c.waits(turn, placed, busy, last)
	case number == 0: // no row was decided on
		c.lateWrite = true
		return g, true, 0, errUndecided
	case left > 0:
		c.d.watch.remove(ctx, c.req.Resource, c.req.Owner, left) // if this fails, a later heartbeat removes the place
	}
	g = c.holds(number, c.req.TTL)
	c.others = c.others || others
	return g, true, 0, nil
}

// refusal builds the answer of a refused call. It says when to try again if nothing wakes the
// caller: when the first obstacle ends by itself, and in a queue soon enough to keep the place.
func (c *claim) refusal(r *row, a *record.Answer, turn *waiter) *driver.Busy {
	busy := &driver.Busy{Retry: a.Until}
	if turn != nil {
		busy.Wake, busy.Granted = turn.wake, turn.granted
	}
	if c.req.Queue {
		busy.Retry = min(busy.Retry, keepPlace)
	}
	if a.Holder != nil {
		busy.Holder = a.Holder.Holder(r.now)
	}
	return busy
}

// Renew implements [driver.Claim].
func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	one := []driver.Renewal{{Claim: c, TTL: ttl}}
	c.d.RenewAll(ctx, one)
	return one[0].Grant, one[0].Err
}

// renewed records the outcome of a renewal. others means that others wait.
func (c *claim) renewed(ttl time.Duration, number int64, others bool, err error) (driver.Grant, error) {
	if errors.Is(err, driver.ErrCorrupt) {
		// For example, the file was replaced: others do not look for the lease here.
		err = fmt.Errorf("%w: %w", driver.ErrLost, err)
	}
	if err != nil {
		c.moves(err, held)
		return driver.Grant{}, err
	}
	g := c.holds(number, ttl)
	c.others = c.req.Wanted != nil && (others || c.others)
	c.tell()
	return g, nil
}

// lengthens reports whether one statement can renew the lease. A renewal that arrives late must not
// leave less time than the holder counts on.
func (c *claim) lengthens(ttl time.Duration) bool {
	return c.req.Mode == driver.Exclusive && c.lease.ttl > 0 && ttl >= c.lease.ttl
}

// Note implements [driver.Claim].
func (c *claim) Note(ctx context.Context, note string) error {
	c.collect()
	note = printable(note)
	var lost error
	err := c.d.change(ctx, c.req.Resource, func(r *row) bool {
		lost = r.SetNote(c.req.Owner, note)
		return lost == nil
	})
	c.lateWrite = c.lateWrite || err != nil
	if err = cmp.Or(err, lost); err == nil {
		c.req.Note = note
	}
	return err
}

// Forget implements [driver.Forgetter]. The place stays for another process, as long as after a
// Try.
func (c *claim) Forget() {
	if c.recall != nil {
		c.d.watch.ended(c.recall, false)
	}
}

// Release implements [driver.Claim]. It also gives up the place. If it gets no answer, it is made
// once more over another connection; without that, waiters might wait for the whole TTL. If the
// second attempt finds the lease over, the first may have ended it.
func (c *claim) Release(ctx context.Context, how driver.End) error {
	if c.collect(); c.gone && !c.uncertain() && how.Bar == 0 {
		return errGone
	}
	c.d.watch.leaves(&c.req)
	defer c.d.watch.disarm(&c.req)
	if c.recall != nil {
		c.d.watch.ended(c.recall, false)
	}
	attempt, answer := c.d.doubt.calls().Begin(ctx)
	err := c.release(attempt, how)
	if again(ctx, answer, err) {
		if err = c.release(ctx, how); errors.Is(err, driver.ErrLost) {
			err = errMaybeReleased
		}
	}
	c.gone = err == nil
	return err
}

// errGone refuses another release of a claim that was released. It would end what the owner's next
// claim has.
var errGone = fmt.Errorf("%w: it was released", driver.ErrLost)

func (c *claim) release(ctx context.Context, how driver.End) error {
	if c.phase == held && c.req.Mode == driver.Exclusive && !c.uncertain() && how.Bar == 0 {
		found, err := c.givePlain(ctx, how.Linger)
		if errors.Is(err, driver.ErrLost) {
			c.moves(err, over)
			return err
		}
		if err != nil {
			c.moves(nil, leaving)
			return err
		}
		if found {
			if how.Linger == 0 && c.d.texts.grantAll != "" {
				c.d.batches.free.note(c.req.Resource, true)
			}
			c.moves(nil, over)
			return nil
		}
	}
	var left bool
	if c.phase != held || c.uncertain() {
		// The place goes first: without a place, a late call grants nothing.
		var err error
		left, err = c.d.changed(ctx, c.d.texts.leave, c.req.Resource, c.req.Owner)
		if err != nil {
			c.lateWrite = true
			c.moves(nil, leaving)
			return err
		}
		if left && c.phase == queued && !c.uncertain() && how.Bar == 0 {
			c.moves(nil, over)
			return nil
		}
	}
	var lost error
	var room bool
	err := c.d.change(ctx, c.req.Resource, func(r *row) bool {
		lost = c.leave(r, how)
		room = r.hasRoomFor(&c.req)
		return lost == nil || c.uncertain() || how.Bar > 0
	})
	if err != nil {
		c.lateWrite = true
		c.moves(nil, leaving)
		return err
	}
	c.d.roomy.note(c.req.Resource, room)
	c.lateGrant, c.lateWrite = false, false
	c.moves(nil, over)
	if left {
		return nil
	}
	return lost
}

// givePlain ends an exclusive lease without its row's record. If nobody waited at the grant, others
// who end a lease now may share the statement. found is false if the lease was over.
func (c *claim) givePlain(ctx context.Context, linger time.Duration) (found bool, err error) {
	d := c.d
	if d.texts.giveAll != "" && linger == 0 && !c.lease.alone.IsZero() {
		_, alone, err := d.batches.gives.ask(ctx, request{Name: c.req.Resource, Owner: c.req.Owner, Fence: c.lease.number})
		if err == errMaybeReleased {
			err = cmp.Or(c.evicted(ctx), err)
		}
		if !alone {
			return err == nil, err
		}
		defer d.batches.gives.answered()
	}
	if time.Since(c.lease.alone) < plainReleaseWindow && linger == 0 && d.texts.give != "" {
		found, err = d.changed(ctx, d.texts.give, c.req.Resource, c.req.Owner, c.lease.number)
	}
	for try := 0; try < mostPasses && linger == 0 && d.texts.pass != "" && !found && err == nil; try++ {
		found, err = d.changed(ctx, d.texts.pass, c.req.Resource, c.req.Owner, record.Micros(linger), c.lease.number)
	}
	if !found && err == nil {
		found, err = d.changed(ctx, d.texts.free, c.req.Resource, c.req.Owner, record.Micros(linger), c.lease.number)
	}
	return found, err
}

// evicted returns why this lease was ended by force; nil: its row does not tell.
func (c *claim) evicted(ctx context.Context) error {
	r, err := c.d.lookBy(ctx, c.d.texts.state, c.req.Resource)
	if err != nil {
		return nil // the caller returns a better error
	}
	for _, one := range r.Claims {
		if one.Status == record.Evicted && one.Owner == c.req.Owner && int64(one.Fence) == c.lease.number {
			return driver.Evicted(one.Note)
		}
	}
	return nil
}

// leave removes this owner from the row, and adds the marks that refuse late calls.
func (c *claim) leave(r *row, how driver.End) (lost error) {
	if how.Linger > 0 && r.Holds(c.req.Owner) {
		lost = r.Linger(r.now, c.req.Owner, how.Linger)
	} else {
		lost = r.Release(c.req.Owner)
	}
	c.bar(r)
	if how.Bar > 0 {
		r.KeepOut(r.now, c.req.Owner, how.Bar)
	}
	return lost
}

// bar leaves a mark that refuses a grant or a place by one statement that may still come.
func (c *claim) bar(r *row) {
	if c.lateGrant {
		r.Bar(r.now, c.req.Owner, goneTTL)
	}
}
