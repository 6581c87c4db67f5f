package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/lanes"
	"github.com/leasehold-go/leasehold/internal/life"
	"github.com/leasehold-go/leasehold/internal/links"
)

// DefaultPrefix begins all keys of the driver.
const DefaultPrefix = "leasehold"

const (
	// minTTL is the shortest lease of a server with its default settings: one and a half
	// election timeouts of a second, rounded up (etcd's lease.Lessor). Servers that have
	// a longer one keep what dead processes held for longer.
	minTTL = 2 * time.Second
	// step is the unit in which etcd grants leases.
	step = time.Second
)

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// Prefix begins all keys, followed by a slash; "": DefaultPrefix. All processes must use the
	// same. It does not end in a slash and has no control characters. To exclude the holders of
	// "etcdctl lock /locks/backup", set it to "/locks".
	Prefix string
	// NoPrefix puts names at the root of the key space; Prefix must be "". The driver then
	// watches deletions of all keys in the cluster, and all puts while a claim has
	// [driver.Request].Wanted.
	NoPrefix bool
}

// A Driver serves claims on etcd. It is safe for concurrent use.
type Driver struct {
	cluster
	clock *boottime.Clock // counts the machine's sleep, as etcd does; tests replace it
	root  string          // Prefix and a slash, or ""
	life  *life.Life      // ends when the driver is closed

	// mu guards the fields below, and all places and sessions.
	mu       sync.Mutex
	*places                             // a pointer, so that fmt does not reach the keys in it
	sessions map[time.Duration]*session // sessions for new claims, by TTL
	alive    keepAlives
	watch    watch // reports deletions
	changes  watch // reports puts and deletions, for claims with Wanted
	writes   writes
}

// New returns a Driver on client, which Close does not close. New does no I/O. If client has a
// namespace, its prefix precedes the Driver's.
func New(client *clientv3.Client, opts *Options) (*Driver, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	switch {
	case client == nil:
		return nil, errors.New("etcdlock: no client")
	case o.NoPrefix && o.Prefix != "":
		return nil, errors.New("etcdlock: Prefix and NoPrefix exclude each other")
	case strings.HasSuffix(o.Prefix, "/"):
		return nil, fmt.Errorf("etcdlock: the prefix %q ends in a slash, which the driver adds", o.Prefix)
	case strings.ContainsFunc(o.Prefix, unicode.IsControl):
		return nil, fmt.Errorf("etcdlock: control character in the prefix %q", o.Prefix)
	case o.Prefix == "" && !o.NoPrefix:
		o.Prefix = DefaultPrefix
	}
	d := &Driver{clock: boottime.Machine(), life: life.New(), sessions: make(map[time.Duration]*session)}
	d.client, d.lanes = client, lanes.New(new(links.Answers), unanswered, nil)
	d.places = &places{of: make(map[string]*line), keyed: make(map[string]*place)}
	d.writes.taken = make(map[string]struct{})
	d.watch = watch{d: d, opts: []clientv3.OpOption{clientv3.WithFilterPut()}, isUsed: d.usesWatch, begins: d.readAgain, tells: d.deleted}
	d.changes = watch{d: d, isUsed: d.wantsRecalls, begins: d.lookBehindAll, tells: d.changed}
	if !o.NoPrefix {
		d.root = o.Prefix + "/"
	}
	return d, nil
}

// Features implements [driver.Driver]. TTLs are whole seconds.
func (d *Driver) Features() driver.Features {
	return driver.Features{
		Engine: "etcd", Fencing: true, Shared: true, Weights: true, Limits: true, Fair: true, Wakes: true, Resumes: true,
		Lingers: true, Bars: true, Notes: true, Tells: true, Recalls: true, Keeps: true,
		MinTTL: minTTL, Step: step,
	}
}

// Close ends the driver's watches and the keep-alives of its sessions. Later calls return
// [driver.ErrClosed]. Leases stay held until their TTL has passed.
func (d *Driver) Close() error {
	d.life.End()
	d.life.Wait()
	if d.links != nil {
		return d.client.Close()
	}
	return nil
}

// Claim implements [driver.Driver].
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if req.Owner == "" {
		return nil, fmt.Errorf("etcdlock: an empty owner is %w", driver.ErrUnsupported)
	}
	return &claim{d: d, req: req, dir: d.dir(req.Resource), value: encode(&req)}, nil
}

// usable checks before each call that the driver is open and the context has not ended.
func (d *Driver) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if d.isClosed() {
		return driver.ErrClosed
	}
	return nil
}

func (d *Driver) isClosed() bool { return d.life.Err() != nil }

// waitUntil returns nil when done is closed. It fails when the context or the driver ends before.
func (d *Driver) waitUntil(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-d.life.Done():
		return errClosing
	case <-ctx.Done():
		return d.explain(ctx, ctx.Err())
	}
}

// seconds returns a TTL in seconds, rounded up, as etcd takes it.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// roundUp returns the TTL that the server uses.
func roundUp(ttl time.Duration) time.Duration { return time.Duration(seconds(ttl)) * time.Second }
