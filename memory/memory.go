// Package memory is the reference driver: it supports every feature of the contract inside one
// process. It is for tests, for programs that run as one process, and as an example for authors
// of drivers.
//
// A Server represents an engine, and each Driver connected to it one process. State ends with
// the process.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A waiter's place in a queue lives for placeTTL after its last Try, so a waiter that died delays
// the others no longer. A waiter keeps its place by another Try every keepPlace. That is a third,
// which leaves time for two late ones.
const (
	placeTTL  = 3 * time.Second
	keepPlace = placeTTL / 3
)

// minTTL is the shortest lease. Of a much shorter one the core would leave nothing: it ends leases
// 2 ms early because of timers.
const minTTL = 10 * time.Millisecond

// A Server is an engine in this process's memory: a record for each resource, under one mutex.
type Server struct {
	start     time.Time
	mu        sync.Mutex
	now       record.Instant       // guarded by mu; when the call in progress began
	resources map[string]*resource // guarded by mu; only those with claims or a limit
	spare     *resource            // guarded by mu; the last one dropped, to be reused
	fence     uint64               // guarded by mu; the number of the last grant, of any resource
	notices   []func()             // guarded by mu; calls of Lost and Wanted for unlock to make
}

// NewServer returns an empty Server.
func NewServer() *Server {
	return &Server{start: time.Now(), resources: make(map[string]*resource)}
}

// New returns a Driver on a Server of its own.
func New() *Driver { return NewServer().Connect() }

// Connect returns another Driver on s, like the driver of another process.
func (s *Server) Connect() *Driver { return &Driver{server: s} }

// Flush drops all holders, waiters and fences, like an engine that restarts without its data.
// Holders are notified through Request.Lost. Later fences are still larger, unless RaiseFence had
// put them ahead of the clock.
func (s *Server) Flush() {
	s.mu.Lock()
	defer s.unlock()
	for _, r := range s.resources {
		for _, c := range r.claims {
			c.listens = false
			c.wakeUp()
			if r.Holds(c.req.Owner) {
				s.lose(c, fmt.Errorf("%w: the engine lost its state", driver.ErrLost))
			}
		}
	}
	clear(s.resources)
	s.fence = 0
}

// lock locks the server for a call, and reads its clock, which is monotonic.
func (s *Server) lock() {
	s.mu.Lock()
	s.now = record.Instant(time.Since(s.start).Microseconds())
}

// unlock unlocks the server, and then makes the calls of Lost and Wanted, as a driver must not hold a
// mutex during them.
func (s *Server) unlock() {
	notices := s.notices
	s.notices = nil
	s.mu.Unlock()
	for _, notify := range notices {
		notify()
	}
}

// floor returns the least number of the next grant. It is above every earlier grant: of this Server
// because of the counter, before a Flush because of the clock. Requires s.mu.
func (s *Server) floor() uint64 { return max(s.fence+1, uint64(time.Now().UnixMicro())) }

// at returns the resource without what has ended by s.now. It creates it if needed. Requires s.mu.
func (s *Server) at(name string) *resource {
	r := s.resources[name]
	if r == nil {
		if r, s.spare = s.spare, nil; r == nil {
			r = &resource{}
		}
		s.resources[name] = r
	}
	if s.now >= r.sound {
		r.expire(&s.now)
	}
	return r
}

// settle ends a call on a resource. It wakes the waiters that would now be granted, and drops the
// resource if it is empty. Requires s.mu.
func (s *Server) settle(name string, r *resource) {
	s.fence = max(s.fence, r.Fence)
	if len(r.Claims) > 0 || r.Limit > 0 {
		r.wakeNext()
		return
	}
	delete(s.resources, name)
	r.Record, r.sound = record.Record{Claims: r.Claims}, 0 // keeps only the memory of the claims
	s.spare = r
}

// A Driver is one process's view of a Server. It supports all features. Close only refuses later
// calls.
type Driver struct {
	server *Server
	closed atomic.Bool
}

// Features implements [driver.Driver]. All features are supported.
func (d *Driver) Features() driver.Features {
	return driver.Features{
		Engine: "memory", Fencing: true, Shared: true, Weights: true, Limits: true, Fair: true, Wakes: true, Resumes: true,
		Lingers: true, Bars: true, Notes: true, Raises: true, Tells: true, Recalls: true, Keeps: true,
		MinTTL: minTTL, Step: time.Nanosecond,
	}
}

// Close makes later calls return [driver.ErrClosed]. Leases stay held.
func (d *Driver) Close() error {
	d.closed.Store(true)
	return nil
}

// Claim implements [driver.Driver].
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	return &claim{driver: d, req: req}, nil
}

// usable returns the error of a call whose context has ended or whose driver is closed.
func (d *Driver) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if d.closed.Load() {
		return driver.ErrClosed
	}
	return nil
}

// A claim is a driver.Claim. Its part of the resource's record is found by its owner.
type claim struct {
	driver  *Driver
	req     driver.Request
	wake    chan struct{} // guarded by Server.mu; closed when a Try would be granted; nil: no refused Try waits
	listens bool          // guarded by Server.mu; the claim is in its resource's claims
	told    bool          // guarded by Server.mu; Wanted was called since the grant or last renewal
	gone    bool          // guarded by Server.mu; it was released, and has asked for nothing since
	at      int           // guarded by Server.mu; an upper bound for the index of its place in the record
}

