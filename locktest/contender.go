package locktest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
)

// longTTL outlives every case: its lease ends by Release or not at all.
const longTTL = 30 * time.Second

// callLimit bounds each call to an engine. A driver must return when its context ends;
// callers wait no longer than Margin for that.
const callLimit = 5 * Margin

// shortTTL is for a lease that is to expire. A busy machine may do nothing in it.
func shortTTL(d driver.Driver) time.Duration {
	f := d.Features()
	return roundUp(max(f.MinTTL, 500*time.Millisecond), f.Step)
}

// renewableTTL leaves a renewal, due after a third of it, time to be late on a busy
// machine; so it is for whatever must outlive a few calls.
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

// newName returns a resource that no other case and no other run uses.
func newName(t testing.TB) string { return path.Base(t.Name()) + "-" + randomHex(6) }

// request describes an exclusive claim by a new owner that a case can let go of.
func request(name string) driver.Request {
	return driver.Request{Resource: name, Owner: newOwner(), TTL: longTTL, Note: "locktest"}
}

// shared describes a claim to one of limit shared leases.
func shared(name string, limit int) driver.Request {
	req := request(name)
	req.Mode, req.Limit = driver.Shared, limit
	return req
}

// queued makes a request keep a place in the queue.
func queued(req driver.Request) driver.Request {
	req.Queue = true
	return req
}

func lasting(req driver.Request, ttl time.Duration) driver.Request {
	req.TTL = ttl
	return req
}

// open is one more process's view of the engine, until t ends.
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

// locker is a Locker of one more process, until t ends.
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

// bounded is a context for one call.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	t.Cleanup(cancel)
	return ctx
}

// A contender is one owner's claim in the hands of a case.
type contender struct {
	t     testing.TB
	d     driver.Driver
	req   driver.Request
	claim driver.Claim
	end   driver.End   // what its release leaves behind
	asked time.Time    // its last Try, as long as it waits
	late  bool         // it has asked so late that it may have lost its place
	line  []*contender // those that wait with it, in their order; nil: nobody cares
}

// placeKept is within what a waiter must ask again, to be sure of its place.
const placeKept = 2 * time.Second

// inTime skips the case when the machine was so busy that waiters may have lost their places,
// so that nothing follows from the order in which they were served.
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

// punctual reports whether all of line that wait have asked in time.
func punctual(line []*contender) bool {
	return !slices.ContainsFunc(line, func(c *contender) bool {
		return c.late || !c.asked.IsZero() && time.Since(c.asked) > placeKept
	})
}

// contend makes a claim. When t ends it is released, so that an engine which many runs
// share is left clean.
func contend(t testing.TB, d driver.Driver, req driver.Request) *contender {
	t.Helper()
	claim, err := d.Claim(req)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = claim.Release(ctx, driver.End{}) // most have been released, and some links are cut for good
	})
	return &contender{t: t, d: d, req: req, claim: claim}
}

// holding makes a claim that is granted, as its resource is free.
func holding(t testing.TB, d driver.Driver, req driver.Request) *contender {
	t.Helper()
	c := contend(t, d, req)
	c.granted("the resource is free")
	return c
}

// answer makes one call and fails the case when the driver does not return in time.
func (c *contender) answer(what string, call func(ctx context.Context) error) error {
	c.t.Helper()
	return within(c.t, what, callLimit, call)
}

// errElsewhere is what contexts end with: an answer to something else, as in a group of goroutines
// that the refusal of one ends.
var errElsewhere = fmt.Errorf("elsewhere: %w, %w", driver.ErrBusy, driver.Evicted("elsewhere"))

// within makes one call with a context of the given length, and fails t when the call
// does not return soon after that has ended.
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
	err = c.answer("Try", func(ctx context.Context) (err error) { g, err = c.claim.Try(ctx); return err })
	c.late = c.late || !c.asked.IsZero() && time.Since(c.asked) > placeKept
	c.asked = before
	if err != nil {
		return driver.Grant{}, err
	}
	c.asked = time.Time{}
	if g.TTL < c.req.TTL {
		c.t.Errorf("granted for %v, less than the %v asked for", g.TTL, c.req.TTL)
	}
	return g, nil
}

// tryOnce is a bare Try.
func (c *contender) tryOnce(ctx context.Context) error {
	_, err := c.claim.Try(ctx)
	return err
}

// granted tries once and must be granted; who waits already soon, as its server may hear later than another's
// of what has become free.
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

// busy tries once and must be refused.
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

// wins tries until it is granted, soon after it may be, and returns the instants before
// and after the call that was.
func (c *contender) wins(limit time.Duration, why string) (g driver.Grant, before, after time.Time) {
	c.t.Helper()
	inTime := punctual(c.line) // the others do not ask meanwhile
	for end := time.Now().Add(limit); ; time.Sleep(tryEvery) {
		before = time.Now()
		g, err := c.try()
		after = time.Now()
		switch {
		case err == nil:
			return g, before, after
		case !errors.Is(err, driver.ErrBusy):
			c.t.Fatalf("Try: %v; want a grant: %s", err, why)
		case before.After(end): // however long the call itself took
			skipUnless(c.t, inTime)
			c.t.Fatalf("still busy after %v: %s", limit, why)
		}
	}
}

