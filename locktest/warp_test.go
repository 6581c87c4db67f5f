package locktest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A recorder is a testing.TB that a case may fail without failing the test around it.
type recorder struct {
	testing.TB
	name string

	mu       sync.Mutex
	failed   bool
	log      strings.Builder
	cleanups []func()
}

func (r *recorder) Name() string { return r.name }
func (r *recorder) Helper()      {}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Log(args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(&r.log, args...)
}

func (r *recorder) Logf(format string, args ...any) { r.Log(fmt.Sprintf(format, args...)) }
func (r *recorder) Error(args ...any)               { r.Log(args...); r.Fail() }
func (r *recorder) Errorf(format string, a ...any)  { r.Logf(format, a...); r.Fail() }
func (r *recorder) Fatal(args ...any)               { r.Log(args...); r.FailNow() }
func (r *recorder) Fatalf(format string, a ...any)  { r.Logf(format, a...); r.FailNow() }
func (r *recorder) Skipf(format string, a ...any)   { r.Logf("skipped: "+format, a...); runtime.Goexit() }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// text is what the case said.
func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// record runs a case and its clean-ups.
func record(t testing.TB, c locktest.Case, h locktest.Harness) *recorder {
	r := &recorder{TB: t, name: c.Name}
	do := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			r.Errorf("%s hangs", c.Name)
		}
	}
	do(func() { c.Run(r, h) })
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		do(last)
	}
	return r
}

// A warp says how a driver is broken; what is nil works as it should.
type warp struct {
	features func(f *driver.Features)
	request  func(q *driver.Request)
	open     func(w *warped)
	claim    func(w *warped, q *driver.Request)
	try      func(c *warpedClaim, ctx context.Context) (driver.Grant, error)
	renew    func(c *warpedClaim, ctx context.Context, ttl time.Duration) (driver.Grant, error)
	release  func(c *warpedClaim, ctx context.Context, how driver.End) error
	linger   func(c *warpedClaim, ctx context.Context, how driver.End) error
	note     func(c *warpedClaim, ctx context.Context, note string) error
	bar      func(c *warpedClaim, keep time.Duration) time.Duration
	inspect  func(st *driver.State)
	list     func(w *warped, ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error)
	evict    func(w *warped, ctx context.Context, resource, owner, reason string) error
	raise    func(w *warped, fence uint64) error
	limit    func(w *warped, ctx context.Context, resource string, limit int) error
	close    func(w *warped) error
	tries    func(w *warped, ctx context.Context, trials []driver.Trial)
	releases func(w *warped, ctx context.Context, endings []driver.Ending)

	*notes // of one harness
}

// notes are what a warp remembers of resources and owners.
type notes struct {
	mu  sync.Mutex
	all map[string]any // guarded by mu
}

func newNotes() *notes { return &notes{all: make(map[string]any)} }

// remember stores a note and returns the one before.
func (n *notes) remember(key string, value any) (before any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before = n.all[key]
	n.all[key] = value
	return before
}

func (n *notes) recall(key string) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[key]
}

// warped is a memory driver that a warp has broken.
type warped struct {
	*memory.Driver
	*warp
}

func (w *warped) Features() driver.Features {
	f := w.Driver.Features()
	if w.features != nil {
		w.features(&f)
	}
	return f
}

func (w *warped) Claim(req driver.Request) (driver.Claim, error) {
	c := &warpedClaim{warped: w, asked: req}
	if w.warp.claim != nil {
		w.warp.claim(w, &req)
	}
	if w.request != nil {
		w.request(&req)
	}
	c.inner = c.as(req)
	return c, nil
}

func (w *warped) Inspect(ctx context.Context, resource string) (driver.State, error) {
	st, err := w.Driver.Inspect(ctx, w.mapped(resource))
	if w.inspect != nil {
		w.inspect(&st)
	}
	st.Resource = resource
	return st, err
}

// mapped is what the warp makes of a name.
func (w *warped) mapped(resource string) string {
	q := driver.Request{Resource: resource}
	if w.request != nil {
		w.request(&q)
	}
	return q.Resource
}

func (w *warped) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	if w.list != nil {
		return w.list(w, ctx, prefix, after, limit)
	}
	return w.Driver.List(ctx, prefix, after, limit)
}

func (w *warped) Evict(ctx context.Context, resource, owner, reason string) error {
	if w.evict != nil {
		return w.evict(w, ctx, resource, owner, reason)
	}
	return w.Driver.Evict(ctx, resource, owner, reason)
}

func (w *warped) RaiseFence(ctx context.Context, resource string, fence uint64) error {
	if w.raise != nil {
		return w.raise(w, fence)
	}
	return w.Driver.RaiseFence(ctx, resource, fence)
}

func (w *warped) SetLimit(ctx context.Context, resource string, limit int) error {
	if w.limit != nil {
		return w.limit(w, ctx, resource, limit)
	}
	return w.Driver.SetLimit(ctx, resource, limit)
}

func (w *warped) TryAll(ctx context.Context, trials []driver.Trial) {
	if w.tries != nil {
		w.tries(w, ctx, trials)
		return
	}
	w.Driver.TryAll(ctx, trials)
}

func (w *warped) ReleaseAll(ctx context.Context, endings []driver.Ending) {
	if w.releases != nil {
		w.releases(w, ctx, endings)
		return
	}
	w.Driver.ReleaseAll(ctx, endings)
}

func (w *warped) Close() error {
	if w.close != nil {
		return w.close(w)
	}
	return w.Driver.Close()
}

// warpedClaim is a claim of a warped driver.
type warpedClaim struct {
	*warped
	asked driver.Request // as the caller made it
	inner driver.Claim
}

// as is a claim of the sound driver behind.
func (c *warpedClaim) as(req driver.Request) driver.Claim {
	inner, _ := c.Driver.Claim(req) // never fails
	return inner
}

func (c *warpedClaim) Try(ctx context.Context) (driver.Grant, error) {
	if c.try != nil {
		return c.try(c, ctx)
	}
	return c.inner.Try(ctx)
}

func (c *warpedClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if c.renew != nil {
		return c.renew(c, ctx, ttl)
	}
	return c.inner.Renew(ctx, ttl)
}

func (c *warpedClaim) Release(ctx context.Context, how driver.End) error {
	if c.bar != nil && how.Bar > 0 {
		how.Bar = c.bar(c, how.Bar)
	}
	switch {
	case c.linger != nil && how.Linger > 0:
		return c.linger(c, ctx, how)
	case c.release != nil && how.Linger == 0:
		return c.release(c, ctx, how)
	}
	return c.inner.Release(ctx, how)
}

func (c *warpedClaim) Note(ctx context.Context, note string) error {
	if c.note != nil {
		return c.note(c, ctx, note)
	}
	return c.inner.Note(ctx, note)
}

// harness opens drivers on one new server, all broken in the same way.
func (p *warp) harness(testing.TB) locktest.Harness {
	server := memory.NewServer()
	p.notes = newNotes()
	return locktest.Harness{
		Open: func(testing.TB) driver.Driver {
			w := &warped{server.Connect(), p}
			if p.open != nil {
				p.open(w)
			}
			return w
		},
		FlushState: func(testing.TB) { server.Flush() },
	}
}

// remotely serves the broken driver to other processes.
func (p *warp) remotely(t testing.TB) locktest.Harness {
	p.notes = newNotes()
	return startEngine(t, &warped{memory.New(), p}).harness()
}
