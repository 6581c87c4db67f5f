package sqllock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/record"
)

// How the watcher polls, whatever the dialect's pace.
const (
	// maxBlind bounds how long the version alone is believed, in case it does not tell
	// everything. What it cannot tell, that a lease or a place expires, is known before.
	// It is also the pause after an error.
	maxBlind = 250 * time.Millisecond
	// Pauses between attempts to listen.
	listenFirst, listenLast = 10 * time.Millisecond, time.Second
)

// A watcher wakes the waiters of one Driver when their turn has come: as a Listener hears
// it that has proved to hear, else by polling. It polls, by a goroutine, only while there are any waiters, and
// keeps no connection between two polls.
type watcher struct {
	d      *Driver
	ctx    context.Context // ends with close
	stop   context.CancelFunc
	done   sync.WaitGroup
	nudge  chan struct{} // has a token when it is to look now
	joined chan struct{} // has a token when somebody has come to wait: it is to look soon

	mu      sync.Mutex
	crowds  map[string]*crowd  // guarded by mu; by resource; none is empty
	byHash  map[string]*waiter // guarded by mu; see givenTo
	by      time.Time          // guarded by mu; when something that is in the way ends; zero: not known
	came    bool               // guarded by mu; somebody has come to wait since the last look
	running bool               // guarded by mu
	ear
	pulse
}

// A crowd is the waiters of one resource.
type crowd struct {
	waiters map[string]*waiter // by owner
	holder  driver.Holder      // as of at
	at      boottime.Instant
	lined   uint64 // the fence when places were read last
	ahead   int    // how many were before the first of waiters then
}

// An ear is a watcher's Listener and what it does.
type ear struct {
	listener  Listener // nil: there is none
	channel   string
	listening bool    // guarded by watcher.mu; there is a goroutine that listens
	relisten  func()  // guarded by watcher.mu; ends the present call of the Listener, which is made again
	hearing   hearing // guarded by watcher.mu
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

// wakeChannel is where drivers tell each other whose turn it is.
func wakeChannel(prefix string) string { return strings.ToLower(prefix) + "wake" }

func (w *watcher) init(d *Driver, listener Listener, channel string) {
	w.d, w.listener, w.channel = d, listener, channel
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.nudge, w.joined = make(chan struct{}, 1), make(chan struct{}, 1)
	w.crowds, w.byHash = make(map[string]*crowd), make(map[string]*waiter)
	w.pulse.init()
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
		w.came = true
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

// still is the refusal of a claim whose place counts and whose turn has not come, as far as is known; else nil. When the
// tables have not been read for long, the claim is to find out why.
func (w *watcher) still(me *waiter) *driver.Busy {
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
	w.call(me)
	w.drop(me)
}

// call wakes a waiter. Requires mu.
func (w *watcher) call(me *waiter) {
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

// close wakes all, so that they find the driver closed.
func (w *watcher) close() {
	w.mu.Lock()
	w.stop() // under mu, so that no goroutine starts from here on
	w.mu.Unlock()
	w.done.Wait()
	w.callAll(func(*waiter) bool { return true })
}

// waiting returns the names that are waited for, or ends the watch if there are none.
func (w *watcher) waiting() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.crowds) == 0 || w.ctx.Err() != nil {
		w.running = false
		return nil
	}
	return slices.Collect(maps.Keys(w.crowds))
}

// callAll wakes those who are called.
func (w *watcher) callAll(called func(*waiter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.byHash {
		if called(one) {
			w.call(one)
		}
	}
}

// listen hears messages until close. Between two attempts the watcher polls.
func (w *watcher) listen() {
	for wait := listenFirst; w.ctx.Err() == nil; wait = min(2*wait, listenLast) {
		ctx, stop := context.WithCancel(w.ctx)
		w.mu.Lock()
		w.relisten = stop
		w.mu.Unlock()
		_ = w.listener.Listen(ctx, w.channel, func(message string) { // what ends it does not matter
			wait = listenFirst
			w.hear(message)
		})
		stop()
		w.mu.Lock()
		w.hearing.ended()
		w.mu.Unlock()
		signal(w.nudge)
		_ = rest(w.ctx, wait)
	}
}

// hear wakes the one that message names; "" means that there may have been others.
func (w *watcher) hear(message string) {
	w.mu.Lock()
	w.hearing.on = true
	proof := w.hearing.heard(message)
	w.mu.Unlock()
	switch {
	case proof:
		return
	case message == "":
		signal(w.nudge)
		return
	}
	if given, ok := strings.CutPrefix(message, givenMessage); ok {
		w.given(given)
		return
	}
	w.callAll(func(one *waiter) bool { return called(one.req.Owner) == message })
}

// given brings a grant to the waiter that the message names, if it is one of ours.
func (w *watcher) given(message string) {
	to, rest, _ := strings.Cut(message, " ")
	text, of, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return
	}
	beat, _ := strconv.ParseInt(of, 10, 64)
	w.mu.Lock()
	defer w.mu.Unlock()
	if me := w.byHash[to]; me != nil {
		b := brought{number: number}
		if sent := w.sent[beat]; sent != 0 {
			b.ends = sent.Add(min(placeTTL, me.req.TTL))
		}
		w.give(me, b)
	}
}

// signal leaves a token in c unless there is one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *watcher) hearsAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hearing.hears
}

