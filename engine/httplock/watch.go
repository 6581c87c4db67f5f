package httplock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// openWithin is how long the first claims wait for the stream, but each for at most a quarter
	// of its caller's time. If a lease ends before the stream is open, the next renewal reports it.
	openWithin = time.Second
	// silentFor is how long a stream may be silent before it is given up. The service sends
	// something every 5 s.
	silentFor = 15 * time.Second
)

// endKinds are the events that a driver needs. wantedKinds are those it needs once a claim wants to
// know of waiters.
const (
	endKinds    = wire.EventEvicted + "," + wire.EventEnded
	wantedKinds = endKinds + "," + wire.EventWanted
)

// A watch notifies holders of the end of their leases, and of waiters, by the service's events.
type watch struct {
	mu    sync.Mutex
	held  map[lease]holding // guarded by mu
	asks  map[lease]*claim  // guarded by mu; claims that hold or may hold, and want to know of waiters
	kinds string            // guarded by mu; the kinds of events that streams request, with EventWanted once a claim has asked
	again func()            // guarded by mu; ends the stream so that another is requested; nil: there was none
	until time.Time         // guarded by mu; until when claims wait for the stream; zero: it was not begun
	open  chan struct{}     // closed when a stream has been open once, or was refused
	opens func()            // closes open
}

type lease struct{ name, handle string }

type holding struct {
	claim   *claim
	token   string
	doubted bool // an event said since the holder's last call that the lease has ended
}

func (w *watch) init() {
	w.held, w.asks, w.open, w.kinds = make(map[lease]holding), make(map[lease]*claim), make(chan struct{}), endKinds
	w.opens = sync.OnceFunc(func() { close(w.open) })
}

// listen opens the stream. Until it is open or refused for the first time, it waits for a moment.
func (w *watch) listen(ctx context.Context, d *service) {
	if d.opts.NoEvents || !d.abilities.Inspects {
		return
	}
	w.mu.Lock()
	if w.until.IsZero() {
		w.until = time.Now().Add(openWithin)
		d.life.Go(func() { w.run(d) })
	}
	until := w.until
	w.mu.Unlock()
	if waiting.Closed(w.open) {
		return
	}
	wait := time.Until(until)
	if end, bounded := ctx.Deadline(); bounded {
		wait = min(wait, time.Until(end)/4)
	}
	select {
	case <-w.open:
	case <-time.After(wait):
	case <-d.life.Done():
	case <-ctx.Done():
	}
}

// add notifies c of the end of its grant with that token.
func (w *watch) add(c *claim, token string) {
	if c.req.Lost == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[c.lease()] = holding{claim: c, token: token}
}

// expect notifies c from now on when others wait for its lease.
func (w *watch) expect(c *claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asks[c.lease()] = c
	if w.kinds == endKinds {
		if w.kinds = wantedKinds; w.again != nil {
			w.again()
		}
	}
}

// remove ends the notifications of c.
func (w *watch) remove(c *claim) {
	if c.req.Lost == nil && c.req.Wanted == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l := c.lease()
	if w.held[l].claim == c {
		delete(w.held, l)
	}
	if w.asks[l] == c {
		delete(w.asks, l)
	}
}

func (c *claim) lease() lease { return lease{c.req.Resource, wire.Handle(c.req.Owner)} }

// run keeps a stream open until the driver is closed.
func (w *watch) run(d *service) {
	for pauses := 0; d.life.Err() == nil; pauses++ {
		if w.stream(d) {
			pauses = 0
		}
		_ = pause.For(d.life, waiting.Backoff(pauses, pauseFirst, 10*pauseLast))
	}
}

// stream reads one stream to its end, and reports whether it was open.
func (w *watch) stream(d *service) (opened bool) {
	ctx, cancel := context.WithCancel(d.life)
	defer cancel()
	w.mu.Lock()
	kinds := w.kinds
	w.again = cancel
	w.mu.Unlock()
	silence := time.AfterFunc(silentFor, func() {
		d.links.Hung(time.Now().Add(-silentFor))
		cancel()
	})
	defer silence.Stop()
	query := url.Values{"prefix": {d.opts.Events}}
	if d.features.Tells { // a service with this feature knows this parameter
		query.Set("kind", kinds)
	}
	resp, err := d.send(ctx, d.client.Load(), http.MethodGet, wire.Events+"?"+query.Encode(), nil)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		w.opens() // a service that refuses a stream may do so for long
		return false
	}
	kind := ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); silence.Reset(silentFor) {
		if k, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = k
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			w.heard(d, kind, data)
			opened = true
		}
	}
	return opened
}

// heard handles an event.
func (w *watch) heard(d *service, kind, data string) {
	var e wire.Event
	if json.Unmarshal([]byte(data), &e) != nil {
		return
	}
	switch kind {
	case wire.EventOpen:
		w.opens()
	case wire.EventWanted:
		w.mu.Lock()
		c := w.asks[lease{e.Name, e.Handle}]
		w.mu.Unlock()
		if c != nil {
			c.req.Wanted()
		}
	case wire.EventEvicted:
		if c := w.take(e); c != nil {
			c.req.Lost(driver.Evicted(e.Reason))
		}
	case wire.EventEnded:
		if c := w.doubt(e); c != nil && d.life.Go(func() { c.ended(e) }) {
			return
		}
		if c := w.take(e); c != nil {
			c.req.Lost(errEnded)
		}
	}
}

// take returns the claim whose lease e is about, and ends its notifications. It returns nil if no
// claim here has the lease.
func (w *watch) take(e wire.Event) *claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := lease{e.Name, e.Handle}
	h := w.about(e)
	if h.claim != nil {
		delete(w.held, l)
		delete(w.asks, l)
	}
	return h.claim
}

// doubt returns the claim whose lease has ended, as e says, if it is to be asked about. A question
// renews, so there is one between two calls of the holder, who may mean to renew no more.
func (w *watch) doubt(e wire.Event) *claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.about(e)
	if h.claim == nil || h.doubted {
		return nil
	}
	h.doubted = true
	w.held[lease{e.Name, e.Handle}] = h
	return h.claim
}

// about returns the lease that e is about. The zero value: no claim here has it. Requires mu.
func (w *watch) about(e wire.Event) holding {
	h := w.held[lease{e.Name, e.Handle}]
	if h.token != e.Token && e.Token != "0" {
		return holding{}
	}
	return h
}

// whyWithin bounds the question whether and why a lease has ended. Its holder waits for the answer.
const whyWithin = 300 * time.Millisecond

var errEnded = fmt.Errorf("%w: the service does not show it any more", driver.ErrLost)

// ended notifies the holder that its lease has ended, as e says, unless a renewal shows that it
// lives. If the engine knows the reason, it returns it to the renewal. It would to a release, too,
// but if e is wrong, a release lets others hold before this holder knows.
func (c *claim) ended(e wire.Event) {
	why, wanted, end := errEnded, false, func() {}
	if c.calling.TryLock() { // otherwise a call is in progress, and will also report it
		end = c.calling.Unlock
		ctx, cancel := context.WithTimeout(c.d.life, whyWithin)
		g, err := c.renew(ctx)
		if cancel(); err == nil || errors.Is(err, driver.ErrEvicted) {
			why, wanted = err, g.Wanted
		}
	}
	lost := why != nil && c.d.watch.take(e) != nil
	if end(); lost {
		c.req.Lost(why)
	}
	c.recall(wanted)
}
