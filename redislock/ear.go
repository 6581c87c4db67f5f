package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// pingAfter is how long a subscription may be silent before it is asked whether it
	// still stands. Until it is known to be broken, waiters come back by themselves.
	pingAfter = 3 * time.Second
	// Pauses between attempts to subscribe.
	resubscribeFirst, resubscribeLast = 10 * time.Millisecond, time.Second
)

// An ear is where a driver hears whose turn has come and whose lease was ended by force.
// It subscribes when first needed, in the background: to one channel of its own, and on
// Cluster, for turns, to one more for each slot where it waits (see shards).
type ear struct {
	client redis.UniversalClient
	id     string
	shards *shards         // nil but on Cluster
	ctx    context.Context // ends with close
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	claims  map[string]*listener // guarded by mu; by owner
	running bool                 // guarded by mu
	own     line                 // guarded by mu
}

// A line is a subscription to one channel, guarded by the ear's mu.
type line struct {
	hears   bool
	hearing chan struct{} // closed while it hears
	users   int           // listeners that wait for a wake-up from it
	left    time.Time     // when the last one of them went
}

// listener is what a claim wants to hear.
type listener struct {
	wake    chan struct{} // nil: it does not wait
	line    *line         // where the wake-up comes from
	lost    func(error)   // nil: it does not want to know
	claim   *claim        // that waits; for what is granted to it, by the attempt with that number
	number  int
	armed   time.Time         // before that attempt was sent
	granted chan driver.Grant // has room for one
}

// A turn is what an attempt that is refused waits for.
type turn struct {
	wake    <-chan struct{}
	granted <-chan driver.Grant
	heard   bool // nothing told from now on will be missed
}

func (e *ear) init(client redis.UniversalClient, id string) {
	e.client, e.id = client, id
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.claims = make(map[string]*listener)
	e.own.hearing = make(chan struct{})
	if cluster, ok := client.(*redis.ClusterClient); ok {
		e.shards = newShards(e, cluster)
	}
}

// channel is where the server tells of leases that were ended by force. That is rare: on
// Cluster all nodes may hear it.
func (e *ear) channel() string { return "leasehold:" + e.id }

// turnChannel is where the server tells whose turn it is on the resource with that lock key.
func (e *ear) turnChannel(lock string) string {
	if e.shards == nil {
		return e.channel()
	}
	return e.shards.channel(slot(lock))
}

// listen wants to hear of the loss of req's lease.
func (e *ear) listen(req *driver.Request) {
	if req.Lost == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(req)
}

// of returns the listener of req's owner and sees to it that there is a subscription.
// Requires e.mu.
func (e *ear) of(req *driver.Request) *listener {
	l := e.claims[req.Owner]
	if l == nil {
		l = &listener{lost: req.Lost}
		e.claims[req.Owner] = l
	}
	if !e.running && e.ctx.Err() == nil {
		e.running = true
		e.done.Go(e.run)
	}
	return l
}

// arm returns what closes when c, whose attempt has that number, may be granted, or earlier.
func (e *ear) arm(c *claim, number int) turn {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.of(&c.req)
	if l.line == nil {
		l.line = &e.own
		if e.shards != nil {
			l.line = e.shards.use(slot(c.keys.lock))
		}
		l.line.users++
	}
	armed := make(chan struct{})
	l.wake, l.claim, l.number, l.granted = armed, c, number, make(chan driver.Grant, 1)
	l.armed = time.Now()
	t := turn{armed, l.granted, l.line.hears}
	if e.ctx.Err() != nil {
		l.wakeUp() // let it find the driver closed
	}
	return t
}

// disarm lets go of owner's wake-up, which need not come any more.
func (e *ear) disarm(owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.claims[owner]; l != nil {
		e.heldBy(owner, l)
	}
}

// heldBy keeps of l what a holder wants to hear. Requires e.mu.
func (e *ear) heldBy(owner string, l *listener) {
	e.leave(l)
	if l.lost == nil {
		delete(e.claims, owner)
	}
}

