package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
)

// Defaults of Options.
const (
	DefaultPrefix = "/leasehold"
	// DefaultSessionTimeout makes leases of leasehold.DefaultTTL, and is within what an
	// ensemble grants unless it is told otherwise: 2 to 20 ticks of 2 s.
	DefaultSessionTimeout = 15 * time.Second
)

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// SessionTimeout is the length of the driver's session; all its leases have two thirds of
	// it, in whole milliseconds, as TTL. 0: DefaultSessionTimeout. Whole milliseconds, at
	// least two ticks of the ensemble. When it grants another one,
	// which it does beyond its minSessionTimeout and maxSessionTimeout, every call returns
	// ErrSessionTimeout.
	SessionTimeout time.Duration
	// Prefix is the path below which each resource has a node; "": DefaultPrefix, "/": the
	// root. All processes must use the same. It is created where it is missing.
	Prefix string
	// Chroot is a path that stands before all others; "": none. It must exist.
	Chroot string
	// ReadWriteNames names exclusive claims as Curator's InterProcessReadWriteLock does, and
	// not its InterProcessMutex, which would not see shared ones. All processes must use the
	// same, and so must those of Curator.
	ReadWriteNames bool
	// TTLNodes says that the ensemble has TTL nodes (zookeeper.extendedTypesEnabled), and so
	// makes leasehold.AtLeast possible. What lingers ends when the ensemble next looks, by
	// default once a minute.
	TTLNodes bool
	// User and Password are for the ensemble's digest scheme; "": none.
	User, Password string
	// ACL is that of all nodes the driver creates; nil: with User everything for that user
	// and nothing for others, else everything for everybody.
	ACL []zk.ACL
	// Dial replaces net.DialTimeout, for TLS.
	Dial zk.Dialer
}

// A Driver serves claims on ZooKeeper. It is safe for concurrent use.
type Driver struct {
	root      string // chroot and prefix
	chroot    string
	exclusive string // what marks exclusive claims
	ttlNodes  bool
	acl       []zk.ACL
	timeout   time.Duration
	ttl       time.Duration // of the leases
	began     time.Time
	link      *link
	watches   watches

	plain    atomic.Bool  // the ensemble has no containers
	creating sync.RWMutex // containers and TTL nodes, see settle

	mu     sync.Mutex
	held   map[*claim]bool // guarded by mu; they are told when the session ends
	closed bool            // guarded by mu
}

// New returns a Driver on the ensemble of servers, each "host" or "host:port". It does no
// I/O: the first call connects. The session is the driver's own.
func New(servers []string, opts *Options) (*Driver, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.SessionTimeout == 0 {
		o.SessionTimeout = DefaultSessionTimeout
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	switch {
	case len(servers) == 0:
		return nil, errors.New("zklock: no servers")
	case o.SessionTimeout < time.Millisecond || o.SessionTimeout%time.Millisecond != 0:
		return nil, fmt.Errorf("zklock: SessionTimeout %v is no positive number of milliseconds", o.SessionTimeout)
	case o.User == "" && o.Password != "":
		return nil, errors.New("zklock: Password without User")
	case strings.Contains(o.User, ":"):
		return nil, errors.New("zklock: User contains a colon, which the digest scheme cannot have")
	}
	chroot, err := cleanPath(o.Chroot)
	if err != nil {
		return nil, fmt.Errorf("zklock: Chroot: %w", err)
	}
	prefix, err := cleanPath(o.Prefix)
	if err != nil {
		return nil, fmt.Errorf("zklock: Prefix: %w", err)
	}
	d := &Driver{
		root: chroot + prefix, chroot: chroot, exclusive: markLock, ttlNodes: o.TTLNodes, acl: o.ACL, timeout: o.SessionTimeout, ttl: ttlOf(o.SessionTimeout), began: time.Now(),
		watches: watches{of: make(map[string]*watch)}, held: make(map[*claim]bool),
	}
	if o.ReadWriteNames {
		d.exclusive = markWrite
	}
	d.link = &link{
		servers: addresses(servers), timeout: o.SessionTimeout, dial: o.Dial,
		heard: d.watches.event, ended: d.expired, shortened: d.shortened, watching: d.watches.any, changed: make(chan struct{}),
	}
	if o.Dial == nil {
		d.link.dial = net.DialTimeout
	}
	if o.User != "" {
		d.link.user = []byte(o.User + ":" + o.Password)
	}
	switch {
	case d.acl != nil:
	case o.User != "":
		d.acl = zk.AuthACL(zk.PermAll)
	default:
		d.acl = zk.WorldACL(zk.PermAll)
	}
	return d, nil
}

// addresses adds the port to each server that has none; IPv6 addresses stand in brackets.
func addresses(servers []string) []string {
	all := make([]string, len(servers))
	for i, s := range servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			s = net.JoinHostPort(strings.Trim(s, "[]"), fmt.Sprint(zk.DefaultPort))
		}
		all[i] = s
	}
	return all
}

