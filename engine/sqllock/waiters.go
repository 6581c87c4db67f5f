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

// A crowd is the waiters of one resource.
type crowd struct {
	waiters map[string]*waiter // by owner
	holder  driver.Holder      // as of at
	at      boottime.Instant
	lined   uint64 // the fence when places were read last
	ahead   int    // how many were before the first of waiters then
}

// A waiter is one claim that waits, as far as the watcher knows it.
type waiter struct {
	req     driver.Request
	hash    string
	wake    chan struct{}     // of the last Try; that of an earlier one is closed
	granted chan driver.Grant // of the last Try; has room for one
	number  atomic.Int64      // of the grant that was brought to it; 0: none

	woken  bool             // guarded by watcher.mu; wake is closed
	isIn   bool             // guarded by watcher.mu; it has a place, as far as is known
	tried  boottime.Instant // guarded by watcher.mu; when its last Try began
	ended  boottime.Instant // guarded by watcher.mu; when that ended, or began if it goes on
	asking bool             // guarded by watcher.mu; that goes on
	seen   boottime.Instant // guarded by watcher.mu; what was asked before is not news
	after  int64            // guarded by watcher.mu; a grant after what is known of it has a greater number; none, while a Try goes on
	during brought          // guarded by watcher.mu; what was told meanwhile
}

// brought is a grant that was given to a waiter without a call of its own.
type brought struct {
	number int64
	ends   boottime.Instant // no later than the lease does
}

// trying is above all numbers.
const trying = math.MaxInt64

// givenMessage begins the message that a release has granted to somebody: a hash of name and
// owner, the number of the grant, and that of the beat that its end counts from follow.
const givenMessage = "given "

// givenTo is what such a message has of the waiter. It tells nobody the owner.
func givenTo(req *driver.Request) string {
	sum := sha256.Sum256([]byte(req.Resource + "\n" + req.Owner))
	return hex.EncodeToString(sum[:])
}

// arm returns what hears when req may be granted, or earlier, or was granted, for a Try that began then. refused,
// unanswered or disarm follows.
func (w *watcher) arm(req *driver.Request, began boottime.Instant) *waiter {
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
	me.tried, me.ended, me.asking, me.seen, me.after, me.during = began, began, true, began, trying, brought{}
	if w.ctx.Err() != nil {
		return me // close wakes it
	}
	if !w.running {
		w.running = true
		w.done.Go(w.run)
	} else if !waited && !w.hearing.hears {
		w.joinedLately = true
		signal(w.joined)
	}
	if !w.beating {
		w.beating = true
		w.done.Go(w.beat)
	}
	if w.listener != nil && !w.listening {
		w.listening = true
		w.done.Go(w.listen)
	}
	return me
}

// refused notes that the waiter's Try was, when the last grant had that number.
func (w *watcher) refused(me *waiter, placed bool, last int64, busy *driver.Busy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	me.after = last
	of := w.crowds[me.req.Resource]
	if of == nil || of.waiters[me.req.Owner] != me {
		return // it was let go meanwhile
	}
	me.isIn, of.holder, of.at = placed, busy.Holder, boottime.Now()
	if me.during.number > last {
		w.give(me, me.during)
	}
	if busy.Retry > 0 && busy.Retry < keepPlace {
		w.lookBy(time.Now().Add(busy.Retry + time.Millisecond))
		signal(w.joined)
	}
}

// lookBy has the watcher look then, if not earlier. Requires mu.
func (w *watcher) lookBy(t time.Time) {
	if w.by.IsZero() || t.Before(w.by) {
		w.by = t
	}
}

// unanswered notes that nothing is known of the waiter's place.
func (w *watcher) unanswered(me *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	me.isIn = false
}

// begin notes that a Try of a claim has begun. Of one that waits, ended notes when it is over.
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

// placed reports whether the waiter has a place, as far as is known.
func (w *watcher) placed(me *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return me.isIn
}

// remembered is the refusal of a claim whose place counts and whose turn has not come, as far as is known; else nil. When the
// tables have not been read for long, the claim is to find out why.
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

// give brings a waiter its grant, if that came after what is known of it, and if it is worth anything. Requires mu.
func (w *watcher) give(me *waiter, b brought) {
	switch {
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
}

// wakeUp wakes a waiter. Requires mu.
func (w *watcher) wakeUp(me *waiter) {
	if !me.woken {
		me.woken = true
		close(me.wake)
	}
}

// drop lets go of a waiter. Requires mu.
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

// waiterOf is the waiter of a claim, or nil. Requires mu.
func (w *watcher) waiterOf(resource, owner string) *waiter {
	if of := w.crowds[resource]; of != nil {
		return of.waiters[owner]
	}
	return nil
}

// disarm lets go of the channel for req, which need not close any more.
func (w *watcher) disarm(req *driver.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if me := w.waiterOf(req.Resource, req.Owner); me != nil {
		w.drop(me)
	}
}
