package locktest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
)

// longTTL is longer than any case takes, so a lease with it ends only by Release.
const longTTL = 30 * time.Second

// callLimit bounds each call to an engine. A driver must return when its context ends, or at most
// Margin later.
const callLimit = 5 * Margin

// shortTTL returns the TTL of a lease that is to expire. On a busy machine nothing else may happen
// before it does.
func shortTTL(d driver.Driver) time.Duration {
	f := d.Features()
	return roundUp(max(f.MinTTL, 500*time.Millisecond), f.Step)
}

// renewableTTL returns the TTL of a lease that must survive some calls. Its renewal, due after a
// third, may be late on a busy machine.
func renewableTTL(d driver.Driver) time.Duration {
	f := d.Features()
	return roundUp(max(f.MinTTL, 3*time.Second), f.Step)
}

func roundUp(d, step time.Duration) time.Duration {
	if step > 0 && d%step != 0 {
		d += step - d%step
	}
	return d
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails: it ends the program instead
	return hex.EncodeToString(b)
}

func newOwner() string { return randomHex(20) }

// newName returns the name of a resource that no other case and no other run uses.
func newName(t testing.TB) string { return path.Base(t.Name()) + "-" + randomHex(6) }

// request describes an exclusive claim by a new owner. Its TTL is long, so a case releases it.
func request(name string) driver.Request {
	return driver.Request{Resource: name, Owner: newOwner(), TTL: longTTL, Note: "locktest"}
}

// shared describes a claim to one of at most limit shared leases.
func shared(name string, limit int) driver.Request {
	req := request(name)
	req.Mode, req.Limit = driver.Shared, limit
	return req
}

// queued returns req with a place in the queue.
func queued(req driver.Request) driver.Request {
	req.Queue = true
	return req
}

func lasting(req driver.Request, ttl time.Duration) driver.Request {
	req.TTL = ttl
	return req
}

// open connects to the engine as another process, until t ends.
func open(t testing.TB, h Harness) driver.Driver {
	t.Helper()
	d := h.Open(t)
	closeAfter(t, d)
	return d
}

func closeAfter(t testing.TB, d driver.Driver) {
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// locker returns a Locker of another process, until t ends.
func locker(t testing.TB, d driver.Driver, opts leasehold.Options) *leasehold.Locker {
	t.Helper()
	if opts.TTL == 0 {
		opts.TTL = longTTL
	}
	l, err := leasehold.New(d, &opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Locker.Close: %v", err)
		}
	})
	return l
}

// bounded returns a context for one call.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	t.Cleanup(cancel)
	return ctx
}

// A contender is one owner's claim, as a case uses it.
type contender struct {
	t       testing.TB
	d       driver.Driver
	req     driver.Request
	claim   driver.Claim
	end     driver.End   // how its release ends the claim
	asked   time.Time    // when its last Try was sent, while it waits
	late    bool         // its Try was so late that it may have lost its place
	line    []*contender // the waiters beside it, in order; nil: their order does not matter
	refusal *driver.Busy // of its last Try that failed; nil: another error
}

// placeKept is the longest time between two calls in which a waiter certainly keeps its place.
const placeKept = 2 * time.Second

// inTime skips the case if the machine was so busy that waiters may have lost their places. The
// order in which they were served then proves nothing.
func (c *contender) inTime() {
	c.t.Helper()
	skipUnless(c.t, punctual(c.line))
}

func skipUnless(t testing.TB, inTime bool) {
	t.Helper()
	if !inTime {
		t.Skipf("waiters did not get to ask again within %v", placeKept)
	}
}

// punctual reports whether all waiters in line have called in time.
func punctual(line []*contender) bool {
	return !slices.ContainsFunc(line, func(c *contender) bool {
		return c.late || !c.asked.IsZero() && time.Since(c.asked) > placeKept
	})
}

