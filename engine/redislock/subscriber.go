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
	"github.com/leasehold-go/leasehold/internal/boottime"
)

const (
	// pingAfter is how long a subscription may be silent before it is asked whether it
	// still stands. Until it is known to be broken, waiters come back by themselves.
	pingAfter = 3 * time.Second
	// lookWithin is how long leases are asked after when a subscription stands, and lookOnce for how long before
	// the question is put again: by then it goes on another connection.
	lookWithin, lookOnce = 3 * time.Second, 2 * leaveAfter
	// lookWidth is how many questions are on their way to a node meanwhile.
	lookWidth = 4
	// Pauses between attempts to subscribe.
	resubscribeFirst, resubscribeLast = 10 * time.Millisecond, time.Second
)

// A subscriber is where a driver hears which of its claims may be granted, whose lease was ended by force, and
// which of those that hold others wait for. It subscribes when first needed, in the background: to two channels
// of its own, and on Cluster, for wake-ups, to one more for each slot where it waits (see shards).
type subscriber struct {
	client redis.UniversalClient
	id     string
	name   string          // of the own channel
	wanted string          // of the one for those that want to know who waits
	shards *shards         // nil but on Cluster
	ctx    context.Context // ends with close
	stop   context.CancelFunc
	done   sync.WaitGroup
	clock  *boottime.Clock

	mu      sync.Mutex
	claims  map[string]*listener // guarded by mu; by owner: its first
	crowds  map[string]*crowd    // guarded by mu; by lock key: who waits for it
	running bool                 // guarded by mu
	keeping bool                 // guarded by mu
	own     line                 // guarded by mu
}

// A line is a subscription to one channel, guarded by the subscriber's mu.
type line struct {
	hears   bool
	hearing chan struct{} // closed while it hears
	users   int           // listeners that wait for a wake-up from it
	left    time.Time     // when the last one of them went
}

// listener is what an owner wants to hear of one lock.
type listener struct {
	claim *claim      // that waits or holds, the last of the owner's that did
	lost  func(error) // nil: it does not want to know
	wants *claim      // wants to know, while it holds, that others wait; nil: none does
	next  *listener   // of the same owner and another lock
	waiting
}

// waiting is what an attempt that was refused waits for. Its zero value waits for nothing.
type waiting struct {
	line    *line             // where the wake-up comes from
	wake    chan struct{}     // nil: it was woken
	granted chan driver.Grant // has room for one
	number  int64             // of the attempt, for what is granted to it
	armed   boottime.Instant  // before that attempt was sent
	tried   boottime.Instant  // when the last Try began, which may have been refused without an attempt
}

// armed is what an attempt that is refused waits for.
type armed struct {
	wake    <-chan struct{}
	granted <-chan driver.Grant
	heard   bool  // nothing told from now on will be missed
	number  int64 // of the attempt, which tells the server for which one it grants
}

func (e *subscriber) init(client redis.UniversalClient, id string) {
	e.client, e.id, e.name, e.wanted = client, id, "leasehold:"+id, "leasehold:r:"+id
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.claims, e.crowds = make(map[string]*listener), make(map[string]*crowd)
	e.clock = boottime.Machine()
	e.own.hearing = make(chan struct{})
	if cluster, ok := client.(*redis.ClusterClient); ok {
		e.shards = newShards(e, cluster)
	}
}

// channel is where the server tells of leases that were ended by force. That is rare: on
// Cluster all nodes may hear it.
func (e *subscriber) channel() string { return e.name }

// recalls is the channel, in place of that, of a holder that wants to know that others wait. Scripts see it by the name.
func (e *subscriber) recalls() string { return e.wanted }

// wakeChannel is where the server wakes a waiter, or grants to it, of the resource with that lock key.
func (e *subscriber) wakeChannel(lock string) string {
	if e.shards == nil {
		return e.channel()
	}
	return e.shards.channel(slot(lock))
}

// listen wants to hear of the loss of c's lease, and of others that wait.
func (e *subscriber) listen(c *claim) {
	if c.req.Lost == nil && c.req.Wanted == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(c)
}

// at is the listener for c; nil: there is none. Requires e.mu.
func (e *subscriber) at(c *claim) *listener {
	l := e.claims[c.req.Owner]
	for l != nil && l.claim.keys.lock != c.keys.lock {
		l = l.next
	}
	return l
}

// remove lets go of everything that l listens for. Requires e.mu.
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

// of returns the listener for c and sees to it that there is a subscription. Requires e.mu.
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
	if !e.running && e.ctx.Err() == nil {
		e.running = true
		e.done.Go(e.run)
	}
	return l
}

