package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/redislock"
)

// ttl is that of every lock, whoever makes it.
const ttl = 10 * time.Second

// The locks that are compared. All have their defaults but for what is said here.
const (
	ours        = "leasehold"
	oursGlobal  = "leasehold, HandOver -1"
	byHand      = "SET NX PX + script" // what one writes by hand
	byHandPiped = "… auto-pipelined"   // the same on go-redis' AutoPipeline
	bsmLock     = "bsm/redislock"      // retries every 100 ms, as in its README
	redsyncLoc  = "redsync"            // retries without limit
	rueidisLoc  = "rueidislock"        // with one key for a lock instead of three
	mutex       = "sync.Mutex"
)

// A locker is one of them, on a client of its own.
type locker struct {
	name  string
	lock  lockFunc
	close func()
	wire  *wire
}

// A lockFunc waits for the lock of that name.
type lockFunc func(ctx context.Context, name string) (held, error)

// held is a lock that is held. Its calls return an error if it was lost.
type held struct {
	unlock func() error
	renew  func() error // nil: it is renewed without being asked
}

// newLocker opens the locker with that name on the Redis at addr.
func newLocker(tb testing.TB, name, addr string) *locker {
	tb.Helper()
	l := &locker{name: name, wire: &wire{}}
	if name == rueidisLoc {
		l.onRueidis(tb, addr)
		return l
	}
	client := redis.NewClient(&redis.Options{Addr: addr, Dialer: l.wire.dial})
	l.close = func() { client.Close() }
	switch name {
	case ours:
		l.onLeasehold(tb, client, nil)
	case oursGlobal:
		l.onLeasehold(tb, client, &leasehold.Options{HandOver: -1})
	case byHand:
		l.lock = bareLock(client)
	case byHandPiped:
		pipeliner, err := client.AutoPipeline()
		if err != nil {
			tb.Fatal(err)
		}
		l.lock = bareLock(pipeliner)
		l.close = func() { pipeliner.Close(); client.Close() }
	case bsmLock:
		l.lock = bsmLocks(bsm.New(client))
	case redsyncLoc:
		l.lock = redsyncLocks(redsync.New(goredis.NewPool(client)))
	default:
		tb.Fatalf("no lock is called %q", name)
	}
	return l
}

func (l *locker) onLeasehold(tb testing.TB, client *redis.Client, opts *leasehold.Options) {
	d, err := redislock.New(client, nil)
	if err != nil {
		tb.Fatal(err)
	}
	locks, err := leasehold.New(d, opts)
	if err != nil {
		tb.Fatal(err)
	}
	l.lock = leaseholdLocks(locks)
	l.close = func() { locks.Close(); d.Close(); client.Close() }
}

func leaseholdLocks(locks *leasehold.Locker) lockFunc {
	return func(ctx context.Context, name string) (held, error) {
		lease, err := locks.Acquire(ctx, name)
		if err != nil {
			return held{}, err
		}
		return held{unlock: func() error { return lease.Release(context.Background()) }}, nil
	}
}

var compareAndDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// bareLock does not wait: only its uncontended use is measured.
func bareLock(client redis.Cmdable) lockFunc {
	return func(ctx context.Context, name string) (held, error) {
		name, token := "bare:"+name, rand.Text()
		set, err := client.SetNX(ctx, name, token, ttl).Result()
		if err != nil || !set {
			return held{}, errors.Join(err, ctx.Err(), errors.New("bare lock: not free"))
		}
		return held{unlock: func() error {
			n, err := compareAndDelete.Run(context.Background(), client, []string{name}, token).Int()
			return lostUnless(n == 1, err)
		}}, nil
	}
}

