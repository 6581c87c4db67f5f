package zklock

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// maxSessions bounds the sessions of a Sessions: each has a connection, and the ensemble
// writes each to its log. Few programs have more than two or three TTLs.
const maxSessions = 8

// Sessions is a driver that begins a session for each TTL it is asked for, where a Driver
// has one for all and refuses other TTLs. A claim keeps the TTL it was made with: Renew with
// another is ErrUnsupported, as is a ninth TTL. The sessions are half as long again as the TTL,
// as those of a Driver are. It is safe for concurrent use.
type Sessions struct {
	servers []string
	opts    Options

	mu     sync.Mutex
	of     map[time.Duration]*Driver // guarded by mu; by TTL
	closed bool                      // guarded by mu
}

// NewSessions is New for a Sessions. Options.SessionTimeout is of the session that only
// inspects and evicts, unless there is another.
func NewSessions(servers []string, opts *Options) (*Sessions, error) {
	s := &Sessions{servers: servers, of: make(map[time.Duration]*Driver)}
	if opts != nil {
		s.opts = *opts
	}
	if _, err := New(servers, &s.opts); err != nil { // which has no connection yet
		return nil, err
	}
	return s, nil
}

// with returns the driver for leases of ttl.
func (s *Sessions) with(ttl time.Duration) (*Driver, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.of[ttl]; d != nil || s.closed {
		return d, s.closedErr()
	}
	if len(s.of) == maxSessions {
		return nil, fmt.Errorf("%w: TTL %v: there are sessions for %d other TTLs", driver.ErrUnsupported, ttl, maxSessions)
	}
	return s.begin(ttl, sessionFor(ttl))
}

// any returns one of the drivers, one that the ensemble has refused only for want of another.
func (s *Sessions) any() (*Driver, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, driver.ErrClosed
	}
	var last *Driver
	for _, d := range s.of {
		if d.link.refusal() == nil {
			return d, nil
		}
		last = d
	}
	timeout := cmp.Or(s.opts.SessionTimeout, DefaultSessionTimeout)
	ttl := ttlOf(timeout)
	if s.of[ttl] != nil || len(s.of) == maxSessions {
		return last, nil
	}
	return s.begin(ttl, timeout)
}

// closedErr requires s.mu.
func (s *Sessions) closedErr() error {
	if s.closed {
		return driver.ErrClosed
	}
	return nil
}

// begin requires s.mu.
func (s *Sessions) begin(ttl, timeout time.Duration) (*Driver, error) {
	opts := s.opts
	opts.SessionTimeout = timeout
	d, err := New(s.servers, &opts)
	if err == nil {
		s.of[ttl] = d
	}
	return d, err
}

// Features implements driver.Driver.
func (s *Sessions) Features() driver.Features {
	return driver.Features{Fencing: true, Shared: true, Fair: true, Wakes: true, MinTTL: time.Millisecond, Step: time.Millisecond}
}

// Claim implements driver.Driver.
func (s *Sessions) Claim(req driver.Request) (driver.Claim, error) {
	d, err := s.with(req.TTL)
	if err != nil {
		return nil, err
	}
	return d.claim(req), nil
}

// Close implements driver.Driver. It ends the sessions, and with them all that is held.
func (s *Sessions) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var all sync.WaitGroup
	for _, d := range s.of {
		all.Go(func() { d.Close() }) // never fails
	}
	all.Wait()
	return nil
}

// RenewAll implements driver.BatchRenewer. Sessions do not wait for each other.
func (s *Sessions) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	of := make(map[*Driver][]int)
	for i, r := range renewals {
		d := claimOf(r.Claim).d
		of[d] = append(of[d], i)
	}
	var all sync.WaitGroup
	for d, which := range of {
		all.Go(func() {
			some := make([]driver.Renewal, len(which))
			for j, i := range which {
				some[j] = renewals[i]
			}
			d.RenewAll(ctx, some)
			for j, i := range which {
				renewals[i] = some[j]
			}
		})
	}
	all.Wait()
}

// Inspect implements driver.Inspector.
func (s *Sessions) Inspect(ctx context.Context, name string) (driver.State, error) {
	d, err := s.any()
	if err != nil {
		return driver.State{}, err
	}
	return d.Inspect(ctx, name)
}

// List implements driver.Inspector.
func (s *Sessions) List(ctx context.Context, prefix string) ([]driver.State, error) {
	d, err := s.any()
	if err != nil {
		return nil, err
	}
	return d.List(ctx, prefix)
}

// Evict implements driver.Evictor.
func (s *Sessions) Evict(ctx context.Context, name, owner, reason string) error {
	d, err := s.any()
	if err != nil {
		return err
	}
	return d.Evict(ctx, name, owner, reason)
}
