package sqllock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
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
	armed   map[waits]*waiter // guarded by mu
	running bool              // guarded by mu
	ear
}

// An ear is a watcher's Listener and what it does.
type ear struct {
	listener  Listener // nil: there is none
	channel   string
	listening bool    // guarded by watcher.mu; there is a goroutine that listens
	relisten  func()  // guarded by watcher.mu; ends the present call of the Listener, which is made again
	hearing   hearing // guarded by watcher.mu
}

// waits tells a claim that waits from others: its owner may be that of another resource's.
type waits struct{ resource, owner string }

func by(req *driver.Request) waits { return waits{req.Resource, req.Owner} }

// A waiter is one Try that was refused, as far as the watcher knows it.
type waiter struct {
	req     driver.Request
	wake    chan struct{}
	granted chan driver.Grant // has room for one
	number  atomic.Int64      // of the grant that was brought to it; 0: none

	after  int64 // guarded by watcher.mu; a grant after its Try has a greater number; none, while that goes on
	during int64 // guarded by watcher.mu; the number of a grant that was told meanwhile
}

// trying is above all numbers.
const trying = math.MaxInt64

// ttl is that of a grant that was brought to it, counted from before its Try: it lasts as
// long as the place would have, or as a lease of its own that began then.
func (w *waiter) ttl() time.Duration { return min(placeTTL, w.req.TTL) }

// givenMessage begins the message that a release has granted to somebody: a hash of name and
// owner, and the number of the grant follow.
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
	w.armed = make(map[waits]*waiter)
}

// arm returns what hears when req may be granted, or earlier, or was granted. It replaces
// an earlier one of the same claim. refused or disarm follows.
func (w *watcher) arm(req *driver.Request) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	me := &waiter{req: *req, wake: make(chan struct{}), granted: make(chan driver.Grant, 1), after: trying}
	waited := w.armed[by(req)] != nil
	w.armed[by(req)] = me
	if w.ctx.Err() != nil {
		return me // close wakes it
	}
	if !w.running {
		w.running = true
		w.done.Go(w.run)
	} else if !waited && !w.hearing.hears {
		signal(w.joined)
	}
	if w.listener != nil && !w.listening {
		w.listening = true
		w.done.Go(w.listen)
	}
	return me
}

// refused notes that the waiter's Try was, when the last grant had that number.
func (w *watcher) refused(me *waiter, last int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	me.after = last
	if w.armed[by(&me.req)] == me && me.during > last {
		w.give(me, me.during)
	}
}

// give brings a waiter its grant, if that came after its Try. Requires mu.
func (w *watcher) give(me *waiter, number int64) {
	if number <= me.after {
		me.during = max(me.during, number)
		return
	}
	me.number.Store(number)
	me.granted <- driver.Grant{TTL: roundUp(me.ttl()), Fence: driver.FenceOf(number)}
	close(me.wake)
	delete(w.armed, by(&me.req))
}

// disarm lets go of the channel for req, which need not close any more.
func (w *watcher) disarm(req *driver.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.armed, by(req))
}

// close wakes all, so that they find the driver closed.
func (w *watcher) close() {
	w.mu.Lock()
	w.stop() // under mu, so that no goroutine starts from here on
	w.mu.Unlock()
	w.done.Wait()
	w.wake(func(*waiter) bool { return true })
}

// waiting returns the names that are waited for, or ends the watch if there are none.
func (w *watcher) waiting() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.armed) == 0 || w.ctx.Err() != nil {
		w.running = false
		return nil
	}
	seen := make(map[string]bool, len(w.armed))
	var all []string
	for _, one := range w.armed {
		if name := one.req.Resource; !seen[name] {
			seen[name] = true
			all = append(all, name)
		}
	}
	return all
}

// wake closes the channels of those whose turn it is.
func (w *watcher) wake(turn func(*waiter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for whose, one := range w.armed {
		if turn(one) {
			close(one.wake)
			delete(w.armed, whose)
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
	w.wake(func(one *waiter) bool { return called(one.req.Owner) == message })
}

// given brings a grant to the waiter that the message names, if it is one of ours.
func (w *watcher) given(message string) {
	to, text, _ := strings.Cut(message, " ")
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.armed {
		if givenTo(&one.req) == to {
			w.give(one, number)
		}
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
		case <-time.After(time.Until(next)):
		case <-w.nudge:
		case <-w.joined:
			changed = time.Now()
			if soon := changed.Add(first); !failed && soon.Before(next) {
				next = soon
			}
			continue
		case <-w.ctx.Done():
		}
		start := time.Now()
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

// after is the pause after a poll that took spent, where nothing that is waited for has
// changed for quiet, and every waiter of this Driver has at least ahead before it.
func (p pace) after(quiet, spent time.Duration, ahead int) time.Duration {
	wait := max(time.Duration(ahead+1)*p.first, quiet/time.Duration(p.share))
	if ahead > 0 {
		wait = max(wait, p.others)
	}
	return min(maxBlind, max(min(wait, p.last), time.Duration(p.idle)*spent))
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
	found, err := w.d.look(ctx, w.d.texts.state, list(all...))
	if err != nil {
		return view{}, err
	}
	byName := make(map[string]*row, len(found))
	for _, r := range found {
		byName[r.name] = r
	}
	v := view{ahead: maxAhead, ends: maxBlind}
	w.wake(func(one *waiter) bool {
		r := byName[one.req.Resource]
		if r == nil {
			return false // armed since
		}
		if number := r.leaseOf(one.req.Owner); number != 0 {
			w.give(one, number)
			return false
		}
		a := r.Obstacle(r.now, &one.req)
		if a.Granted {
			return true
		}
		ahead := r.ahead(one.req.Owner)
		v.ahead, v.ends = min(v.ahead, ahead), min(v.ends, a.Until)
		v.sum += int64(r.Fence) + int64(ahead)
		return false
	})
	return v, nil
}