// prove tells the Listener something, now and then. One that hears no longer what it heard before may be connected to a
// server that was the primary then: it connects again.
func (w *watcher) prove(ctx context.Context) {
	w.mu.Lock()
	heard := w.hearing.hears
	token := w.hearing.next(time.Now())
	if heard && !w.hearing.hears {
		w.relisten()
	}
	w.mu.Unlock()
	if token != "" {
		_ = w.d.exec(ctx, w.d.texts.wake, list(token)) // untold is unheard: it polls
	}
}

// run polls until nobody waits. An error is not its business: it polls slowly, and the
// waiters find out by themselves when they try again to keep their places.
func (w *watcher) run() {
	var seen version
	var last view
	var changed, due time.Time
	var failed bool
	first := w.d.traits.pace.first
	wait := first // whoever armed has just looked
	if w.hearsAll() {
		wait = keepPlace
	}
	next := time.Now().Add(wait)
	for {
		select {
		case <-time.After(time.Until(w.dueBy(next))):
		case <-w.nudge:
		case <-w.joined:
			if !w.hasCome() {
				continue
			}
			changed = time.Now()
			if soon := changed.Add(first); !failed && soon.Before(next) {
				next = soon
			}
			continue
		case <-w.ctx.Done():
		}
		start := time.Now()
		if w.passes(start) {
			seen = version{} // what ends by itself is no write
		}
		// Bounded: a connection that a firewall has forgotten may be the only one.
		poll, stop := context.WithTimeout(w.ctx, keepPlace)
		now, err := w.version(poll)
		// Only now: what is written for those who arm later changes the version again.
		all := w.waiting()
		if all == nil {
			stop()
			return
		}
		w.prove(poll)
		if err == nil && (now == version{} || now != seen || !start.Before(due)) {
			var v view
			if v, err = w.look(poll, all); v.sum != last.sum {
				changed = start
			}
			due, last = start.Add(min(v.ends, maxBlind)), v
		}
		stop()
		seen, failed = now, err != nil
		switch {
		case err != nil:
			seen, wait = version{}, maxBlind
		case w.hearsAll():
			wait = keepPlace // in case a message was lost
		default:
			wait = w.d.traits.pace.after(time.Since(changed), time.Since(start), last.ahead)
		}
		next = time.Now().Add(wait)
	}
}

// hasCome reports whether somebody has come to wait since it was last called.
func (w *watcher) hasCome() (came bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	came, w.came = w.came, false
	return came
}

// dueBy is when to look, next at the latest.
func (w *watcher) dueBy(next time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.by.IsZero() && w.by.Before(next) {
		return w.by
	}
	return next
}

// passes reports whether something that was in the way has ended since it was seen.
func (w *watcher) passes(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	over := !w.by.IsZero() && !now.Before(w.by)
	if over {
		w.by = time.Time{}
	}
	return over
}