// contend makes a claim. It releases the claim when t ends, because many runs share an engine.
func contend(t testing.TB, d driver.Driver, req driver.Request) *contender {
	t.Helper()
	claim, err := d.Claim(req)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = claim.Release(ctx, driver.End{}) // most have been released, and some links stay cut
	})
	return &contender{t: t, d: d, req: req, claim: claim}
}

// holding makes a claim on a free resource, which must be granted.
func holding(t testing.TB, d driver.Driver, req driver.Request) *contender {
	t.Helper()
	c := contend(t, d, req)
	c.granted("the resource is free")
	return c
}

// errElsewhere is the cause with which contexts of the suite end. It looks like an answer, but to
// another call, as in an errgroup that one refusal ends.
var errElsewhere = fmt.Errorf("elsewhere: %w, %w", driver.ErrBusy, driver.Evicted("elsewhere"))

// within makes one call with a context that lasts for limit. It fails t if the call does not return
// soon after that.
func within(t testing.TB, what string, limit time.Duration, call func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, errElsewhere)
	defer cancel()
	hasReturned, err := abandon.Terms[bool]{Grace: Margin}.Call(ctx, func() (bool, error) { return true, call(ctx) })
	if !hasReturned {
		t.Fatalf("%s did not return, %v after its context had ended", what, Margin)
	}
	return err
}

func (c *contender) try() (g driver.Grant, err error) {
	c.t.Helper()
	before := time.Now()
	err = within(c.t, "Try", callLimit, func(ctx context.Context) (err error) { g, err = c.claim.Try(ctx); return err })
	c.late = c.late || !c.asked.IsZero() && time.Since(c.asked) > placeKept
	c.asked = before
	if err != nil {
		c.refusal, _ = errors.AsType[*driver.Busy](err)
		return driver.Grant{}, err
	}
	c.asked = time.Time{}
	if g.TTL < c.req.TTL {
		c.t.Errorf("granted for %v, less than the %v asked for", g.TTL, c.req.TTL)
	}
	return g, nil
}

// tryOnce makes one Try with ctx.
func (c *contender) tryOnce(ctx context.Context) error {
	_, err := c.claim.Try(ctx)
	return err
}

// granted makes a Try that must be granted. A waiter may repeat it for a short time, because its
// server may learn later than another that the resource is free.
func (c *contender) granted(why string) driver.Grant {
	c.t.Helper()
	waits := !c.asked.IsZero() && c.req.Queue
	g, err := c.try()
	if waits && errors.Is(err, driver.ErrBusy) {
		g, _, _ = c.wins(Margin, why)
		return g
	}
	if err != nil {
		c.t.Fatalf("Try: %v; want a grant: %s", err, why)
	}
	return g
}

// busy makes a Try that must be refused.
func (c *contender) busy(why string) *driver.Busy {
	c.t.Helper()
	g, err := c.try()
	if err == nil {
		c.inTime()
		c.t.Fatalf("granted with fence %d; want busy: %s", g.Fence, why)
	}
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok || !errors.Is(err, driver.ErrBusy) {
		c.t.Fatalf("Try: %v; want a *driver.Busy: %s", err, why)
	}
	return busy
}

// wins calls Try until it is granted, within limit. It returns the instants before and after the
// successful call.
func (c *contender) wins(limit time.Duration, why string) (g driver.Grant, before, after time.Time) {
	c.t.Helper()
	inTime := punctual(c.line) // the others do not call meanwhile
	for end := time.Now().Add(limit); ; time.Sleep(tryEvery) {
		before = time.Now()
		g, err := c.try()
		after = time.Now()
		switch {
		case err == nil:
			return g, before, after
		case !errors.Is(err, driver.ErrBusy):
			c.t.Fatalf("Try: %v; want a grant: %s", err, why)
		case before.After(end): // not after: the call itself may take long
			skipUnless(c.t, inTime)
			c.t.Fatalf("still busy after %v: %s", limit, why)
		}
	}
}

