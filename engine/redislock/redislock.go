package redislock

import (
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

// DefaultPrefix is put before each name.
const DefaultPrefix = "lock:"

const (
	// minTTL is the shortest lease: the core keeps 2 ms and 1 % back, a pause of the
	// garbage collector or of the server takes some more, and nothing useful would be left.
	minTTL = 20 * time.Millisecond
	// step is the resolution of PX.
	step = time.Millisecond
	// historyTTL is how long the last fence outlives its last use. Fences follow the
	// server's clock, so that only a clock that was set back by more than this could
	// give a smaller one; and names that are used once leave nothing behind for ever.
	historyTTL = 25 * time.Hour
)

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// Prefix is put before each name to make the lock key; "": DefaultPrefix. All
	// processes must use the same. It may have a hash tag, such as "{shop}:", which
	// puts all locks into one slot. No control characters.
	Prefix string
	// NoPrefix takes names as lock keys as they are; Prefix must be "".
	NoPrefix bool
	// Replicas is how many replicas must have acknowledged a grant or a renewal (WAIT)
	// before it counts. With fewer, a grant is given up and ErrReplicas returned.
	// 0 does not wait: a failover may then lose a grant, and let a second holder in.
	Replicas int
	// RequireFenceHistory makes a resource without a stored fence an error,
	// ErrNoFenceHistory, and keeps fences for ever. New resources must be prepared by
	// RaiseFence. It is for those who trust the server's clock less than its memory.
	RequireFenceHistory bool
	// Memory, if not 0, is the greatest TTL that anybody uses; longer ones are refused. A
	// server grants nothing, ErrForgetful, until drivers have seen for so long, on clocks
	// that only go forward, that it neither restarted nor was flushed: it may have forgotten a
	// grant before. What they saw is kept on the server, so that later ones need not
	// wait. For the servers of a quorum, not for Cluster; a replica that takes over is not
	// covered.
	Memory time.Duration
	// NoMemory leaves out Memory also where it has a default, in NewRedlock; Memory must be 0.
	NoMemory bool
	// Rest, if not 0, lets clients in that do not queue, such as those of the plain recipe,
	// beside a queue that never ends: a lock that is given up is left free for that long,
	// once a second at most. It must be longer than the time between two of their attempts,
	// and at most half a second, and the same in all processes. An attempt without waiting
	// may be refused meanwhile although nobody holds the lock. Locks that nobody else wants
	// lose their shorter scripts by it.
	Rest time.Duration
}

const (
	maxRest = restEvery / 2
	// restEvery is how long after a rest has begun another may.
	restEvery = time.Second
)

// DefaultMemory is for programs that do not know the TTLs of others: a minute is beyond
// what most locks are taken for.
const DefaultMemory = time.Minute

// A Driver serves claims on Redis. It is safe for concurrent use.
type Driver struct {
	client     redis.UniversalClient
	ownClient  bool    // Close closes it
	o          Options // with their defaults
	pipelines  pipelines
	subscriber *subscriber // a pointer: it has owners, which fmt does not find there
	known      knownLocks
	seen       seen
	tries      atomic.Int64 // counts attempts that wait

	closing sync.Once
}

// Open returns a Driver on one server. It does no I/O, and connects when it is first needed: once
// for all calls, which share a connection, and once to listen. Close closes both.
func Open(server *redis.Options, opts *Options) (*Driver, error) {
	if server == nil {
		return nil, errors.New("redislock: no server's options")
	}
	own := *server // the caller's may change
	own.MinIdleConns, own.ClientSideCache, own.ClientSideCacheConfig = 0, nil, nil
	client := redis.NewClient(&own)
	d, err := newDriver(client, &own, opts)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	d.ownClient = true
	return d, nil
}

// New returns a Driver on client, which stays the caller's: Close does not close it. It
// does no I/O. client must be of NewClient, NewFailoverClient, NewClusterClient or
// NewUniversalClient; a Ring is refused, because it has no order among its servers.
//
// The driver listens through client, and asks it where the servers are. Calls have connections of their
// own, one to each server, made from client's options with their Dialer, credentials and OnConnect;
// its hooks, Limiter and pool have no part in them, nor have its retries.
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

// newDriver connects with server, or on Cluster with what the client has for its nodes.
func newDriver(client redis.UniversalClient, server *redis.Options, opts *Options) (*Driver, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
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
	if o.Memory < 0 {
		return nil, fmt.Errorf("redislock: Memory is %v", o.Memory)
	}
	if o.NoMemory && o.Memory != 0 {
		return nil, errors.New("redislock: Memory and NoMemory exclude each other")
	}
	if _, cluster := client.(*redis.ClusterClient); cluster && o.Memory > 0 {
		return nil, fmt.Errorf("redislock: Memory on Cluster is %w", driver.ErrUnsupported)
	}
	d := &Driver{client: client, o: o}
	d.pipelines.init(client, server, o.Replicas)
	d.subscriber = &subscriber{}
	d.subscriber.init(client, strings.ToLower(rand.Text()))
	return d, nil
}

// Features declares everything.
func (d *Driver) Features() driver.Features {
	return driver.Features{
		Engine: "redis", Fencing: true, Shared: true, Fair: true, Wakes: true, Resumes: true,
		Lingers: true, Bars: true, Notes: true, Raises: true,
		MinTTL: minTTL, Step: step,
	}
}

// Close ends the driver's connections, with the calls on them. Later calls return [driver.ErrClosed].
// What is held stays held.
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

// Claim returns ErrUnsupported for an owner that Redis cannot tell from its own marks.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if req.Owner == "" || strings.Contains(req.Owner, mark) {
		return nil, fmt.Errorf("redislock: an owner that is empty or has a control character is %w", driver.ErrUnsupported)
	}
	if err := d.checkTTL(req.TTL); err != nil {
		return nil, err
	}
	return &claim{d: d, req: req, keys: d.keysOf(req.Resource)}, nil
}

// grantsUnasked reports whether a release may grant the lock to the next in the queue, which is told.
// That one could neither wait for replicas nor find out what the server remembers.
func (d *Driver) grantsUnasked() bool { return d.o.Replicas == 0 && d.o.Memory == 0 }

// checkTTL refuses a lease that a server could forget and still be trusted.
func (d *Driver) checkTTL(ttl time.Duration) error {
	if d.o.Memory > 0 && ttl > d.o.Memory {
		return fmt.Errorf("redislock: a TTL of %v is above Options.Memory of %v, which is %w", ttl, d.o.Memory, driver.ErrUnsupported)
	}
	return nil
}

// usable is the check that stands before every call.
func (d *Driver) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if d.pipelines.life.Err() != nil {
		return driver.ErrClosed
	}
	return nil
}

// ask has c, which is about the lock key, answered.
func (d *Driver) ask(ctx context.Context, key string, c *call) (answer, error) {
	if err := d.usable(ctx); err != nil {
		return answer{}, err
	}
	a, err := d.pipelines.ask(ctx, key, c)
	return a, explain(err)
}

// millis is d in whole milliseconds, rounded up.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// historyLife is how long the history outlives a grant of ttl; 0: for ever.
func (d *Driver) historyLife(ttl time.Duration) time.Duration {
	if d.o.RequireFenceHistory {
		return 0
	}
	return max(historyTTL, 2*ttl)
}