// after is the pause after a poll that took spent, where nothing that is waited for has
// changed for quiet, and every waiter of this Driver has at least ahead before it.
func (p pace) after(quiet, spent time.Duration, ahead int) time.Duration {
	wait := max(time.Duration(ahead+1)*p.first, quiet/time.Duration(p.share))
	last := p.last
	if ahead > 0 {
		wait, last = max(wait, p.others), max(last, p.far)
	}
	return min(maxBlind, max(min(wait, last), time.Duration(p.idle)*spent))
}

// A version is equal to an earlier one only if nothing was written in between.
type version struct {
	conn          any // the numbers count per connection
	data, changes int64
}

// version returns the zero value where the dialect has none.
func (w *watcher) version(ctx context.Context) (version, error) {
	if w.d.texts.version == "" {
		return version{}, nil
	}
	conn, err := w.d.db.Conn(ctx)
	if err != nil {
		return version{}, err
	}
	defer conn.Close()
	v := version{conn: new(int)} // like no other
	err = conn.Raw(func(c any) error {
		if reflect.TypeOf(c).Comparable() {
			v.conn = c
		}
		return nil
	})
	if err == nil {
		// Never waits, so that a context would only cost: clients watch it in a goroutine.
		err = conn.QueryRowContext(context.WithoutCancel(ctx), w.d.texts.version).Scan(&v.data, &v.changes)
	}
	return v, err
}

// maxAhead is more than any waiter has before it, where none is known.
const maxAhead = 1000

// A view sums up what a look has seen of those who go on waiting.
type view struct {
	ahead int           // how many are before the foremost
	ends  time.Duration // until something that is in the way first ends by itself
	sum   int64         // changes with every turn
}

// look reads what is waited for, decides as a Try would, and wakes whose turn it is.
func (w *watcher) look(ctx context.Context, all []string) (view, error) {
	sent := boottime.Now()
	found, err := w.d.look(ctx, w.d.texts.state, list(all...))
	if err != nil {
		return view{}, err
	}
	v := view{ahead: maxAhead, ends: maxBlind}
	for _, r := range found {
		lined := w.d.texts.first == "" || w.needsLine(r)
		if lined {
			if err := w.d.line(ctx, r); err != nil {
				return view{}, err
			}
		}
		w.compare(r, lined, sent, &v)
	}
	return v, nil
}

// needsLine reports whether places are to be read where that is a statement of its own: not while the same one holds alone.
func (w *watcher) needsLine(r *row) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.crowds[r.name]
	return of != nil && (of.lined != r.Fence || len(r.Claims) == 0 || !alone(r.Claims[0]))
}

// compare takes in what was read of a resource, lined with its places, by a call that was sent then.
func (w *watcher) compare(r *row, lined bool, sent boottime.Instant, v *view) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.crowds[r.name]
	if of == nil {
		return // nobody waits any more
	}
	of.holder, of.at = driver.Holder{}, sent
	ahead, ours := 0, false
	ends := keepPlace
	for i := range r.Claims {
		c := &r.Claims[i]
		one := of.waiters[c.Owner]
		ours = ours || one != nil
		if ends = min(ends, r.now.Left(c)); c.Status == record.Waiting && !ours {
			ahead++
		}
		switch {
		case c.Status != record.Holding && c.Status != record.Lingering:
		case one != nil && c.Status == record.Holding:
			w.give(one, brought{int64(c.Fence), sent.Add(r.now.Left(c))})
		case of.holder == driver.Holder{}:
			of.holder = c.Holder(r.now)
		}
	}
	for owner := range r.Next {
		if one := of.waiters[owner]; one != nil {
			w.call(one)
		}
	}
	if lined && len(r.places) < inView { // all are seen
		for owner, one := range of.waiters {
			if one.after != trying && one.seen < sent && r.placeOf(owner) == nil {
				one.isIn = false // it is to take a place anew, or the resource
				w.call(one)
			}
		}
	}
	switch {
	case !lined:
		ahead = of.ahead
	case !ours:
		ahead = maxAhead
	}
	of.lined, of.ahead = r.Fence, ahead
	if ends < keepPlace {
		w.lookBy(time.Now().Add(ends + time.Millisecond))
	}
	v.ahead, v.ends = min(v.ahead, ahead), min(v.ends, ends)
	v.sum += int64(r.Fence) + int64(ahead)
}
