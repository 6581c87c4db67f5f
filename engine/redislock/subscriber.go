package redislock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/life"
	"github.com/leasehold-go/leasehold/internal/pause"
)

const (
	// pingAfter is how long a subscription may be silent before it is pinged. Until it is known to
	// be broken, waiters Try again by themselves.
	pingAfter = 3 * time.Second
	// When a subscription is new, leases are looked up for lookWithin in all. Each look takes
	// lookOnce at most and is then repeated, because the next one uses another connection.
	lookWithin, lookOnce = 3 * time.Second, 2 * leaveAfter
	// lookWidth is how many of these looks are sent to a node at once.
	lookWidth = 4
	// Pauses between attempts to subscribe.
	resubscribeFirst, resubscribeLast = 10 * time.Millisecond, time.Second
	// closeWithin is how long Close waits for go-redis, which ignores contexts while it connects.
	closeWithin = time.Second
)

// A subscriber receives the messages for a driver's claims: that a claim may be granted, that a
// lease was ended by force, that others wait for what a claim holds. It subscribes in the
// background when first needed. It has two channels of its own, and on Cluster one more for each
// slot where it waits (see shards).
type subscriber struct {
	client  redis.UniversalClient
	id      string
	channel string     // for leases that were ended by force; so rare that on Cluster it may go to all nodes
	recalls string     // replaces channel for holders that want to know that others wait; scripts recognise it by its name
	shards  *shards    // nil but on Cluster
	life    *life.Life // ends when the driver is closed
	clock   *boottime.Clock

	mu      sync.Mutex
	claims  map[string]*listener // guarded by mu; by owner: its first listener
	crowds  map[string]*crowd    // guarded by mu; by lock key: its waiters
	running bool                 // guarded by mu
	keeping bool                 // guarded by mu
	due     boottime.Instant     // guarded by mu; while keeping, when the next beats are due
	own     line                 // guarded by mu
	sub     *redis.PubSub        // guarded by mu; the subscription of own; nil: none yet
}

// A line is a subscription to one channel, guarded by the subscriber's mu.
type line struct {
	hears   bool
	hearing chan struct{} // closed while hears is true
	users   int           // listeners that expect a wake-up from it
	left    time.Time     // when the last of them left
}

// A listener is what the claims of one owner want to know about one lock.
type listener struct {
	claim *claim      // the last claim of the owner that waited or holds
	lost  func(error) // nil: nobody wants to know that the lease was ended
	wants *claim      // the claim that wants to know, while it holds, that others wait; nil: none
	next  *listener   // the next one of the same owner, on another lock
	waiting
}

// waiting is the wake-up that a refused attempt waits for. Its zero value means that there is none.
type waiting struct {
	line    *line             // the subscription that brings it
	wake    chan struct{}     // nil: it has come
	granted chan driver.Grant // has room for one
	number  int64             // of the attempt; a grant names the attempt that it answers
	armed   boottime.Instant  // before that attempt was sent
	tried   boottime.Instant  // when the last Try began, which may have been refused without an attempt
}

// armed is what a caller needs to wait after a refused attempt.
type armed struct {
	wake    <-chan struct{}
	granted <-chan driver.Grant
	heard   bool  // the subscription is up, so no later message is missed
	again   bool  // an earlier attempt has waited for the subscription, which wakes the caller when it is up
	number  int64 // of the attempt, by which the server names the one that it grants
}

func (e *subscriber) init(client redis.UniversalClient, id string) {
	e.client, e.id, e.channel, e.recalls = client, id, "leasehold:"+id, "leasehold:r:"+id
	e.life, e.claims, e.crowds = life.New(), make(map[string]*listener), make(map[string]*crowd)
	e.clock = boottime.Machine()
	e.own.hearing = make(chan struct{})
	if cluster, ok := client.(*redis.ClusterClient); ok {
		e.shards = newShards(e, cluster)
	}
}

// wakeChannel returns the channel on which the server wakes waiters of a lock key, or grants to
// them.
func (e *subscriber) wakeChannel(lock string) string {
	if e.shards == nil {
		return e.channel
	}
	return e.shards.channel(slot(lock))
}

// listen listens for the end of c's lease and for waiters, if c wants to know of them.
func (e *subscriber) listen(c *claim) {
	if c.req.Lost == nil && c.req.Wanted == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(c)
}

// at returns the listener for c; nil: none. Requires e.mu.
func (e *subscriber) at(c *claim) *listener {
	l := e.claims[c.req.Owner]
	for l != nil && l.claim.keys.lock != c.keys.lock {
		l = l.next
	}
	return l
}

