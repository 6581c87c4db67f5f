// Package memory is the reference driver: it serves every feature of the contract
// inside one process. It is for tests, for programs that run as one process today, and
// for authors of drivers to read.
//
// A Server stands for an engine and each Driver connected to it for one process. State
// ends with the process.
package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// placeTTL is how long a place in a queue lives after its owner's last Try: a waiter
// that died delays the others by no more. keepPlace is when to Try again to keep it;
// a third leaves time for two that come late.
const (
	placeTTL  = 3 * time.Second
	keepPlace = placeTTL / 3
)

// minTTL is the shortest lease: the core keeps 2 ms back for timers, which would leave
// nothing of a shorter one.
const minTTL = 10 * time.Millisecond

// A Server is an engine in this process's memory.
type Server struct {
	mu        sync.Mutex
	resources map[string]*resource // guarded by mu; only those with holders or waiters
	spare     *resource            // guarded by mu; the last one dropped, for the next
	fence     uint64               // guarded by mu; last one given, of any resource
}

// NewServer returns an empty Server.
func NewServer() *Server {
	return &Server{resources: make(map[string]*resource)}
}

// New returns a Driver on a Server of its own.
func New() *Driver { return NewServer().Connect() }

// Connect returns one more Driver on s, as another process would have it.
func (s *Server) Connect() *Driver { return &Driver{server: s} }

// Flush forgets all holders, waiters and fences, as an engine does that restarts
// without its data. Holders are told through Request.Lost; later fences are still larger.
func (s *Server) Flush() {
	s.mu.Lock()
	var lost []*hold
	for _, r := range s.resources {
		lost = append(lost, r.holds...)
		for _, p := range r.queue {
			p.close()
		}
	}
	clear(s.resources)
	s.fence = 0
	s.mu.Unlock()
	for _, h := range lost {
		h.tell("the engine lost its state")
	}
}

// nextFence is above every earlier fence: of this Server by the counter, of one that
// forgot it by the clock. Requires s.mu.
func (s *Server) nextFence(now time.Time) uint64 {
	s.fence = max(s.fence+1, uint64(now.UnixMicro()))
	return s.fence
}

// at returns the resource as it is now, without what has expired. Requires s.mu.
func (s *Server) at(name string, now time.Time) *resource {
	r := s.resources[name]
	if r == nil {
		if r, s.spare = s.spare, nil; r == nil {
			r = &resource{}
		}
		s.resources[name] = r
	}
	r.expire(now)
	return r
}

// settle wakes the waiter whose turn it is and drops an empty resource. Requires s.mu.
func (s *Server) settle(name string, r *resource) {
	r.wakeNext()
	if len(r.holds) == 0 && len(r.queue) == 0 {
		delete(s.resources, name)
		s.spare = r
	}
}

// A Driver is one process's view of a Server. All its features are there; Close only
// refuses later calls.
type Driver struct {
	server *Server
	mu     sync.Mutex
	closed bool // guarded by mu
}

// Features declares everything.
func (d *Driver) Features() driver.Features {
	return driver.Features{
		Fencing: true, Shared: true, Fair: true, Wakes: true, Resumes: true,
		MinTTL: minTTL, Step: time.Nanosecond,
	}
}

// Close makes later calls return driver.ErrClosed. What is held stays held.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// Claim never fails.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	return &claim{driver: d, req: req}, nil
}

// usable is the check that stands before every call.
func (d *Driver) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return driver.ErrClosed
	}
	return nil
}

type claim struct {
	driver *Driver
	req    driver.Request
}

func (c *claim) Try(ctx context.Context) (driver.Grant, error) {
	if err := c.driver.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	s, now := c.driver.server, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.at(c.req.Resource, now)
	defer s.settle(c.req.Resource, r)
	if h := r.holder(c.req.Owner); h != nil {
		h.expires = now.Add(c.req.TTL) // repeated after a lost reply: the same grant
		return driver.Grant{TTL: c.req.TTL, Fence: h.fence}, nil
	}
	if !r.grants(&c.req) {
		return driver.Grant{}, r.refuse(&c.req, now)
	}
	r.leave(c.req.Owner)
	h := &hold{
		owner: c.req.Owner, mode: c.req.Mode, limit: c.req.Limit, note: c.req.Note, lost: c.req.Lost,
		fence: s.nextFence(now), since: now, expires: now.Add(c.req.TTL),
	}
	r.holds = append(r.holds, h)
	return driver.Grant{TTL: c.req.TTL, Fence: h.fence}, nil
}

func (c *claim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if err := c.driver.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	s, now := c.driver.server, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.at(c.req.Resource, now)
	defer s.settle(c.req.Resource, r)
	h := r.holder(c.req.Owner)
	if h == nil {
		return driver.Grant{}, driver.ErrLost
	}
	h.expires = now.Add(ttl)
	if c.req.Lost != nil {
		h.lost = c.req.Lost // a resumed lease reports to whoever keeps it alive
	}
	return driver.Grant{TTL: ttl, Fence: h.fence}, nil
}

// RenewAll renews one after the other: there is no round trip to save.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		r := &renewals[i]
		r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL)
	}
}

func (c *claim) Release(ctx context.Context) error {
	return c.end(ctx, func(r *resource) bool {
		queued := r.leave(c.req.Owner)
		return r.drop(c.req.Owner) != nil || queued
	})
}

// Linger replaces the hold by one without an owner, which nobody can renew or release.
func (c *claim) Linger(ctx context.Context, d time.Duration) error {
	return c.end(ctx, func(r *resource) bool {
		h := r.drop(c.req.Owner)
		if h == nil {
			return false
		}
		rest := *h
		rest.owner, rest.lost, rest.expires = "", nil, time.Now().Add(d)
		r.holds = append(r.holds, &rest)
		return true
	})
}

// Note changes what Inspect shows of the hold.
func (c *claim) Note(ctx context.Context, note string) error {
	if err := c.driver.usable(ctx); err != nil {
		return err
	}
	s := c.driver.server
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.at(c.req.Resource, time.Now())
	defer s.settle(c.req.Resource, r)
	h := r.holder(c.req.Owner)
	if h == nil {
		return driver.ErrLost
	}
	h.note = note
	return nil
}

// end applies one way of giving up the claim; ErrLost when there was nothing to give up.
func (c *claim) end(ctx context.Context, give func(*resource) bool) error {
	if err := c.driver.usable(ctx); err != nil {
		return err
	}
	s := c.driver.server
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.at(c.req.Resource, time.Now())
	defer s.settle(c.req.Resource, r)
	if !give(r) {
		return driver.ErrLost
	}
	return nil
}

// Evict ends owner's lease, tells its holder, and raises the fence.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	if err := d.usable(ctx); err != nil {
		return err
	}
	s, now := d.server, time.Now()
	s.mu.Lock()
	r := s.at(name, now)
	h := r.drop(owner)
	if h != nil {
		s.nextFence(now)
	}
	s.settle(name, r)
	s.mu.Unlock()
	if h == nil {
		return driver.ErrLost
	}
	h.tell("evicted: " + reason)
	return nil
}

// RaiseFence makes later grants, of every resource, carry fences above fence.
func (d *Driver) RaiseFence(ctx context.Context, _ string, fence uint64) error {
	if err := d.usable(ctx); err != nil {
		return err
	}
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	d.server.fence = max(d.server.fence, fence)
	return nil
}

// tell passes an early end to the holder. Call it without s.mu.
func (h *hold) tell(why string) {
	if h.lost != nil {
		h.lost(fmt.Errorf("%w: %s", driver.ErrLost, why))
	}
}
