package redislock_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// eitherWay calls test with a driver of each kind on one server.
func eitherWay(t *testing.T, server *redis.Options, test func(t *testing.T, d *redislock.Driver)) {
	t.Run("Open", func(t *testing.T) {
		d, err := redislock.Open(server, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		test(t, d)
	})
	t.Run("New", func(t *testing.T) {
		client := redis.NewClient(server)
		defer client.Close()
		d, err := redislock.New(client, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		test(t, d)
	})
}

// tryAll has n leases granted, all asked for at once.
func tryAll(t *testing.T, d driver.Driver, n int) []driver.Claim {
	t.Helper()
	claims := make([]driver.Claim, n)
	var calls sync.WaitGroup
	for i := range claims {
		claims[i] = lateClaim(t, d, fmt.Sprintf("n-%03d", i), rand.Text(), time.Minute)
		calls.Go(func() {
			if _, err := claims[i].Try(t.Context()); err != nil {
				t.Errorf("try: %v", err)
			}
		})
	}
	calls.Wait()
	return claims
}

func renewAll(ctx context.Context, d *redislock.Driver, claims []driver.Claim) []driver.Renewal {
	renewals := make([]driver.Renewal, len(claims))
	for i, c := range claims {
		renewals[i] = driver.Renewal{Claim: c, TTL: time.Minute}
	}
	d.RenewAll(ctx, renewals)
	return renewals
}

func releaseAll(t *testing.T, claims []driver.Claim) {
	t.Helper()
	var calls sync.WaitGroup
	for _, c := range claims {
		calls.Go(func() {
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
	calls.Wait()
}

// A server of a cluster, or a proxy in front of several, serves no command with keys of two
// slots. Who reaches it by a client of one server has leases nevertheless, as many as wanted.
func TestRedisClusterByAClientOfOneServer(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, "--cluster-enabled", "yes")
	r.Must(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	within(t, 10*time.Second, "the cluster is up", func() bool {
		_, err := r.Do("SET", "k", "v")
		return err == nil
	})
	eitherWay(t, &redis.Options{Addr: r.Addr()}, func(t *testing.T, d *redislock.Driver) {
		claims := tryAll(t, d, 200)
		for _, renewal := range renewAll(t.Context(), d, claims) {
			if renewal.Err != nil {
				t.Fatalf("renew: %v", renewal.Err)
			}
		}
		releaseAll(t, claims)
	})
}

// A name that the server's user may not touch any more takes no other lease with it.
func TestRedisOneNameIsForbidden(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	eitherWay(t, &redis.Options{Addr: r.Addr(), Username: "joe", Password: "pw"}, func(t *testing.T, d *redislock.Driver) {
		r.Must(t, "ACL", "SETUSER", "joe", "on", ">pw", "+@all", "&*", "~*")
		claims := tryAll(t, d, 20)
		allowed := []string{"ACL", "SETUSER", "joe", "resetkeys"}
		for i := range len(claims) - 1 {
			allowed = append(allowed, fmt.Sprintf("~*n-%03d*", i))
		}
		r.Must(t, allowed...)
		for i, renewal := range renewAll(t.Context(), d, claims) {
			if last := i == len(claims)-1; last == (renewal.Err == nil) {
				t.Errorf("renew %d of %d: %v", i+1, len(claims), renewal.Err)
			}
		}
		r.Must(t, "ACL", "SETUSER", "joe", "~*")
		releaseAll(t, claims)
	})
}