// remove removes l. Requires e.mu.
func (e *subscriber) remove(owner string, l *listener) {
	e.leave(l)
	first := e.claims[owner]
	switch {
	case first != l:
		for first.next != l {
			first = first.next
		}
		first.next = l.next
	case l.next != nil:
		e.claims[owner] = l.next
	default:
		delete(e.claims, owner)
	}
}

// of returns the listener for c and starts the subscription if there is none. Requires e.mu.
func (e *subscriber) of(c *claim) *listener {
	l := e.at(c)
	if l == nil {
		l = &c.listener
		*l = listener{claim: c, lost: c.req.Lost, next: e.claims[c.req.Owner]}
		e.claims[c.req.Owner] = l
	}
	if c.req.Wanted != nil {
		l.wants = c
	}
	e.running = e.running || e.life.Go(e.run)
	return l
}

// arm prepares the wake-up for c before its attempt of that number is sent.
func (e *subscriber) arm(c *claim, number int64) armed {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.of(c)
	on := l.line
	again := on != nil
	if !again {
		on = &e.own
		if e.shards != nil {
			on = e.shards.use(slot(c.keys.lock))
		}
		on.users++
	}
	l.claim = c
	now := e.clock.Now()
	e.enters(c, now)
	l.waiting = waiting{line: on, wake: make(chan struct{}), granted: make(chan driver.Grant, 1), number: number, armed: now, tried: now}
	t := armed{l.wake, l.granted, on.hears, again, number}
	if e.life.Err() != nil {
		l.wakeUp() // so that it finds the driver closed
	}
	return t
}

// disarm gives up c's wake-up, which is no longer needed.
func (e *subscriber) disarm(c *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.at(c); l != nil {
		e.heldBy(c.req.Owner, l)
	}
}

// heldBy reduces l to what a holder wants to know. Requires e.mu.
func (e *subscriber) heldBy(owner string, l *listener) {
	e.leave(l)
	if l.lost == nil && l.wants == nil {
		e.remove(owner, l)
	}
}

// leave gives up the listener's wake-up. Requires e.mu.
func (e *subscriber) leave(l *listener) {
	if l.line != nil {
		l.line.users--
		l.line.left = time.Now()
	}
	l.waiting = waiting{}
}

// forget removes the listener for c.
func (e *subscriber) forget(c *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.at(c); l != nil {
		e.remove(c.req.Owner, l)
	}
}

// hear waits until the subscription for c's wake-up is up, for limit at most.
func (e *subscriber) hear(ctx context.Context, c *claim, limit time.Duration) bool {
	e.mu.Lock()
	l := e.at(c)
	if l == nil || l.line == nil {
		e.mu.Unlock()
		return false
	}
	hearing := l.line.hearing
	e.mu.Unlock()
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2) // the rest is for the next attempt
	}
	select {
	case <-hearing:
		return true
	case <-time.After(limit):
	case <-ctx.Done():
	case <-e.life.Done():
	}
	return false
}

func (e *subscriber) close() {
	e.life.End()
	abandon.Within(closeWithin, e.life.Wait)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.claims {
		l.wakeAll()
	}
}

// run keeps the driver's own channels subscribed until the driver is closed.
func (e *subscriber) run() {
	wait := resubscribeFirst
	for e.life.Err() == nil {
		if e.subscribe() {
			wait = resubscribeFirst
		}
		e.mu.Lock()
		e.deaf(&e.own)
		e.mu.Unlock()
		e.sleep(wait)
		wait = min(2*wait, resubscribeLast)
	}
}

func (e *subscriber) sleep(d time.Duration) { _ = pause.For(e.life, d) }

// subscribe receives until the subscription breaks. It reports whether it was up.
func (e *subscriber) subscribe() (heard bool) {
	sub := e.client.Subscribe(e.life)
	defer sub.Close() // its only error says that it is closed
	e.mu.Lock()
	e.sub = sub
	e.mu.Unlock()
	stands, broken := context.WithCancel(e.life)
	defer broken()
	both := []string{e.channel, e.recalls}
	if sub.Subscribe(e.life, both...) != nil {
		return false
	}
	e.receive(sub, func(m *redis.Subscription) {
		if m.Count < len(both) {
			return
		}
		heard = true
		e.mu.Lock()
		e.onSubscribed(&e.own)
		claims := e.concerned()
		e.mu.Unlock()
		e.life.Go(func() { e.lookAgain(stands, claims) })
	}, func() {})
	return heard
}

