package redislock

import (
	"context"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/links"
)

const (
	// firstBeat is when those who came first are kept together: before they would Try again.
	firstBeat = keepPlace * 3 / 4
	// trustBeat is for how long a waiter that a beat has found is refused without asking the server. Should the next
	// beats fail, it still comes in time to keep its place.
	trustBeat = keepPlace * 3 / 2
	// maxBeat is how many waiters one script looks for: a millisecond of the server's time at most.
	maxBeat = 1000
	// rememberBeats is how many beats are remembered: a grant may be told by one that is not the last.
	rememberBeats = 4
	// maxGone is how many waiters are remembered until a beat has told the server that they are gone.
	maxGone = 20_000
)

// A crowd is all who wait for one lock in one driver. A beat keeps the places of all of them by one write, each keepPlace,
// and tells which are gone and who is the first in the queue. That one asks the server itself, and so does who is new, or
// has lost its place; the others are refused without. All fields are guarded by the subscriber's mu.
type crowd struct {
	d       *Driver
	keys    keys
	waiters map[string]*waiter // by owner
	beating bool               // a beat is on its way
	beats   []beat             // that were answered, the last ones
	seen    []any              // who is in the way, as the last of them told
	ahead   string             // who is the first in the queue, as it told
}

// A waiter is one that may have a place on the server. It is forgotten when an answer has told that there is none, or when
// no attempt that could make one may come any more and a beat has had the place removed: the beats would keep it for ever.
type waiter struct {
	claim  *claim
	tried  boottime.Instant // when its last Try began
	queued bool             // the last answer was that it has a place
	first  bool             // and that it is the first
	kept   boottime.Instant // when the last beat that has found its place was sent; 0: none has
	told   bool             // a beat has had its place removed after the last attempt that could make one
}

// A beat is one that was answered.
type beat struct {
	asked int64            // when it was served, in ms of the server's clock
	sent  boottime.Instant // before that
}

// enters notes that c asks for a place, from now on. Requires e.mu.
func (e *subscriber) enters(c *claim, now boottime.Instant) {
	k := e.crowds[c.keys.lock]
	if k == nil {
		k = &crowd{d: c.d, keys: c.keys, waiters: make(map[string]*waiter)}
		e.crowds[c.keys.lock] = k
	}
	k.waiters[c.req.Owner] = &waiter{claim: c, tried: now}
	if !e.keeping && e.ctx.Err() == nil {
		e.keeping = true
		e.done.Go(e.keep)
	}
}

// waits is what is known of c as a waiter, and its crowd; nil: nothing. Requires e.mu.
func (e *subscriber) waits(c *claim) (*crowd, *waiter) {
	k := e.crowds[c.keys.lock]
	if k == nil {
		return nil, nil
	}
	return k, k.waiters[c.req.Owner]
}

// placed notes that c has a place.
func (e *subscriber) placed(c *claim, first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, w := e.waits(c); w != nil {
		w.queued, w.first = true, first
	}
}

// dropPlace notes that c has no place any more, and that none may come.
func (e *subscriber) dropPlace(c *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k, w := e.waits(c); w != nil {
		delete(k.waiters, c.req.Owner)
	}
}

// kept is the refusal of a Try whose place was kept by the last beat; nil: the server is to be asked.
func (e *subscriber) kept(c *claim) *driver.Busy {
	e.mu.Lock()
	defer e.mu.Unlock()
	k, w := e.waits(c)
	l, now := e.at(c), e.clock.Now()
	if w == nil || w.claim != c || w.first || w.kept == 0 || now.Sub(w.kept) > trustBeat ||
		l == nil || l.claim != c || l.wake == nil || !l.line.hears {
		return nil
	}
	busy, err := c.refusal(k.seen)
	if err != nil {
		return nil
	}
	w.tried, l.tried = now, now
	busy.Holder = busy.Holder.Later(now.Sub(k.beats[len(k.beats)-1].sent))
	busy.Wake, busy.Granted = l.wake, l.granted
	return busy
}

// keep has the places of all crowds kept until there are none.
func (e *subscriber) keep() {
	e.sleep(firstBeat)
	for e.keepAll() {
		e.sleep(keepPlace)
	}
}

