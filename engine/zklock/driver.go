package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/several"
)

// maxSessions bounds the sessions of a Driver. Each session has a connection, and the ensemble
// writes each to its log. Few programs have more than two or three TTLs.
const maxSessions = 8

// A Driver serves claims on ZooKeeper. It is safe for concurrent use.
type Driver struct {
	servers   []string
	opts      *Options // with defaults; a pointer, so that fmt does not reach the password
	root      string   // chroot and prefix
	exclusive string   // the mark of exclusive claims

	password func() string   // returns the current password
	acl      func() []zk.ACL // returns the ACL for new nodes

	clock *boottime.Clock // counts the machine's sleep, as the ensemble does; tests replace it
	plain atomic.Bool     // the ensemble has no containers

	mu       sync.Mutex
	sessions map[time.Duration]*session // guarded by mu; by TTL
	closed   bool                       // guarded by mu
}

// New returns a Driver on the ensemble of servers, each "host" or "host:port". It does no I/O:
// the first call connects. The Driver has sessions of its own.
func New(servers []string, opts *Options) (*Driver, error) {
	d := &Driver{servers: addresses(servers), opts: &Options{}, exclusive: markLock, clock: boottime.Machine(), sessions: make(map[time.Duration]*session)}
	if opts != nil {
		*d.opts = *opts
	}
	if len(servers) == 0 {
		return nil, errors.New("zklock: no servers")
	}
	if err := d.opts.check(); err != nil {
		return nil, err
	}
	d.password = func() string { return d.opts.Password }
	d.acl = func() []zk.ACL { return d.opts.ACL }
	d.root = d.opts.Chroot + d.opts.Prefix
	if d.opts.ReadWriteNames {
		d.exclusive = markWrite
	}
	return d, nil
}

// Features implements [driver.Driver].
func (d *Driver) Features() driver.Features {
	f := driver.Features{Engine: "zookeeper", Fencing: true, Shared: true, Weights: true, Limits: true, Fair: true, Wakes: true, Lingers: d.opts.TTLNodes, Notes: true, Tells: true, Recalls: true, Keeps: true,
		MinTTL: time.Millisecond, Step: time.Millisecond}
	if d.opts.SessionTimeout > 0 {
		f.SessionTTL = ttlOf(d.opts.SessionTimeout)
		f.MinTTL, f.Step = f.SessionTTL, 0
	}
	return f
}

// Claim implements [driver.Driver].
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if only := d.Features().SessionTTL; only > 0 && req.TTL != only {
		return nil, otherTTL(req.TTL, only)
	}
	if req.TTL > ttlOf(maxTimeout) {
		return nil, fmt.Errorf("%w: TTL %v is above %v", ErrSessionTimeout, req.TTL, ttlOf(maxTimeout))
	}
	s, err := d.with(req.TTL)
	if err != nil {
		return nil, err
	}
	return newClaim(s, req), nil
}

func otherTTL(ttl, only time.Duration) error {
	return fmt.Errorf("%w: TTL %v: that of the session the lease hangs on is %v", driver.ErrUnsupported, ttl, only)
}

// with returns the session for leases of ttl.
func (d *Driver) with(ttl time.Duration) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch s := d.sessions[ttl]; {
	case d.closed:
		return nil, driver.ErrClosed
	case s != nil:
		return s, nil
	case len(d.sessions) == maxSessions:
		return nil, fmt.Errorf("%w: TTL %v: there are sessions for %d other TTLs", driver.ErrUnsupported, ttl, maxSessions)
	}
	return d.add(cmp.Or(d.opts.SessionTimeout, sessionFor(ttl)), ttl), nil
}

// add makes a session. Requires d.mu.
func (d *Driver) add(timeout, ttl time.Duration) *session {
	s := newSession(d, timeout, ttl)
	d.sessions[ttl] = s
	return s
}

// any returns one of the sessions. It returns a session that the ensemble has refused only if there
// is no other.
func (d *Driver) any() (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, driver.ErrClosed
	}
	var last *session
	for _, s := range d.sessions {
		if s.refusal() == nil {
			return s, nil
		}
		last = s
	}
	timeout := cmp.Or(d.opts.SessionTimeout, DefaultSessionTimeout)
	if ttl := ttlOf(timeout); d.sessions[ttl] == nil && len(d.sessions) < maxSessions {
		return d.add(timeout, ttl), nil
	}
	return last, nil
}

// Close implements [driver.Driver]. It notifies all holders and then ends the sessions, and with
// them all leases.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true // no session is added afterwards
	d.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range d.sessions {
		all.Go(s.close)
	}
	all.Wait()
	return nil
}

// RenewAll implements [driver.BatchRenewer]. Sessions do not wait for each other.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	of := make(map[*session][]*driver.Renewal, 1)
	for i := range renewals {
		s := renewals[i].Claim.(*claim).s
		of[s] = append(of[s], &renewals[i])
	}
	var all sync.WaitGroup
	for s, some := range of {
		all.Go(func() { s.renew(ctx, some) })
	}
	all.Wait()
}

// renew renews leases of the session. One round trip proves that the session lives. Claims with a
// call in flight, and claims whose nodes have changed, are renewed one by one after that.
func (s *session) renew(ctx context.Context, renewals []*driver.Renewal) {
	asked := s.d.clock.Now()
	var together, singly []*driver.Renewal
	for _, r := range renewals {
		if c := r.Claim.(*claim); r.TTL == c.req.TTL && c.calls.TryBegin() {
			together = append(together, r)
		} else {
			singly = append(singly, r)
		}
	}
	shared := func() (struct{}, error) { return struct{}{}, s.alive(ctx) }
	_, synced := abandon.Call(ctx, shared)
	if errors.Is(synced, errDisturbed) { // one more round trip for all, rather than for each lease
		_, synced = abandon.Call(ctx, shared)
	}
	proof := s.proof()
	for _, r := range together {
		c := r.Claim.(*claim)
		g, err := c.renewed(asked, proof, synced)
		c.calls.End()
		switch {
		case errors.Is(err, errDisturbed):
			singly = append(singly, r)
			continue
		case err == nil:
			s.recalls.renewed(c)
		}
		r.Answer(g, err)
	}
	several.Bounded(len(singly), 4, func(i int) { singly[i].Answer(singly[i].Claim.Renew(ctx, singly[i].TTL)) })
}

// alive proves that the session lives.
func (s *session) alive(ctx context.Context) error {
	client, err := s.ready(ctx)
	if err != nil {
		return err
	}
	return s.sync(client, s.d.top())
}

// both makes two calls at once. It returns the error of a, or else of b.
func both(a, b func() error) error {
	done := make(chan error, 1)
	go func() { done <- b() }()
	return cmp.Or(a(), <-done)
}

// path returns the path of a resource's node. Its children are the claims.
func (d *Driver) path(name string) string { return d.root + "/" + escape(name, d.root == "") }

// top returns the path of the node whose children are the resources.
func (d *Driver) top() string {
	if d.root == "" {
		return "/"
	}
	return d.root
}