// follows is wins for a waiter that was refused. If the engine wakes waiters, it must be woken
// first.
func (c *contender) follows(limit time.Duration, why string) driver.Grant {
	c.t.Helper()
	if c.d.Features().Wakes {
		skipUnless(c.t, punctual([]*contender{c}))
		woken(c.t, c.refusal, why)
	}
	g, _, _ := c.wins(limit, why)
	return g
}

// pollEvery is the pause between two checks for something that must happen soon. tryEvery is the
// one between two calls to an engine, which other cases use too.
const (
	pollEvery = 5 * time.Millisecond
	tryEvery  = 20 * time.Millisecond
)

// renew renews for ttl, or for the TTL of the request if the engine allows no other
// (Harness.FixedTTL).
func (c *contender) renew(ttl time.Duration) (g driver.Grant, err error) {
	c.t.Helper()
	err = within(c.t, "Renew", callLimit, func(ctx context.Context) (err error) { g, err = c.claim.Renew(ctx, ttl); return err })
	if errors.Is(err, driver.ErrUnsupported) && ttl != c.req.TTL {
		return c.renew(c.req.TTL)
	}
	return g, err
}

// renewed renews the claim, which must still hold.
func (c *contender) renewed(ttl time.Duration) driver.Grant {
	c.t.Helper()
	g, err := c.renew(ttl)
	if err != nil {
		c.t.Fatalf("Renew by the holder: %v", err)
	}
	if g.TTL < min(ttl, c.req.TTL) {
		c.t.Errorf("renewed for %v, less than the %v asked for", g.TTL, ttl)
	}
	return g
}

// sameGrant fails t unless is, the grant of a repeated call, equals the grant was.
func sameGrant(t testing.TB, was, is driver.Grant, what string) {
	t.Helper()
	if is.Fence != was.Fence {
		t.Errorf("fence %d of the grant, %d of %s", was.Fence, is.Fence, what)
	}
}

// lost checks that the claim no longer holds. A renewal must not change that.
func (c *contender) lost(why string) {
	c.t.Helper()
	if g, err := c.renew(c.req.TTL); !errors.Is(err, driver.ErrLost) {
		c.t.Fatalf("Renew: %v (fence %d); want ErrLost: %s", err, g.Fence, why)
	}
}

func (c *contender) release() error {
	c.t.Helper()
	c.asked = time.Time{}
	return within(c.t, "Release", callLimit, c.releaseOnce)
}

// releaseOnce makes one Release with ctx.
func (c *contender) releaseOnce(ctx context.Context) error { return c.claim.Release(ctx, c.end) }

// released releases the claim, which must hold.
func (c *contender) released() {
	c.t.Helper()
	if err := c.release(); err != nil {
		c.t.Fatalf("Release by the holder: %v", err)
	}
}

// nothingToRelease fails unless a Release returns ErrLost.
func (c *contender) nothingToRelease(why string) {
	c.t.Helper()
	if err := c.release(); !errors.Is(err, driver.ErrLost) {
		c.t.Fatalf("Release: %v; want ErrLost: %s", err, why)
	}
}

// leaves gives up the place in the queue, if the engine has queues.
func (c *contender) leaves() {
	c.t.Helper()
	if err := c.release(); err != nil && !errors.Is(err, driver.ErrLost) {
		c.t.Fatalf("Release by a waiter: %v", err)
	}
}

// atBest returns the least time in up to five runs. It stops as soon as a run is quick enough. A
// busy machine is slow now and then, a slow engine always is.
func atBest(enough time.Duration, timed func() time.Duration) (least time.Duration) {
	least = timed()
	for tries := 1; least > enough && tries < 5; tries++ {
		least = min(least, timed())
	}
	return least
}

// eventually fails t unless ok returns true within limit.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(pollEvery) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// queuedUp waits until a waiter has reported that it waits. A waiter whose first call failed never
// does.
func queuedUp(t testing.TB, waiting <-chan struct{}) {
	t.Helper()
	select {
	case <-waiting:
	case <-time.After(callLimit):
		t.Fatalf("nobody waits after %v", callLimit)
	}
}

