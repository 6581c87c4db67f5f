package redislock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// DefaultPrefix precedes each name.
const DefaultPrefix = "lock:"

const (
	// minTTL is the shortest lease. The core keeps back 2 ms and 1 %, and a pause of the garbage
	// collector or of the server takes some more. In a shorter lease no useful time would be
	// left.
	minTTL = 20 * time.Millisecond
	// step is the resolution of PX, the expiry of a key.
	step = time.Millisecond
	// historyTTL is how long the last fence outlives its last use. Fences follow the server's
	// clock, so only a clock that was set back by more than this could give a smaller one. Names
	// that are used once leave nothing behind permanently.
	historyTTL = 25 * time.Hour
)

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// Prefix precedes each name in the lock key; "": DefaultPrefix. All processes must use the
	// same. It may have a hash tag, such as "{shop}:", which puts all locks into one slot. It
	// has no control characters.
	Prefix string
	// NoPrefix uses names as lock keys without a prefix; Prefix must be "".
	NoPrefix bool
	// Replicas is how many replicas must acknowledge a grant or a renewal (WAIT) before it
	// counts. With fewer, a grant is given up and ErrReplicas returned. With 0, a failover may
	// lose a grant, and let a second holder in.
	Replicas int
	// RequireFenceHistory makes a resource without a stored fence an error, ErrNoFenceHistory,
	// and keeps fences forever, beside drivers without it too. Use RaiseFence of a driver with it to
	// prepare new resources. Set it if you trust the server's data more than its clock.
	RequireFenceHistory bool
	// MinUptime, if not 0, is the greatest TTL that any program uses; longer ones are refused. A
	// server grants nothing, ErrServerTooYoung, until drivers have seen it run for that long
	// without a restart or a flush. Before that it may have forgotten a grant. Drivers measure
	// the uptime on monotonic clocks and store it on the server, so that later ones need not
	// wait. MinUptime is for the servers of a quorum, not for Cluster. It does not cover a
	// replica that takes over.
	MinUptime time.Duration
	// NoMinUptime turns MinUptime off even where it has a default, in NewRedlock. MinUptime must
	// be 0.
	NoMinUptime bool
	// Rest, if not 0, lets clients that do not queue, such as clients of the plain recipe, in
	// beside a queue that never empties. A released lock then stays free for that long, at most
	// once a second. Rest must be longer than the time between two of their attempts, at most
	// half a second, and the same in all processes. Meanwhile an attempt without waiting may be
	// refused although nobody holds the lock. With Rest, uncontended locks cannot use their
	// shorter scripts.
	Rest time.Duration
}

const (
	maxRest = restEvery / 2
	// restEvery is the shortest time between the beginnings of two rests.
	restEvery = time.Second
)

// DefaultMinUptime is for programs that do not know other programs' TTLs: few locks are held for
// more than a minute.
const DefaultMinUptime = time.Minute

// A Driver serves claims on Redis. It is safe for concurrent use.
type Driver struct {
	client     redis.UniversalClient
	ownClient  bool    // Close closes client
	o          Options // with their defaults
	pipelines  pipelines
	subscriber *subscriber // a pointer, so that fmt does not reach the owners in it
	known      knownLocks
	seen       seen
	tries      atomic.Int64 // counts Tries that wait

	closing sync.Once
}

// Open returns a Driver on one server. It does no I/O. When first needed, the driver makes one
// connection that all calls share, and one to listen. Close closes both.
func Open(server *redis.Options, opts *Options) (*Driver, error) {
	if server == nil {
		return nil, errors.New("redislock: no server's options")
	}
	own := *server // the caller may change its own
	own.MinIdleConns, own.ClientSideCache, own.ClientSideCacheConfig = 0, nil, nil
	client := redis.NewClient(&own)
	d, err := newDriver(client, &own, opts)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	d.ownClient = true
	return d, nil
}

// New returns a Driver on client, which Close does not close. New does no I/O. client must come
// from NewClient, NewFailoverClient, NewClusterClient or NewUniversalClient. A Ring is refused,
// because its servers have no order.
//
// The driver listens through client, and uses it to find the servers. Calls use connections of
// their own, one to each server, made from client's options with their Dialer, credentials and
// OnConnect. Hooks, Limiter, pool and retries of client do not apply to them.
func New(client redis.UniversalClient, opts *Options) (*Driver, error) {
	if !isNil(client) {
		switch c := client.(type) {
		case *redis.Client:
			return newDriver(c, c.Options(), opts)
		case *redis.ClusterClient:
			return newDriver(c, nil, opts)
		}
	}
	return nil, errors.New("redislock: the client must be of one server, Sentinel or Cluster")
}