// anew ends the present subscription, so that run makes another. The sentinels have named another
// primary, but the former one may go on serving. It does not wait for go-redis, which closes no
// subscription while it connects.
func (e *subscriber) anew() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if sub := e.sub; sub != nil {
		e.life.Go(func() { sub.Close() }) // its only error says that it is closed
	}
}

// receive handles messages of sub until it breaks. It calls calm from time to time.
func (e *subscriber) receive(sub *redis.PubSub, subscribed func(*redis.Subscription), calm func()) {
	stop := context.AfterFunc(e.life, func() { sub.Close() }) // breaks a read that waits
	defer stop()
	pinged, last := false, time.Now()
	for e.life.Err() == nil {
		message, err := sub.ReceiveTimeout(e.life, pingAfter)
		switch m := message.(type) {
		case *redis.Subscription:
			subscribed(m)
		case *redis.Message:
			e.take(m.Payload)
		}
		switch {
		case err == nil, isMisconf(err): // a reply to the ping counts too
			pinged = false
		case pinged || !isTimeout(err) || sub.Ping(e.life) != nil:
			return
		default:
			pinged = true
		}
		if time.Since(last) > pingAfter {
			last = time.Now()
			calm()
		}
	}
}

// onSubscribed is called when a subscription is up. Earlier messages may have been missed, so it
// wakes all that wait for this subscription. Requires e.mu.
func (e *subscriber) onSubscribed(on *line) {
	if !on.hears {
		on.hears = true
		close(on.hearing)
	}
	for _, l := range e.claims {
		for ; l != nil; l = l.next {
			if l.line == on {
				l.wakeUp()
			}
		}
	}
}

// concerned returns the claims that want to know of the end of their leases, or of waiters.
// Requires e.mu.
func (e *subscriber) concerned() (all []*claim) {
	for _, l := range e.claims {
		for ; l != nil; l = l.next {
			if l.lost != nil {
				all = append(all, l.claim)
			}
			if l.wants != nil && (l.lost == nil || l.wants != l.claim) {
				all = append(all, l.wants)
			}
		}
	}
	return all
}

// lookAgain looks up leases after the subscription is up. Messages about their end or about waiters
// may have been missed. If a look has no answer within lookWithin, the next renewal finds out.
func (e *subscriber) lookAgain(ctx context.Context, claims []*claim) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	severally(ctx, lookWidth, claims, func(c *claim) *claim { return c }, func(c *claim) { e.lookAfter(ctx, c) })
}

// lookAfter looks up the lease of c.
func (e *subscriber) lookAfter(ctx context.Context, c *claim) {
	was := c.load()
	if was.phase != held && (c.req.Wanted == nil || !was.uncertain.attempt) {
		return
	}
	st, err := inspectAgain(ctx, c)
	if err != nil {
		return
	}
	if slices.ContainsFunc(st.Holders, func(h driver.Holder) bool { return h.Owner.Reveal() == c.req.Owner }) {
		if len(st.Waiters) > 0 && e.stillWants(c, was) {
			c.wanted()
		}
		return
	}
	if was.phase != held {
		return // it was not granted yet
	}
	why := c.why(ctx, was.grant.fence)
	var lost func(error)
	e.mu.Lock()
	if l, now := e.at(c), c.load(); l != nil && l.claim == c && now.phase == held && now.grant.fence == was.grant.fence {
		lost = l.lost
		e.remove(c.req.Owner, l)
	}
	e.mu.Unlock()
	if lost != nil {
		lost(why)
	}
}

// stillWants reports whether c still wants to know of waiters, and was not released since its state
// was was.
func (e *subscriber) stillWants(c *claim, was state) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.at(c)
	return l != nil && l.wants == c && c.load().releases == was.releases
}

// inspectAgain repeats Inspect until it succeeds or ctx ends. The connection may have died with the
// subscription without a sign, and the slot may be moving.
func inspectAgain(ctx context.Context, c *claim) (st driver.State, err error) {
	for {
		once, cancel := context.WithTimeout(ctx, lookOnce)
		if st, err = c.d.Inspect(once, c.req.Resource); err != nil {
			<-once.Done()
		}
		cancel()
		if err == nil || ctx.Err() != nil {
			return st, err
		}
	}
}

// deaf is called when a subscription breaks. Requires e.mu.
func (e *subscriber) deaf(on *line) {
	if on.hears {
		on.hears = false
		on.hearing = make(chan struct{})
	}
}