// Features implements driver.Driver.
func (d *Driver) Features() driver.Features {
	return driver.Features{
		Fencing: true, Shared: true, Fair: true, Wakes: true,
		MinTTL: d.ttl, SessionTTL: d.ttl,
	}
}

// Claim implements driver.Driver.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if req.TTL != d.ttl {
		return nil, otherTTL(req.TTL, d.ttl)
	}
	return d.claim(req), nil
}

// claim is Claim for a TTL that the session is long enough for.
func (d *Driver) claim(req driver.Request) driver.Claim {
	c := &claim{d: d, req: req, parent: d.path(req.Resource), guid: guidOf(req.Owner), turn: make(chan struct{}, 1)}
	if d.ttlNodes {
		return lingerer{c}
	}
	return c
}

func otherTTL(ttl, only time.Duration) error {
	return fmt.Errorf("%w: TTL %v: that of the session the lease hangs on is %v", driver.ErrUnsupported, ttl, only)
}

// ttlOf is the TTL of leases that hang on a session of that timeout. What the leader was last
// told of us may be a third of the session old in good times: so grants are whole, and end
// before the session in any case.
func ttlOf(timeout time.Duration) time.Duration {
	return (timeout * 2 / 3).Truncate(time.Millisecond)
}

// sessionFor is the timeout of a session for leases of ttl.
func sessionFor(ttl time.Duration) time.Duration {
	return (ttl*3/2 + time.Millisecond - 1).Truncate(time.Millisecond)
}

// path is the node of a resource; its children are the claims.
func (d *Driver) path(name string) string { return d.root + "/" + escape(name, d.root == "") }

// Close implements driver.Driver. It ends the session, and with it all that is held:
// holders are told first.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true // none is added from now on
	d.mu.Unlock()
	for _, c := range d.holders() {
		c.lose(fmt.Errorf("%w: its driver was closed", driver.ErrLost))()
	}
	d.settle()
	d.link.close()
	return nil
}

// settle waits, but not for long, until no container or TTL node is being created:
// go-zookeeper reads the answer to that while it writes it when it is closed meanwhile.
func (d *Driver) settle() {
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		d.creating.Lock()
		d.creating.Unlock() //lint:ignore SA2001 it only waits
	}()
	select {
	case <-settled:
	case <-time.After(time.Second):
	}
}

// expired is called when the ensemble has ended the session.
func (d *Driver) expired() {
	for _, c := range d.holders() {
		go c.lose(errExpired)()
	}
	d.watches.end()
}

// shortened is called when the ensemble may end the session before the leases that hang on it.
func (d *Driver) shortened(cause error) {
	for _, c := range d.holders() {
		go c.lose(fmt.Errorf("%w: %w", driver.ErrLost, cause))()
	}
}

func (d *Driver) holders() []*claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*claim, 0, len(d.held))
	for c := range d.held {
		all = append(all, c)
	}
	return all
}

// keep has c told when the session ends. It reports false, and c must not be granted, when
// the driver was closed.
func (d *Driver) keep(c *claim) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.held[c] = true
	}
	return !d.closed
}

func (d *Driver) drop(c *claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.held, c)
}

// RenewAll implements driver.BatchRenewer: one round trip proves that the session lives, and
// all leases hang on it.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	asked := time.Now()
	together := make([]*driver.Renewal, 0, len(renewals))
	for i := range renewals {
		r := &renewals[i]
		if c := claimOf(r.Claim); r.TTL == c.req.TTL && c.begin() {
			together = append(together, r)
			continue
		}
		r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL)
	}
	shared := func() (struct{}, error) { return struct{}{}, d.sync(ctx) }
	_, synced := run(ctx, shared)
	if errors.Is(synced, errDisturbed) { // rather than each lease by itself
		_, synced = run(ctx, shared)
	}
	proof := d.link.proof()
	for _, r := range together {
		c := claimOf(r.Claim)
		if r.Err = c.live(asked); r.Err == nil {
			r.Grant, r.Err = c.renewed(asked, proof, synced)
		}
		c.end()
		if errors.Is(r.Err, errDisturbed) {
			r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL)
		}
	}
}

// sync proves that the session lives.
func (d *Driver) sync(ctx context.Context) error {
	conn, err := d.link.ready(ctx)
	if err != nil {
		return err
	}
	return d.link.sync(conn, cmp.Or(d.root, "/"))
}

// run makes a call that does not know contexts. It returns when ctx ends: then the call
// goes on by itself.
func run[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		value, err := call()
		done <- answer{value, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// both makes two calls at once and returns the first error of them.
func both(a, b func() error) error {
	done := make(chan error, 1)
	go func() { done <- b() }()
	err := a()
	if other := <-done; err == nil {
		err = other
	}
	return err
}