// arm returns what closes when c, whose attempt has that number, may be granted, or earlier.
func (e *subscriber) arm(c *claim, number int64) armed {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.of(c)
	on := l.line
	if on == nil {
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
	t := armed{l.wake, l.granted, on.hears, number}
	if e.ctx.Err() != nil {
		l.wakeUp() // let it find the driver closed
	}
	return t
}

// disarm lets go of c's wake-up, which need not come any more.
func (e *subscriber) disarm(c *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.at(c); l != nil {
		e.heldBy(c.req.Owner, l)
	}
}

// heldBy keeps of l what a holder wants to hear. Requires e.mu.
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

// forget lets go of everything about c.
func (e *subscriber) forget(c *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.at(c); l != nil {
		e.remove(c.req.Owner, l)
	}
}

// hear waits until c's wake-up would be heard, but not for long.
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
		limit = min(limit, time.Until(end)/2) // the rest is for looking again
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-hearing:
		return true
	case <-timer.C:
	case <-ctx.Done():
	case <-e.ctx.Done():
	}
	return false
}

func (e *subscriber) close() {
	e.mu.Lock()
	e.stop() // under mu, so that no goroutine starts from here on
	e.mu.Unlock()
	e.done.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.claims {
		l.wakeAll()
	}
}

// run keeps the driver's own channel subscribed until close.
func (e *subscriber) run() {
	pause := resubscribeFirst
	for e.ctx.Err() == nil {
		if e.subscribe() {
			pause = resubscribeFirst
		}
		e.mu.Lock()
		e.deaf(&e.own)
		e.mu.Unlock()
		e.sleep(pause)
		pause = min(2*pause, resubscribeLast)
	}
}

func (e *subscriber) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-e.ctx.Done():
	}
}

// subscribe hears until the subscription breaks. It reports whether there was one.
func (e *subscriber) subscribe() (heard bool) {
	sub := e.client.Subscribe(e.ctx)
	defer sub.Close() // says at most that it is closed
	stands, broken := context.WithCancel(e.ctx)
	defer broken()
	both := []string{e.channel(), e.recalls()}
	if sub.Subscribe(e.ctx, both...) != nil {
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
		e.done.Go(func() { e.lookAgain(stands, claims) })
	}, func() {})
	return heard
}

// receive passes on what sub brings until it breaks. calm is called now and then.
func (e *subscriber) receive(sub *redis.PubSub, subscribed func(*redis.Subscription), calm func()) {
	stop := context.AfterFunc(e.ctx, func() { sub.Close() }) // breaks a read that waits
	defer stop()
	pinged, last := false, time.Now()
	for e.ctx.Err() == nil {
		message, err := sub.ReceiveTimeout(e.ctx, pingAfter)
		switch m := message.(type) {
		case *redis.Subscription:
			subscribed(m)
		case *redis.Message:
			e.take(m.Payload)
		}
		switch {
		case err == nil, isMisconf(err): // an answer to the ping, too
			pinged = false
		case pinged || !isTimeout(err) || sub.Ping(e.ctx) != nil:
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

// onSubscribed is called when a subscription stands. What was told before went unheard, so
// that all who wait for it look again. Requires e.mu.
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

// concerned are the claims that want to hear of a loss, or of others that wait. Requires e.mu.
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

// lookAgain asks after leases whose end, or for which others, may have gone unheard before the subscription stood.
// Of those that are not answered within lookWithin in all, the next renewals tell.
func (e *subscriber) lookAgain(ctx context.Context, claims []*claim) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	severally(ctx, lookWidth, claims, func(c *claim) *claim { return c }, func(c *claim) { e.lookAfter(ctx, c) }, func(*claim, error) {})
}

// lookAfter asks after one of them.
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

// stillWants reports whether c was not released since it was as it was.
func (e *subscriber) stillWants(c *claim, was state) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.at(c)
	return l != nil && l.wants == c && c.load().releases == was.releases
}

// inspectAgain asks for the state of c's resource until it is told: the connection may have died with the
// subscription without a sign, and the slot may be on its way.
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

// deaf is called when a subscription is broken. Requires e.mu.
func (e *subscriber) deaf(on *line) {
	if on.hears {
		on.hears = false
		on.hearing = make(chan struct{})
	}
}

// wakeUp requires the subscriber's mu.
func (l *listener) wakeUp() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// wakeAll wakes those of one owner: a message does not tell which one it means. Requires the
// subscriber's mu.
func (l *listener) wakeAll() {
	for ; l != nil; l = l.next {
		l.wakeUp()
	}
}

// deliverGrant hands on a grant that was told to l as: the number of the attempt that was refused, or below zero the instant
// of the beat that has kept the place since; the fence; and the milliseconds of the lease since that was served and since
// it was granted. The first is wrong if the server's clock was set meanwhile, and is therefore bounded by the second. The
// core counts from its last Try. A fifth number, 1, says that others wait. One that was for another attempt, of the same
// claim or of one with the same owner, or of a beat whose answer has not come, is only a wake-up: how long it lasts is not
// known. It reports whether the grant was taken, and whether others wait. Requires e.mu.
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

// take passes one message on; others than the scripts' are ignored.
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
	case kind == 'e' && first.next == nil: // else their next renewals tell which one it was
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

// granted passes a grant on to the one of owner's that it is for. It returns that one if others wait. Requires e.mu.
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

// recalled returns those of one owner that others wait for: the one that holds with that fence, or those of which
// the answer to an attempt may still tell it. Requires the subscriber's mu.
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

// parseMessage reads what prelude.lua writes: a letter, the owner's length, a colon, the
// owner, and text.
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
