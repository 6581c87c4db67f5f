package sqllock

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A crowd is the waiters of one resource in this process.
type crowd struct {
	waiters map[string]*waiter // by owner
	holder  driver.Holder      // a holder, as of at
	at      boottime.Instant
	lined   uint64 // the fence when places were last read
	ahead   int    // how many places were ahead of all waiters then
}

// A waiter is one claim that waits, as the watcher knows it.
type waiter struct {
	req     driver.Request
	recall  *recall // of its claim; nil: none
	hash    string
	wake    chan struct{}     // of the last Try; earlier ones are closed
	granted chan driver.Grant // of the last Try; capacity 1
	number  atomic.Int64      // of the grant that was delivered to it; 0: none

	woken  bool             // guarded by watcher.mu; wake is closed
	isIn   bool             // guarded by watcher.mu; it probably has a place
	tried  boottime.Instant // guarded by watcher.mu; when its last Try began
	ended  boottime.Instant // guarded by watcher.mu; when the last Try ended, or began if it is running
	asking bool             // guarded by watcher.mu; a Try is running
	leaves bool             // guarded by watcher.mu; a Release is running
	seen   boottime.Instant // guarded by watcher.mu; results of earlier queries are outdated
	after  int64            // guarded by watcher.mu; only grants with greater numbers are new; during a Try, trying
	during brought          // guarded by watcher.mu; the grant that was reported during a Try
}

// brought is a grant that a waiter received without a call of its own.
type brought struct {
	number int64
	ends   boottime.Instant // no later than the lease's end
	wanted bool             // others are known to wait
}

// trying is greater than all numbers.
const trying = math.MaxInt64

// givenMessage begins the message that a release has granted the lock to a waiter. A hash of name
// and owner follows, then the number of the grant, and the number of the heartbeat from which its
// end counts. othersWait follows if the waiter wants to know that others wait, and some do.
const givenMessage, othersWait = "given ", "wanted"

// lookMessage says that the turn of a waiter may have come.
const lookMessage = "look"

// givenTo returns the hash that such a message has for a waiter. It does not reveal the owner.
func givenTo(req *driver.Request) string {
	sum := sha256.Sum256([]byte(req.Resource + "\n" + req.Owner))
	return hex.EncodeToString(sum[:])
}

// arm registers a waiter for a Try of req that began then. The waiter is notified when req may
// be granted, or earlier, or was granted. refused, unanswered or disarm must follow.
func (w *watcher) arm(req *driver.Request, to *recall, began boottime.Instant) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.crowds[req.Resource]
	if of == nil {
		of = &crowd{waiters: make(map[string]*waiter)}
		w.crowds[req.Resource] = of
	}
	me := of.waiters[req.Owner]
	waited := me != nil
	if !waited {
		me = &waiter{req: *req, hash: givenTo(req), woken: true}
		of.waiters[req.Owner], w.byHash[me.hash] = me, me
	}
	if me.woken {
		me.wake, me.granted, me.woken = make(chan struct{}), make(chan driver.Grant, 1), false
	}
	if me.req.TTL < req.TTL {
		me.isIn = false // its place asks for less, so it must be taken again
	}
	me.req, me.leaves = *req, false // another claim of the owner may have taken over its place
	me.recall, me.tried, me.ended, me.asking, me.seen, me.after, me.during = to, began, began, true, began, trying, brought{}
	if w.life.Err() != nil {
		return me // close wakes it
	}
	if !w.running {
		w.running = w.life.Go(w.run)
	} else if !waited && !w.hearing.hears {
		signal(w.joined)
	}
	w.beating = w.beating || w.life.Go(w.beat)
	w.startListening()
	return me
}

// refused records that the waiter's Try was refused, when the last grant had the number last.
func (w *watcher) refused(me *waiter, placed bool, last int64, busy *driver.Busy) {
	defer w.tell()
	w.mu.Lock()
	defer w.mu.Unlock()
	me.after = last
	of := w.crowds[me.req.Resource]
	if of == nil || of.waiters[me.req.Owner] != me {
		return // it was dropped meanwhile
	}
	me.isIn, of.holder, of.at = placed, busy.Holder, boottime.Now()
	if me.during.number > last {
		w.give(me, me.during)
	}
	if busy.Retry > 0 && busy.Retry < keepPlace {
		w.lookBy(time.Now().Add(busy.Retry + time.Millisecond))
		signal(w.retimed)
	}
}