// isNil reports whether client is nil, or a nil pointer.
func isNil(client redis.UniversalClient) bool {
	v := reflect.ValueOf(client)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// newDriver connects to server, or on Cluster with the client's options for its nodes.
func newDriver(client redis.UniversalClient, server *redis.Options, opts *Options) (*Driver, error) {
	o := *cmp.Or(opts, &Options{})
	switch {
	case o.NoPrefix && o.Prefix != "":
		return nil, errors.New("redislock: Prefix and NoPrefix exclude each other")
	case o.Prefix == "" && !o.NoPrefix:
		o.Prefix = DefaultPrefix
	}
	if err := checkPrefix(o.Prefix); err != nil {
		return nil, err
	}
	if o.Replicas < 0 {
		return nil, fmt.Errorf("redislock: Replicas is %d", o.Replicas)
	}
	if o.Rest < 0 || o.Rest > maxRest {
		return nil, fmt.Errorf("redislock: Rest is %v, and at most %v", o.Rest, maxRest)
	}
	if o.MinUptime < 0 {
		return nil, fmt.Errorf("redislock: MinUptime is %v", o.MinUptime)
	}
	if o.NoMinUptime && o.MinUptime != 0 {
		return nil, errors.New("redislock: MinUptime and NoMinUptime exclude each other")
	}
	if _, cluster := client.(*redis.ClusterClient); cluster && o.MinUptime > 0 {
		return nil, fmt.Errorf("redislock: MinUptime on Cluster is %w", driver.ErrUnsupported)
	}
	d := &Driver{client: client, o: o}
	d.pipelines.init(client, server, o.Replicas)
	d.subscriber = &subscriber{}
	d.subscriber.init(client, strings.ToLower(rand.Text()))
	d.pipelines.moved = d.subscriber.anew
	return d, nil
}

// Features implements [driver.Driver]. Redis supports every feature.
func (d *Driver) Features() driver.Features {
	return driver.Features{
		Engine: "redis", Fencing: true, Shared: true, Weights: true, Limits: true, Fair: true, Wakes: true, Resumes: true,
		Lingers: true, Bars: true, Notes: true, Raises: true,
		Tells: true, Recalls: true, Keeps: true,
		MinTTL: minTTL, Step: step,
	}
}

// Close closes the driver's connections and ends the calls on them. Later calls return
// [driver.ErrClosed]. Leases stay held.
func (d *Driver) Close() error {
	var err error
	d.closing.Do(func() {
		d.pipelines.end()
		d.subscriber.close()
		if d.ownClient {
			err = d.client.Close()
		}
	})
	return err
}

// Claim implements [driver.Driver]. It returns ErrUnsupported for an owner that is empty or has
// a control character, and for a TTL above MinUptime.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if req.Owner == "" || strings.Contains(req.Owner, mark) {
		return nil, fmt.Errorf("redislock: an owner that is empty or has a control character is %w", driver.ErrUnsupported)
	}
	if err := d.checkTTL(req.TTL); err != nil {
		return nil, err
	}
	return &claim{d: d, req: req, keys: d.keysOf(req.Resource)}, nil
}

// grantsUnasked reports whether a release may grant the lock to the next in the queue and notify
// it. Such a waiter could neither wait for replicas nor check the server's uptime.
func (d *Driver) grantsUnasked() bool { return d.o.Replicas == 0 && d.o.MinUptime == 0 }

// checkTTL refuses a lease longer than MinUptime, which a server could forget.
func (d *Driver) checkTTL(ttl time.Duration) error {
	if d.o.MinUptime > 0 && ttl > d.o.MinUptime {
		return fmt.Errorf("redislock: a TTL of %v is above Options.MinUptime of %v, which is %w", ttl, d.o.MinUptime, driver.ErrUnsupported)
	}
	return nil
}

// usable checks before each call that the driver is open and the context has not ended.
func (d *Driver) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if d.pipelines.life.Err() != nil {
		return driver.ErrClosed
	}
	return nil
}

// ask sends c, a call about the lock key, and returns its answer.
func (d *Driver) ask(ctx context.Context, key string, c *call) (answer, error) {
	if err := d.usable(ctx); err != nil {
		return answer{}, err
	}
	a, err := d.pipelines.ask(ctx, key, c)
	return a, explain(err)
}

// askNumber is ask for a call whose reply must be a number. of names the call in errors.
func (d *Driver) askNumber(ctx context.Context, key string, c *call, of string) (int64, error) {
	a, err := d.ask(ctx, key, c)
	if err != nil {
		return 0, err
	}
	return a.integer(of)
}

// millis returns d in whole milliseconds, rounded up.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// historyLife returns how long the history outlives a grant of ttl; 0: forever.
func (d *Driver) historyLife(ttl time.Duration) time.Duration {
	if d.o.RequireFenceHistory {
		return 0
	}
	return max(historyTTL, 2*ttl)
}