// leave gives up the listener's wake-up. Requires e.mu.
func (e *ear) leave(l *listener) {
	if l.line != nil {
		l.line.users--
		l.line.left = time.Now()
	}
	l.wake, l.line = nil, nil
}

// forget lets go of everything about owner.
func (e *ear) forget(owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.claims[owner]; l != nil {
		e.leave(l)
		delete(e.claims, owner)
	}
}

// hear waits until owner's wake-up would be heard, but not for long.
func (e *ear) hear(ctx context.Context, owner string, limit time.Duration) bool {
	e.mu.Lock()
	l := e.claims[owner]
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

func (e *ear) close() {
	e.mu.Lock()
	e.stop() // under mu, so that no goroutine starts from here on
	e.mu.Unlock()
	e.done.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.claims {
		l.wakeUp()
	}
}

// run keeps the driver's own channel subscribed until close.
func (e *ear) run() {
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

func (e *ear) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-e.ctx.Done():
	}
}

// subscribe hears until the subscription breaks. It reports whether there was one.
func (e *ear) subscribe() (heard bool) {
	sub := e.client.Subscribe(e.ctx)
	defer sub.Close() // says at most that it is closed
	if sub.Subscribe(e.ctx, e.channel()) != nil {
		return false
	}
	e.receive(sub, func(*redis.Subscription) {
		heard = true
		e.mu.Lock()
		e.hearsNow(&e.own)
		e.mu.Unlock()
	}, func() {})
	return heard
}

// receive passes on what sub brings until it breaks. calm is called now and then.
func (e *ear) receive(sub *redis.PubSub, subscribed func(*redis.Subscription), calm func()) {
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
		case err == nil:
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

// hearsNow is called when a subscription stands. What was told before went unheard, so
// that all who wait for it look again. Requires e.mu.
func (e *ear) hearsNow(on *line) {
	if !on.hears {
		on.hears = true
		close(on.hearing)
	}
	for _, l := range e.claims {
		if l.line == on {
			l.wakeUp()
		}
	}
}

// deaf is called when a subscription is broken. Requires e.mu.
func (e *ear) deaf(on *line) {
	if on.hears {
		on.hears = false
		on.hearing = make(chan struct{})
	}
}

// wakeUp requires the ear's mu.
func (l *listener) wakeUp() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// take hands on a grant that was told as: the number of the attempt that was refused, the
// fence, and the milliseconds of the lease since that attempt was served and since it was
// granted. The first is wrong if the server's clock was set meanwhile, and is therefore
// bounded by the second. One that was for another attempt is only a wake-up: how long it
// lasts is not known. Requires the ear's mu.
func (l *listener) take(told string) bool {
	var number int
	var fence uint64
	var ms, span int64
	if n, _ := fmt.Sscanf(told, "%d %d %d %d", &number, &fence, &ms, &span); n != 4 || l.wake == nil || number != l.number || !l.claim.brought(fence) {
		return false
	}
	ttl := min(time.Duration(ms)*time.Millisecond, time.Since(l.armed)+time.Duration(span)*time.Millisecond)
	l.granted <- l.claim.granted(ttl, fence)
	return true
}

// take passes one message on; others than the scripts' are ignored.
func (e *ear) take(message string) {
	kind, owner, rest, ok := parseMessage(message)
	if !ok {
		return
	}
	e.mu.Lock()
	l := e.claims[owner]
	switch {
	case l == nil:
	case kind == 'w':
		l.wakeUp()
	case kind == 'g':
		took := l.take(rest)
		l.wakeUp()
		if took {
			e.heldBy(owner, l)
		}
	case kind == 'e':
		e.leave(l)
		delete(e.claims, owner)
	}
	e.mu.Unlock()
	if l != nil && kind == 'e' && l.lost != nil {
		l.lost(fmt.Errorf("%w: evicted: %s", driver.ErrLost, rest))
	}
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
