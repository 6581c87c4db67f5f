package redislock

import (
	"context"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/links"
)

const (
	// firstBeat is when a new crowd sends its first beat: before its waiters would Try again.
	firstBeat = keepPlace * 3 / 4
	// trustBeat is how long a waiter is refused without asking the server, counted from the last
	// beat that found its place. If the next beats fail, its own Try still comes in time to keep
	// the place.
	trustBeat = keepPlace * 3 / 2
	// maxBeat is how many waiters one script checks. It takes the server a millisecond at most.
	maxBeat = 1000
	// rememberBeats is how many beats are remembered, because a grant may refer to a beat before
	// the last.
	rememberBeats = 4
	// maxGone is how many waiters a crowd may have before it forgets those that have gone although
	// no beat has removed their places.
	maxGone = 20_000
)

// A crowd is all waiters of one lock in one driver. Every keepPlace, one write, a beat, keeps the
// places of all of them. Its answer says which places are missing, and which owner is first in the
// queue. The first in the queue asks the server itself, as do new waiters and those without a
// place. The others are refused without asking.
//
// All fields are guarded by the subscriber's mu.
type crowd struct {
	d       *Driver
	keys    keys
	waiters map[string]*waiter // by owner
	beating bool               // a beat has no answer yet
	beats   []beat             // the last beats with an answer
	seen    []any              // what the last beat said about the holder
	ahead   string             // the owner that is first in the queue, by the last beat
	heard   boottime.Instant   // when the last beat with an answer was sent; 0: none has had one
}

// A waiter is a claim that may have a place on the server. It is forgotten when an answer says that
// it has no place. It is also forgotten when none of its attempts can arrive any more and its place
// is gone: a beat has removed it, or it has expired while the beats failed. The next beat does not
// revive a place that had expired before.
type waiter struct {
	claim  *claim
	tried  boottime.Instant // when its last Try began, and later by each pause of the process since
	queued bool             // the last answer was that it has a place
	first  bool             // the last answer was that it is first in the queue
	kept   boottime.Instant // when the last beat that found its place was sent; 0: no beat has
	told   bool             // a beat has removed its place after the last attempt that could make one
}

// A beat is a beat that was answered.
type beat struct {
	asked int64            // when the server ran it, in ms of its clock
	sent  boottime.Instant // before it was sent
}

// enters records that c asks for a place from now on. Requires e.mu.
func (e *subscriber) enters(c *claim, now boottime.Instant) {
	k := e.crowds[c.keys.lock]
	if k == nil {
		k = &crowd{d: c.d, keys: c.keys, waiters: make(map[string]*waiter)}
		e.crowds[c.keys.lock] = k
	}
	k.waiters[c.req.Owner] = &waiter{claim: c, tried: now}
	if !e.keeping {
		e.due = now.Add(firstBeat)
		e.keeping = e.life.Go(e.keep)
	}
}

// waits returns the crowd of c and c as a waiter; nil: it does not wait. Requires e.mu.
func (e *subscriber) waits(c *claim) (*crowd, *waiter) {
	k := e.crowds[c.keys.lock]
	if k == nil {
		return nil, nil
	}
	return k, k.waiters[c.req.Owner]
}

// placed records that c has a place, and whether it is the first in the queue.
func (e *subscriber) placed(c *claim, first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, w := e.waits(c); w != nil {
		w.queued, w.first = true, first
	}
}

// dropPlace records that c has no place, and that no attempt can make one any more.
func (e *subscriber) dropPlace(c *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k, w := e.waits(c); w != nil {
		delete(k.waiters, c.req.Owner)
	}
}

// kept returns the refusal of a Try whose place was kept by the last beat; nil: ask the server.
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

// keep sends beats until there are no crowds.
func (e *subscriber) keep() {
	e.sleep(firstBeat)
	for e.keepAll() {
		e.sleep(keepPlace)
	}
}

// keepAll sends a beat for each crowd with waiters behind others, or with places to remove. It
// returns false if there are no crowds.
//
// If the process paused, the beats come late, and perhaps before its waiters have called Try again.
// So a pause does not count as time in which a waiter did not call Try.
func (e *subscriber) keepAll() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	late := max(now.Sub(e.due), 0)
	e.due = now.Add(keepPlace)
	for lock, k := range e.crowds {
		for _, w := range k.waiters {
			w.tried = min(w.tried.Add(late), now)
		}
		called := k.roll(now)
		switch {
		case len(k.waiters) == 0:
			delete(e.crowds, lock)
		case len(called.wait)+len(called.gone) > 0 && !k.beating:
			k.beating = e.life.Go(func() { e.keepOne(k, called) })
		}
	}
	e.keeping = len(e.crowds) > 0 && e.life.Err() == nil
	return e.keeping
}

// A roll is the owners that a beat is about.
type roll struct {
	wait []string // wait behind others
	ask  []string // ask the server themselves: the first in the queue, and who has no answer yet
	gone []string // no longer wait, but may still have a place
}