// begin locks the server and returns the claim's resource. end must follow.
func (c *claim) begin(ctx context.Context) (*resource, *record.Instant, error) {
	return c.driver.begin(ctx, c.req.Resource)
}

func (c *claim) end(r *resource) { c.driver.end(c.req.Resource, r) }

func (d *Driver) begin(ctx context.Context, name string) (*resource, *record.Instant, error) {
	if err := d.usable(ctx); err != nil {
		return nil, nil, err
	}
	d.server.lock()
	return d.server.at(name), &d.server.now, nil
}

// end ends the call that begin began: it settles the resource and unlocks the server.
func (d *Driver) end(name string, r *resource) {
	d.server.settle(name, r)
	d.server.unlock()
}

func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	if err := c.driver.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	s := c.driver.server
	s.lock()
	if busy := c.keep(s.resources[c.req.Resource], &s.now); busy != nil {
		s.unlock()
		return driver.Grant{}, busy
	}
	r, now := s.at(c.req.Resource), &s.now
	defer c.end(r)
	c.gone = false
	before := len(r.Claims)
	a, changed := r.Try(now, &c.req, c.place(), s.floor())
	if changed {
		r.listen(c, len(r.Claims) > before)
		r.look(len(r.Claims) > before)
	}
	switch {
	case a.Granted:
		c.told = false
		s.recall(r, c)
	case changed && len(r.Claims) > before:
		s.recall(r, r.claims...)
	}
	c.at = len(r.Claims) - 1
	switch {
	case a.Barred:
		return driver.Grant{}, driver.ErrBarred
	case a.Heavy:
		return driver.Grant{}, driver.ErrTooHeavy
	case !a.Granted:
		return driver.Grant{}, c.refusal(now, a)
	}
	c.wake = nil
	return driver.Grant{TTL: c.req.TTL, Fence: a.Fence}, nil
}

func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	r, now, err := c.begin(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer c.end(r)
	r.sound = 0
	fence, err := r.Renew(now, c.req.Owner, ttl)
	if err != nil {
		return driver.Grant{}, err
	}
	r.listen(c, false)
	c.told, c.gone = false, false
	c.driver.server.recall(r, c)
	return driver.Grant{TTL: ttl, Fence: fence}, nil
}

// RenewAll implements [driver.BatchRenewer]. It renews one claim after another, because there is no
// round trip to save.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		r := &renewals[i]
		r.Answer(r.Claim.Renew(ctx, r.TTL))
	}
}

// TryAll implements [driver.BatchTrier]. It tries one claim after another.
func (d *Driver) TryAll(ctx context.Context, trials []driver.Trial) {
	for i := range trials {
		t := &trials[i]
		t.Grant, t.Err = t.Claim.Try(ctx)
	}
}

// ReleaseAll implements [driver.BatchTrier].
func (d *Driver) ReleaseAll(ctx context.Context, endings []driver.Ending) {
	for i := range endings {
		e := &endings[i]
		e.Err = e.Claim.Release(ctx, e.How)
	}
}

// Release implements [driver.Claim]. A lingering hold has no owner, so nobody can renew or release
// it.
func (c *claim) Release(ctx context.Context, how driver.End) (err error) {
	r, now, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer c.end(r)
	if c.gone && how.Bar == 0 {
		return errReleased
	}
	defer func() { c.gone = err == nil }()
	r.forget(c.req.Owner)
	if how != (driver.End{}) {
		r.sound = 0
	}
	if how.Bar > 0 {
		r.KeepOut(now, c.req.Owner, how.Bar)
	}
	if how.Linger > 0 {
		return r.Linger(now, c.req.Owner, how.Linger)
	}
	return r.Release(c.req.Owner)
}

// errReleased refuses a second release.
var errReleased = fmt.Errorf("%w: it was released", driver.ErrLost)

// Note implements [driver.Claim].
func (c *claim) Note(ctx context.Context, note string) error {
	r, _, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer c.end(r)
	return r.SetNote(c.req.Owner, note)
}

// Evict implements [driver.Operator]. It notifies the holder. An empty owner ends a hold that
// lingers.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	r, _, err := d.begin(ctx, name)
	if err != nil {
		return err
	}
	defer d.end(name, r)
	if err := r.Evict(owner, reason, d.server.floor()); err != nil {
		return err
	}
	if c := r.forget(owner); c != nil {
		d.server.lose(c, driver.Evicted(reason))
	}
	return nil
}

// RaiseFence implements [driver.Operator]. Later grants of every resource have fences above
// fence.
func (d *Driver) RaiseFence(ctx context.Context, _ string, fence uint64) error {
	if err := cmp.Or(d.usable(ctx), driver.CheckRaise(fence)); err != nil {
		return err
	}
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	d.server.fence = max(d.server.fence, driver.NumberOf(fence))
	return nil
}

// SetLimit implements [driver.Operator].
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if err := driver.CheckLimit(limit); err != nil {
		return err
	}
	r, _, err := d.begin(ctx, name)
	if err != nil {
		return err
	}
	defer d.end(name, r)
	r.Limit = limit
	return nil
}