// wakeUp wakes the waiter, if one waits. Requires the subscriber's mu.
func (l *listener) wakeUp() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// wakeAll wakes all waiters of one owner, because a message does not name the lock. Requires the
// subscriber's mu.
func (l *listener) wakeAll() {
	for ; l != nil; l = l.next {
		l.wakeUp()
	}
}

// deliverGrant passes a grant to l if it was meant for l. It reports whether l took it, and whether
// others wait. Requires e.mu.
//
// The message has four or five numbers. The first is the number of the refused attempt, or, if a
// beat has kept the place since, the negative instant of that beat. The fence follows. Then come
// the milliseconds of the lease since that attempt or beat was served, and since the grant. The
// former is wrong if the server's clock was set meanwhile, so the latter bounds it. A fifth number,
// 1, means that others wait.
//
// The core counts the lease from its last Try. If the grant was for another attempt, of this claim
// or of another claim of the owner, or for a beat whose answer has not come, its end is unknown. It
// is then only a wake-up.
func (e *subscriber) deliverGrant(l *listener, told string) (took, others bool) {
	var number, ms, span, wanted int64
	var fence uint64
	if n, _ := fmt.Sscanf(told, "%d %d %d %d %d", &number, &fence, &ms, &span, &wanted); n < 4 || l.wake == nil {
		return false, false
	}
	sent, ok := l.armed, number == l.number
	k, w := e.waits(l.claim)
	if w != nil && number < 0 {
		sent, ok = k.sentAt(-number)
	}
	if !ok || !l.claim.receiveGrant(fence) {
		return false, false
	}
	ttl := min(time.Duration(ms)*time.Millisecond, e.clock.Now().Sub(sent)+time.Duration(span)*time.Millisecond)
	l.granted <- granted((ttl - l.tried.Sub(sent)).Truncate(step), fence)
	if w != nil {
		delete(k.waiters, l.claim.req.Owner)
	}
	return true, wanted == 1
}

// take handles one message. It ignores messages that the scripts did not write.
func (e *subscriber) take(message string) {
	kind, owner, rest, ok := parseMessage(message)
	if !ok {
		return
	}
	var lost func(error)
	var recalled []*claim
	e.mu.Lock()
	first := e.claims[owner]
	switch {
	case first == nil:
	case kind == 'w':
		first.wakeAll()
	case kind == 'g':
		recalled = e.granted(owner, first, rest)
	case kind == 'r':
		recalled = first.recalled(rest)
	case kind == 'e' && first.next == nil: // with several locks, their next renewals find out which one was lost
		lost = first.lost
		e.remove(owner, first)
	}
	e.mu.Unlock()
	if lost != nil {
		lost(driver.Evicted(rest))
	}
	for _, c := range recalled {
		c.wanted()
	}
}

// granted passes a grant to the listener of owner that it is meant for. It returns the claim if
// others wait. Requires e.mu.
func (e *subscriber) granted(owner string, first *listener, told string) []*claim {
	for l := first; l != nil; l = l.next {
		took, others := e.deliverGrant(l, told)
		l.wakeUp()
		if took {
			e.heldBy(owner, l)
			if others {
				return []*claim{l.claim}
			}
			return nil
		}
	}
	return nil
}

// recalled returns the claims of one owner that others wait for. If one holds with the fence, it is
// that one. Otherwise it is those that may have been granted it, though they have no answer yet.
// Requires the subscriber's mu.
func (l *listener) recalled(told string) (may []*claim) {
	fence, err := strconv.ParseUint(told, 10, 64)
	if err != nil {
		return nil
	}
	for ; l != nil; l = l.next {
		if l.wants == nil {
			continue
		}
		switch s := l.wants.load(); {
		case s.phase == held && s.grant.fence == fence:
			return []*claim{l.wants}
		case s.mayBeGranted() && fence > s.floor:
			may = append(may, l.wants)
		}
	}
	return may
}

// parseMessage splits a message of prelude.lua: a letter, the owner's length, a colon, the owner,
// and text.
func parseMessage(m string) (kind byte, owner, rest string, ok bool) {
	length, body, ok := strings.Cut(m, ":")
	if !ok || length == "" {
		return 0, "", "", false
	}
	n, err := strconv.Atoi(length[1:])
	if err != nil || n < 0 || n > len(body) {
		return 0, "", "", false
	}
	return length[0], body[:n], body[n:], true
}