// acquire acquires name, which must be granted in time.
func acquire(t testing.TB, l *leasehold.Locker, name string, opts ...leasehold.Option) *leasehold.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return lease
}

// acquiring starts an Acquire.
func acquiring(ctx context.Context, l *leasehold.Locker, name string) <-chan acquired {
	got := make(chan acquired, 1)
	go func() {
		lease, err := l.Acquire(ctx, name)
		got <- acquired{lease, err}
	}()
	return got
}

// acquired is the result of an Acquire.
type acquired struct {
	lease *leasehold.Lease
	err   error
}

// release releases the lease, if there is one. It returns the first error, from Acquire on.
func (a acquired) release() error {
	if a.err != nil {
		return a.err
	}
	return a.lease.Release(context.Background())
}

// release releases the lease, which must be held.
func release(t testing.TB, lease *leasehold.Lease) {
	t.Helper()
	if err := lease.Release(bounded(t)); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// mustBeBusy tries once and must be refused.
func mustBeBusy(t testing.TB, l *leasehold.Locker, name, why string) {
	t.Helper()
	lease, err := l.TryAcquire(bounded(t), name)
	if lease != nil || !errors.Is(err, leasehold.ErrBusy) {
		t.Fatalf("TryAcquire: %v, %v; want ErrBusy: %s", describe(lease), err, why)
	}
}

// waitsInVain acquires a held resource with a short Wait, which must run out. If a busy engine has
// not answered within it, the Wait is doubled.
func waitsInVain(t testing.TB, l *leasehold.Locker, name string) {
	t.Helper()
	for wait := aWhile; ; wait *= 2 {
		lease, err := l.Acquire(bounded(t), name, leasehold.Wait(wait))
		if lease == nil && errors.Is(err, leasehold.ErrBusy) {
			return
		}
		if lease != nil || !errors.Is(err, context.DeadlineExceeded) || wait > Margin {
			t.Fatalf("Acquire of a held resource with a Wait of %v: %s, %v; want ErrBusy", wait, describe(lease), err)
		}
	}
}

// mustBeFree tries once and must be granted. It releases the lease again.
func mustBeFree(t testing.TB, l *leasehold.Locker, name, why string) {
	t.Helper()
	lease, err := l.TryAcquire(bounded(t), name)
	if err != nil {
		t.Fatalf("TryAcquire: %v; want a lease: %s", err, why)
	}
	release(t, lease)
}

func describe(lease *leasehold.Lease) string {
	if lease == nil {
		return "no lease"
	}
	return fmt.Sprintf("lease with token %d", lease.Token())
}

// atOnce starts n goroutines at the same time, and fails t with their errors.
func atOnce(t testing.TB, n int, run func(i int) error) {
	t.Helper()
	start, errs := make(chan struct{}), make(chan error, n)
	for i := range n {
		go func() {
			<-start
			errs <- run(i)
		}()
	}
	close(start)
	failed := false
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
			failed = true
		}
	}
	if failed {
		t.FailNow()
	}
}

// winners lets contenders on the drivers try at once, and returns how many are granted.
func winners(t testing.TB, drivers []driver.Driver, contenders int, ask func() driver.Request) int32 {
	t.Helper()
	var wins atomic.Int32
	var all []*contender
	for i := range contenders {
		all = append(all, contend(t, drivers[i%len(drivers)], ask()))
	}
	atOnce(t, contenders, func(i int) error {
		ctx := bounded(t)
		err := all[i].tryOnce(ctx)
		for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // unknown: the same claim tries again
			err = all[i].tryOnce(ctx)
		}
		if err == nil {
			wins.Add(1)
		} else if errors.Is(err, driver.ErrBusy) {
			return nil
		}
		return err
	})
	return wins.Load()
}