func bsmLocks(client *bsm.Client) lockFunc {
	retry := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
	return func(ctx context.Context, name string) (held, error) {
		for {
			lock, err := client.Obtain(ctx, "bsm:"+name, ttl, retry)
			gaveUp := errors.Is(err, bsm.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded)
			if gaveUp && ctx.Err() == nil {
				continue // it waits no longer than its TTL
			}
			if err != nil {
				return held{}, err
			}
			return held{
				unlock: func() error { return lock.Release(context.Background()) },
				renew:  func() error { return lock.Refresh(context.Background(), ttl, nil) },
			}, nil
		}
	}
}

func redsyncLocks(r *redsync.Redsync, opts ...redsync.Option) lockFunc {
	opts = append([]redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(1 << 30)}, opts...)
	return func(ctx context.Context, name string) (held, error) {
		m := r.NewMutex("redsync:"+name, opts...)
		if err := m.LockContext(ctx); err != nil {
			return held{}, err
		}
		return held{
			unlock: func() error { return lostUnless(m.UnlockContext(context.Background())) },
			renew:  func() error { return lostUnless(m.ExtendContext(context.Background())) },
		}, nil
	}
}

func (l *locker) onRueidis(tb testing.TB, addr string) {
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{addr},
			DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return l.wire.dial(ctx, "tcp", addr)
			},
		},
		KeyMajority: 1, KeyValidity: ttl, ExtendInterval: ttl / 3, NoLoopTracking: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	l.close = locks.Close
	l.lock = func(ctx context.Context, name string) (held, error) {
		// The end of its context would end the lock, too.
		waiting, cancel := context.WithCancel(context.Background())
		keep := context.AfterFunc(ctx, cancel)
		lease, unlock, err := locks.WithContext(waiting, name)
		if !keep() && err == nil {
			unlock()
			err = context.Cause(ctx)
		}
		if err != nil {
			cancel()
			return held{}, err
		}
		return held{unlock: func() error {
			err := lease.Err()
			unlock()
			cancel()
			return err
		}}, nil
	}
}

func lostUnless(held bool, err error) error {
	if err == nil && !held {
		err = errors.New("the lock was lost")
	}
	return err
}

// serverCPU is what the Redis at addr has used so far.
func serverCPU(tb testing.TB, addr string) time.Duration {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	info, err := client.InfoMap(context.Background(), "cpu").Result()
	if err != nil {
		tb.Fatal(err)
	}
	user, err1 := strconv.ParseFloat(info["CPU"]["used_cpu_user"], 64)
	sys, err2 := strconv.ParseFloat(info["CPU"]["used_cpu_sys"], 64)
	if err1 != nil || err2 != nil {
		tb.Fatal(err1, err2)
	}
	return time.Duration((user + sys) * float64(time.Second))
}

// A wire counts the commands that go out through its connections. The server's own count
// has those within scripts in it.
type wire struct{ commands atomic.Int64 }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return &countingConn{Conn: conn, wire: w, tail: [2]byte{'\r', '\n'}}, nil
}

type countingConn struct {
	net.Conn
	wire *wire
	tail [2]byte // what was written last
}

// Write counts the heads of commands. No argument here has a line end in it.
func (c *countingConn) Write(p []byte) (int, error) {
	head := []byte("\r\n*")
	seam := append(c.tail[:], p[:min(2, len(p))]...)
	c.wire.commands.Add(int64(bytes.Count(p, head) + bytes.Count(seam, head)))
	for _, last := range p[max(0, len(p)-2):] {
		c.tail = [2]byte{c.tail[1], last}
	}
	return c.Conn.Write(p)
}

func TestWireCountsCommands(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	go func() { _, _ = io.Copy(io.Discard, there) }() // ends with here
	w := &wire{}
	conn := &countingConn{Conn: here, wire: w, tail: [2]byte{'\r', '\n'}}
	for _, part := range []string{"*1\r\n$4\r\nPING\r\n", "*1\r\n$4\r\nPING\r", "\n*1\r\n$4\r\nPI", "NG\r\n", "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n"} {
		if _, err := conn.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.commands.Load(); n != 5 {
		t.Errorf("%d commands were counted, want 5", n)
	}
}
