package migrate

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/serve"
)

func withRedsync(ctx context.Context, client *redis.Client, ship func(ctx context.Context) error) (err error) {
	mutex := redsync.New(goredis.NewPool(client)).NewMutex("orders/42", redsync.WithExpiry(8*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer func() {
		if ok, unlocked := mutex.UnlockContext(ctx); !ok {
			err = errors.Join(err, unlocked)
		}
	}()
	return ship(ctx) // for 8 s at most: after that another may be let in
}

func withBSM(ctx context.Context, client *redis.Client, ship func(ctx context.Context) error) (err error) {
	lock, err := bsm.New(client).Obtain(ctx, "orders/42", 8*time.Second, &bsm.Options{
		RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx)) }()
	return ship(ctx) // for 8 s at most: after that another may be let in
}

// onRedis opens our lock on the keys that the others have. Close both at the program's end.
func onRedis(server *redis.Options) (driver.Driver, *leasehold.Locker, error) {
	d, err := redislock.Open(server, &redislock.Options{
		NoPrefix: true,                   // names are keys, as before
		Rest:     300 * time.Millisecond, // until the last service of before has gone
	})
	if err != nil {
		return nil, nil, err
	}
	locks, err := leasehold.New(d, nil)
	return d, locks, err
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := &redis.Options{Addr: servers.StartRedis(t).Addr()}
	client := redis.NewClient(server)
	t.Cleanup(func() { client.Close() })
	locks := opened(t)(onRedis(server))
	ours := inGo(func(ctx context.Context, ship func(context.Context) error) error {
		return withLeasehold(ctx, locks, ship)
	})
	for name, with := range map[string]func(context.Context, *redis.Client, func(context.Context) error) error{
		"redsync": withRedsync, "bsm": withBSM,
	} {
		t.Run(name, func(t *testing.T) {
			together(t, map[string]program{
				"before": inGo(func(ctx context.Context, ship func(context.Context) error) error {
					return with(ctx, client, ship)
				}),
				"after": ours,
			})
		})
	}
}

// redis-py's Lock, the client of our service in its place, and a program in Go.
func TestRedisPy(t *testing.T) {
	t.Parallel()
	python := servers.NeedPython(t, "redis")
	server := &redis.Options{Addr: servers.StartRedis(t).Addr()}
	d, locks, err := onRedis(server)
	opened(t)(d, locks, err)
	service, err := serve.New(d, nil) // leasehold serve, on the same keys
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { service.Close() })
	front := httptest.NewServer(service)
	t.Cleanup(front.Close)
	clients, err := filepath.Abs("../../clients/python/src")
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	together(t, map[string]program{
		"before": command(t, python, "testdata/before.py", host, port),
		"after":  command(t, "env", "PYTHONPATH="+clients, python, "testdata/after.py", front.URL),
		"after, in Go": inGo(func(ctx context.Context, ship func(context.Context) error) error {
			return withLeasehold(ctx, locks, ship)
		}),
	})
}