// cut returns the first owners of each kind, as many as one script checks, and the others.
func (r roll) cut() (some, others roll) {
	cut := func(all []string) (some, others []string) {
		n := min(len(all), maxBeat)
		return all[:n], all[n:]
	}
	some.wait, others.wait = cut(r.wait)
	some.ask, others.ask = cut(r.ask)
	some.gone, others.gone = cut(r.gone)
	return some, others
}

func (r roll) empty() bool { return len(r.wait)+len(r.ask)+len(r.gone) == 0 }

// roll returns the owners for the next beat. The first in the queue counts as gone if this driver
// does not know it. If it is another driver's, the server leaves it alone. Requires the
// subscriber's mu.
func (k *crowd) roll(now boottime.Instant) (r roll) {
	for owner, w := range k.waiters {
		switch age := now.Sub(w.tried); {
		case age > goneTTL && (w.told || len(k.waiters) > maxGone), // no attempt arrives so late
			min(age, now.Sub(k.heard)) > goneTTL+placeTTL:
			delete(k.waiters, owner)
		case age > placeTTL:
			r.gone = append(r.gone, owner)
		case w.queued && !w.first:
			r.wait = append(r.wait, owner)
		default:
			r.ask = append(r.ask, owner)
		}
	}
	if len(r.wait) > 0 && k.ahead != "" && k.waiters[k.ahead] == nil {
		r.gone = append(r.gone, k.ahead)
	}
	return r
}

// keepOne keeps the places of the owners that wait, and removes the places of those that are gone.
// If the server does not answer, the waiters keep their places by a Try.
func (e *subscriber) keepOne(k *crowd, r roll) {
	ctx, cancel := context.WithTimeout(e.life, 2*keepPlace)
	defer cancel()
	for !r.empty() {
		some, others := r.cut()
		if e.beat(ctx, k, some, !others.empty()) != nil {
			break
		}
		r = others
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	k.beating = false
	for _, owner := range r.wait { // no beat has kept their places
		if w := k.waiters[owner]; w != nil {
			w.kept = 0
		}
	}
}

// beat runs beat.lua for at most maxBeat owners of each kind. With more, another beat follows at
// once for the others.
func (e *subscriber) beat(ctx context.Context, k *crowd, r roll, more bool) error {
	for {
		c := k.d.pipelines.newCall(scriptBeat)
		c.leaves = leavesSoon
		c.keys(k.keys, "", kindHistory, kindQueue, kindDetails, kindShares, kindLimits, kindBeats, kindWeights, kindMost)
		c.args(e.wakeChannel(k.keys.lock), placeTTL, len(r.wait), len(r.ask), more)
		c.texts(r.wait...)
		c.texts(r.ask...)
		c.texts(r.gone...)
		sent := e.clock.Now()
		reply, err := k.d.ask(ctx, k.keys.lock, c)
		if err == nil {
			var values []any
			if values, err = reply.slice(4); err == nil {
				e.beaten(k, r, more, values, sent)
			}
			return err
		}
		if !links.Again(ctx, err) {
			return err
		}
	}
}

// beaten handles the answer to a beat. It wakes waiters that have lost their place or have become
// the first, so that they ask the server.
func (e *subscriber) beaten(k *crowd, r roll, more bool, values []any, sent boottime.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k.heard = sent
	for _, owner := range r.gone {
		if w := k.waiters[owner]; w != nil {
			w.told = sent.Sub(w.tried) > goneTTL
		}
	}
	asks := func(w *waiter) {
		w.kept = 0
		if l := e.at(w.claim); l != nil {
			l.wakeUp()
		}
	}
	if !more {
		k.ahead = text(values[1])
		defer func() {
			if w := k.waiters[k.ahead]; w != nil && w.queued && !w.first {
				w.first = true
				asks(w)
			}
		}()
	}
	if len(r.wait)+len(r.ask) == 0 {
		return // no place was kept
	}
	k.beats = append(k.beats[max(0, len(k.beats)-rememberBeats+1):], beat{number(values[0]), sent})
	k.seen = list(values[3])
	isMissing := make(map[int64]bool)
	for _, n := range list(values[2]) {
		isMissing[number(n)] = true
	}
	for i, owner := range r.wait {
		w := k.waiters[owner]
		if w == nil || !w.queued {
			continue // its attempt has no answer yet
		}
		w.queued = !isMissing[int64(i+1)]
		w.first, w.kept = false, sent
		if !w.queued {
			asks(w)
		}
	}
}

func list(v any) []any {
	all, _ := v.([]any)
	return all
}

// sentAt returns when the beat was sent that the server ran at the instant asked of its clock. If
// several were run then, it is the earliest.
func (k *crowd) sentAt(asked int64) (sent boottime.Instant, ok bool) {
	for _, b := range k.beats {
		if b.asked == asked && (!ok || b.sent < sent) {
			sent, ok = b.sent, true
		}
	}
	return sent, ok
}