// pollEvery is how often a case looks for what must happen soon, tryEvery how often it
// asks an engine, which other cases use too.
const (
	pollEvery = 5 * time.Millisecond
	tryEvery  = 20 * time.Millisecond
)

// renew asks for ttl, or for what the claim began with where the engine serves no other
// (Harness.FixedTTL).
func (c *contender) renew(ttl time.Duration) (g driver.Grant, err error) {
	c.t.Helper()
	err = c.answer("Renew", func(ctx context.Context) (err error) { g, err = c.claim.Renew(ctx, ttl); return err })
	if errors.Is(err, driver.ErrUnsupported) && ttl != c.req.TTL {
		return c.renew(c.req.TTL)
	}
	return g, err
}

// renewed must still hold.
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

// sameGrant fails t unless is, the grant of a repeated call, is the grant that was.
func sameGrant(t testing.TB, was, is driver.Grant, what string) {
	t.Helper()
	if is.Fence != was.Fence {
		t.Errorf("fence %d of the grant, %d of %s", was.Fence, is.Fence, what)
	}
}

// lost must not hold any more, and a renewal must not change that.
func (c *contender) lost(why string) {
	c.t.Helper()
	if g, err := c.renew(c.req.TTL); !errors.Is(err, driver.ErrLost) {
		c.t.Fatalf("Renew: %v (fence %d); want ErrLost: %s", err, g.Fence, why)
	}
}

func (c *contender) release() error {
	c.t.Helper()
	c.asked = time.Time{}
	return c.answer("Release", c.releaseOnce)
}

// releaseOnce gives up what the claim has, for as long as ctx lasts.
func (c *contender) releaseOnce(ctx context.Context) error { return c.claim.Release(ctx, c.end) }

// released must have held until now.
func (c *contender) released() {
	c.t.Helper()
	if err := c.release(); err != nil {
		c.t.Fatalf("Release by the holder: %v", err)
	}
}

// nothingToRelease fails unless a release returns ErrLost.
func (c *contender) nothingToRelease(why string) {
	c.t.Helper()
	if err := c.release(); !errors.Is(err, driver.ErrLost) {
		c.t.Fatalf("Release: %v; want ErrLost: %s", err, why)
	}
}

// leaves gives up a place in a queue, if the engine has queues.
func (c *contender) leaves() {
	c.t.Helper()
	if err := c.release(); err != nil && !errors.Is(err, driver.ErrLost) {
		c.t.Fatalf("Release by a waiter: %v", err)
	}
}

// atBest is the least time that something took in up to five tries; it is not tried again once
// that is enough. A busy machine is slow now and then, an engine that is slow always.
func atBest(enough time.Duration, timed func() time.Duration) (least time.Duration) {
	least = timed()
	for tries := 1; least > enough && tries < 5; tries++ {
		least = min(least, timed())
	}
	return least
}

// eventually fails t unless ok becomes true in time.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(pollEvery) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// queuedUp waits until a waiter has told that it waits. One whose first call failed never
// does.
func queuedUp(t testing.TB, waiting <-chan struct{}) {
	t.Helper()
	select {
	case <-waiting:
	case <-time.After(callLimit):
		t.Fatalf("nobody waits after %v", callLimit)
	}
}

// acquire must be granted in time.
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

// acquiring begins an Acquire.
func acquiring(ctx context.Context, l *leasehold.Locker, name string) <-chan acquired {
	got := make(chan acquired, 1)
	go func() {
		lease, err := l.Acquire(ctx, name)
		got <- acquired{lease, err}
	}()
	return got
}

// acquired is what came of an Acquire.
type acquired struct {
	lease *leasehold.Lease
	err   error
}

// release gives the lease up, if there is one, and returns what went wrong from the beginning.
func (a acquired) release() error {
	if a.err != nil {
		return a.err
	}
	return a.lease.Release(context.Background())
}

// release must find the lease held.
func release(t testing.TB, lease *leasehold.Lease) {
	t.Helper()
	if err := lease.Release(bounded(t)); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// mustBeBusy makes one attempt that must be refused.
func mustBeBusy(t testing.TB, l *leasehold.Locker, name, why string) {
	t.Helper()
	lease, err := l.TryAcquire(bounded(t), name)
	if lease != nil || !errors.Is(err, leasehold.ErrBusy) {
		t.Fatalf("TryAcquire: %v, %v; want ErrBusy: %s", describe(lease), err, why)
	}
}

// mustBeFree makes one attempt that must be granted, and gives the lease back.
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

// atOnce runs n goroutines from one starting signal and fails t with their errors.
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