// lookBy makes the watcher look at t at the latest. Requires mu.
func (w *watcher) lookBy(t time.Time) {
	if w.by.IsZero() || t.Before(w.by) {
		w.by = t
	}
}

// unanswered records that the waiter may have no place.
func (w *watcher) unanswered(me *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	me.isIn = false
}

// begin records that a Try of a waiting claim has begun; ended records its end.
func (w *watcher) begin(req *driver.Request, began boottime.Instant) (ended func()) {
	set := func(asking bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if me := w.waiterOf(req.Resource, req.Owner); me != nil {
			me.tried, me.ended, me.asking = began, boottime.Now(), asking
		}
	}
	set(true)
	return func() { set(false) }
}

// placed reports whether the waiter probably has a place.
func (w *watcher) placed(me *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return me.isIn
}

// remembered returns the refusal of a claim if, as far as is known, its place counts and its
// turn has not come. Otherwise it returns nil. It also returns nil if the tables were not read
// for a long time: the claim must then ask why.
func (w *watcher) remembered(me *waiter) *driver.Busy {
	w.mu.Lock()
	defer w.mu.Unlock()
	if me == nil || me.woken || !me.isIn || me.after == trying || me.tried.Sub(max(me.seen, w.settled)) > believed {
		return nil
	}
	busy := &driver.Busy{Wake: me.wake, Granted: me.granted, Retry: keepPlace}
	if of := w.crowds[me.req.Resource]; of != nil {
		busy.Holder = of.holder.Later(me.tried.Sub(of.at))
	}
	return busy
}

// give delivers a grant to a waiter, if it is newer than what the waiter knows and lasts long
// enough. Requires mu; tell must follow.
func (w *watcher) give(me *waiter, b brought) {
	switch {
	case me.leaves:
		return // the Release finds whatever there is to give up
	case me.after == trying:
		if b.number > me.during.number {
			me.during = b
		}
		return
	case b.number <= me.after:
		return
	}
	me.number.Store(b.number)
	if ttl := b.ends.Sub(me.tried).Truncate(time.Microsecond); b.ends != 0 && ttl >= minTTL {
		me.granted <- driver.Grant{TTL: ttl, Fence: driver.FenceOf(b.number)}
	}
	w.wakeUp(me)
	w.drop(me)
	came := me.recall != nil && w.holding(me.recall, min(placeTTL, me.req.TTL))
	if me.req.Wanted != nil && (came || b.wanted) {
		w.told = append(w.told, me.req.Wanted)
	}
}

// wakeUp wakes a waiter. Requires mu.
func (w *watcher) wakeUp(me *waiter) {
	if !me.woken {
		me.woken = true
		close(me.wake)
	}
}

// drop removes a waiter. Requires mu.
func (w *watcher) drop(me *waiter) {
	me.isIn = false
	of := w.crowds[me.req.Resource]
	if of == nil || of.waiters[me.req.Owner] != me {
		return
	}
	delete(w.byHash, me.hash)
	if delete(of.waiters, me.req.Owner); len(of.waiters) == 0 {
		delete(w.crowds, me.req.Resource)
	}
}

// waiterOf returns the waiter of a claim, or nil. Requires mu.
func (w *watcher) waiterOf(resource, owner string) *waiter {
	if of := w.crowds[resource]; of != nil {
		return of.waiters[owner]
	}
	return nil
}

// leaves records that the Release of req begins. Until it ends the waiter stays: a heartbeat that
// found a place without one would remove it, and notify nobody behind.
func (w *watcher) leaves(req *driver.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if me := w.waiterOf(req.Resource, req.Owner); me != nil {
		me.leaves = true
	}
}

// disarm removes the waiter of req, whose channel need not close any more.
func (w *watcher) disarm(req *driver.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if me := w.waiterOf(req.Resource, req.Owner); me != nil {
		w.drop(me)
	}
}
