package redis_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/redislock"
)

// The locks that are compared. All have their defaults but for what is said here.
const (
	ours         = "leasehold"
	oursGlobal   = "leasehold, HandOver -1"
	oursOnTheirs = "leasehold, New"     // on a client that the user has
	byHand       = "SET NX PX + script" // what one writes by hand
	byHandPiped  = "… auto-pipelined"   // the same on go-redis' AutoPipeline
	bsmLock      = "bsm/redislock"      // retries every 100 ms, as in its README
	redsyncLoc   = "redsync"            // retries without limit
	rueidisLoc   = "rueidislock"        // with one key for a lock instead of three
)

const polling = 100 * time.Millisecond

var engine = contest.Engine{Name: "Redis", Competitors: []contest.Competitor{
	{Name: ours, Open: opened(nil)},
	{Name: oursGlobal, Open: opened(&leasehold.Options{HandOver: -1})},
	{Name: oursOnTheirs, Open: onGoRedis(func(c *redis.Client) (*contest.Locker, error) {
		d, err := redislock.New(c, nil)
		if err != nil {
			return nil, err
		}
		return contest.Leasehold(d, nil)
	})},
	{Name: byHand, Open: onGoRedis(func(c *redis.Client) (*contest.Locker, error) {
		return &contest.Locker{Lock: bareLock(c)}, nil
	})},
	{Name: byHandPiped, Open: onGoRedis(bareLockPiped)},
	{Name: bsmLock, Polls: polling, Open: onGoRedis(func(c *redis.Client) (*contest.Locker, error) {
		return &contest.Locker{Lock: bsmLocks(bsm.New(c))}, nil
	})},
	{Name: redsyncLoc, Polls: polling, Open: onGoRedis(func(c *redis.Client) (*contest.Locker, error) {
		return &contest.Locker{Lock: redsyncLocks(redsync.New(goredis.NewPool(c)))}, nil
	})},
	{Name: rueidisLoc, Open: onRueidis},
}}

// opened opens Leasehold with connections of its own.
func opened(opts *leasehold.Options) func(addr string) (*contest.Locker, error) {
	return func(addr string) (*contest.Locker, error) {
		w := &wire{}
		d, err := redislock.Open(&redis.Options{Addr: addr, Dialer: w.dial}, nil)
		if err != nil {
			return nil, err
		}
		l, err := contest.Leasehold(d, opts)
		if err != nil {
			return nil, err
		}
		l.Commands = w.commands.Load
		return l, nil
	}
}

// onGoRedis opens a lock on a client of its own, which ends with it.
func onGoRedis(open func(*redis.Client) (*contest.Locker, error)) func(addr string) (*contest.Locker, error) {
	return func(addr string) (*contest.Locker, error) {
		w := &wire{}
		client := redis.NewClient(&redis.Options{Addr: addr, Dialer: w.dial})
		l, err := open(client)
		if err != nil {
			return nil, err
		}
		end := l.Close
		l.Commands = w.commands.Load
		l.Close = func() {
			if end != nil {
				end()
			}
			client.Close()
		}
		return l, nil
	}
}

func bareLockPiped(client *redis.Client) (*contest.Locker, error) {
	pipeliner, err := client.AutoPipeline()
	if err != nil {
		return nil, err
	}
	return &contest.Locker{Lock: bareLock(pipeliner), Close: func() { pipeliner.Close() }}, nil
}

var compareAndDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// bareLock does not wait: only its uncontended use is measured.
func bareLock(client redis.Cmdable) contest.LockFunc {
	return func(ctx context.Context, name string) (contest.Held, error) {
		name, token := "bare:"+name, rand.Text()
		set, err := client.SetNX(ctx, name, token, contest.TTL).Result()
		if err != nil || !set {
			return contest.Held{}, errors.Join(err, ctx.Err(), errors.New("bare lock: not free"))
		}
		return contest.Held{Unlock: func() error {
			n, err := compareAndDelete.Run(context.Background(), client, []string{name}, token).Int()
			return contest.LostUnless(n == 1, err)
		}}, nil
	}
}

func bsmLocks(client *bsm.Client) contest.LockFunc {
	retry := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
	return func(ctx context.Context, name string) (contest.Held, error) {
		for {
			lock, err := client.Obtain(ctx, "bsm:"+name, contest.TTL, retry)
			gaveUp := errors.Is(err, bsm.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded)
			if gaveUp && ctx.Err() == nil {
				continue // it waits no longer than its TTL
			}
			if err != nil {
				return contest.Held{}, err
			}
			return contest.Held{
				Unlock: func() error { return lock.Release(context.Background()) },
				Renew:  func() error { return lock.Refresh(context.Background(), contest.TTL, nil) },
			}, nil
		}
	}
}

func redsyncLocks(r *redsync.Redsync, opts ...redsync.Option) contest.LockFunc {
	opts = append([]redsync.Option{redsync.WithExpiry(contest.TTL), redsync.WithTries(1 << 30)}, opts...)
	return func(ctx context.Context, name string) (contest.Held, error) {
		m := r.NewMutex("redsync:"+name, opts...)
		if err := m.LockContext(ctx); err != nil {
			return contest.Held{}, err
		}
		return contest.Held{
			Unlock: func() error { return contest.LostUnless(m.UnlockContext(context.Background())) },
			Renew:  func() error { return contest.LostUnless(m.ExtendContext(context.Background())) },
		}, nil
	}
}

func onRueidis(addr string) (*contest.Locker, error) {
	w := &wire{}
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{addr},
			DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return w.dial(ctx, "tcp", addr)
			},
		},
		KeyMajority: 1, KeyValidity: contest.TTL, ExtendInterval: contest.TTL / 3, NoLoopTracking: true,
	})
	if err != nil {
		return nil, err
	}
	return &contest.Locker{Lock: rueidisLocks(locks), Commands: w.commands.Load, Close: locks.Close}, nil
}

func rueidisLocks(locks rueidislock.Locker) contest.LockFunc {
	return func(ctx context.Context, name string) (contest.Held, error) {
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
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error {
			err := lease.Err()
			unlock()
			cancel()
			return err
		}}, nil
	}
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