// keepAll sends a beat for each crowd of which somebody waits behind others; false: there is no crowd.
func (e *subscriber) keepAll() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	for lock, k := range e.crowds {
		wait, gone := k.roll(now)
		switch {
		case len(k.waiters) == 0:
			delete(e.crowds, lock)
		case len(wait)+len(gone) > 0 && !k.beating && e.ctx.Err() == nil:
			k.beating = true
			e.done.Go(func() { e.keepOne(k, wait, gone) })
		}
	}
	e.keeping = len(e.crowds) > 0 && e.ctx.Err() == nil
	return e.keeping
}

// roll returns who waits behind others, and who waits no more though its place may be there: also the first in the queue
// if it is unknown here, for whatever reason. The server leaves it alone if it is another driver's. Requires the
// subscriber's mu.
func (k *crowd) roll(now boottime.Instant) (wait, gone []string) {
	for owner, w := range k.waiters {
		switch age := now.Sub(w.tried); {
		case age > goneTTL && (w.told || len(k.waiters) > maxGone): // nothing comes that late
			delete(k.waiters, owner)
		case age > placeTTL:
			gone = append(gone, owner)
		case w.queued && !w.first:
			wait = append(wait, owner)
		}
	}
	if len(wait) > 0 && k.ahead != "" && k.waiters[k.ahead] == nil {
		gone = append(gone, k.ahead)
	}
	return wait, gone
}

// keepOne has the places of those of k who wait kept, unless the server does not answer: then they Try to keep them.
func (e *subscriber) keepOne(k *crowd, wait, gone []string) {
	ctx, cancel := context.WithTimeout(e.ctx, 2*keepPlace)
	defer cancel()
	for len(wait)+len(gone) > 0 {
		some, left := wait[:min(len(wait), maxBeat)], gone[:min(len(gone), maxBeat)]
		if e.beat(ctx, k, some, left) != nil {
			break
		}
		wait, gone = wait[len(some):], gone[len(left):]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	k.beating = false
	for _, owner := range wait { // whom no beat has kept
		if w := k.waiters[owner]; w != nil {
			w.kept = 0
		}
	}
}

// beat has beat.lua run once.
func (e *subscriber) beat(ctx context.Context, k *crowd, wait, gone []string) error {
	for {
		c := k.d.pipelines.newCall(scriptBeat)
		c.leaves = leavesSoon
		c.keys(k.keys, "", kindHistory, kindQueue, kindDetails, kindShares, kindLimits, kindBeats, kindWeights, kindMost)
		c.args(e.wakeChannel(k.keys.lock), placeTTL, len(wait))
		c.texts(wait...)
		c.texts(gone...)
		sent := e.clock.Now()
		reply, err := k.d.ask(ctx, k.keys.lock, c)
		if err == nil {
			var values []any
			if values, err = reply.slice(4); err == nil {
				e.beaten(k, wait, gone, values, sent)
			}
			return err
		}
		if !links.Again(ctx, err) {
			return err
		}
	}
}

// beaten notes the answer to a beat. Who has no place any more, or has become the first, is woken to ask the server.
func (e *subscriber) beaten(k *crowd, wait, gone []string, values []any, sent boottime.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, owner := range gone {
		if w := k.waiters[owner]; w != nil {
			w.told = sent.Sub(w.tried) > goneTTL
		}
	}
	k.ahead = text(values[1])
	if len(wait) == 0 {
		return // it has kept nobody
	}
	k.beats = append(k.beats[max(0, len(k.beats)-rememberBeats+1):], beat{number(values[0]), sent})
	k.seen = list(values[3])
	isMissing := make(map[int64]bool)
	for _, n := range list(values[2]) {
		isMissing[number(n)] = true
	}
	for i, owner := range wait {
		w := k.waiters[owner]
		if w == nil || !w.queued {
			continue // it asks the server at this moment
		}
		w.queued = !isMissing[int64(i+1)]
		w.first = owner == k.ahead
		if w.kept = sent; !w.queued || w.first {
			w.kept = 0
			if l := e.at(w.claim); l != nil {
				l.wakeUp()
			}
		}
	}
}

func list(v any) []any {
	all, _ := v.([]any)
	return all
}

// sentAt is when the beat was sent, or before, that was served at that instant of the server's clock.
func (k *crowd) sentAt(asked int64) (sent boottime.Instant, ok bool) {
	for _, b := range k.beats {
		if b.asked == asked && (!ok || b.sent < sent) {
			sent, ok = b.sent, true
		}
	}
	return sent, ok
}
