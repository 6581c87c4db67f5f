package redislock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// With Replicas, a grant that no replica has does not count, and a failover loses none.
func TestRedisReplicas(t *testing.T) {
	t.Parallel()
	s := servers.StartSentinel(t)
	failover := func() *redis.Client {
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Master, SentinelAddrs: s.Sentinels})
		t.Cleanup(func() { c.Close() })
		return c
	}
	d := redisDriverOf(t, failover(), &redislock.Options{Replicas: 1})
	l := lockerOn(t, d, leasehold.Options{TTL: 20 * time.Second})
	other := lockerOn(t, redisDriverOf(t, failover(), nil), leasehold.Options{TTL: 20 * time.Second})
	if level, text := servers.Found(t, redisDriverOf(t, failover(), nil), driver.AboutReplicas); level != driver.Weak || !strings.Contains(text, "Replicas") {
		t.Errorf("Check of a primary with replicas: %v, %q; want a warning", level, text)
	}
	if level, text := servers.Found(t, d, driver.AboutReplicas); level != driver.Fine {
		t.Errorf("Check with Replicas set: %v, %q", level, text)
	}

	primary := s.Primary(t)
	var resumes []func()
	for _, r := range s.Nodes {
		if r != primary {
			resumes = append(resumes, r.Pause())
		}
	}
	// Replicas that are stopped acknowledge nothing.
	if lease, err := l.Acquire(t.Context(), "r"); !errors.Is(err, redislock.ErrReplicas) {
		t.Errorf("Acquire without replicas: %v, %v; want ErrReplicas", lease, err)
	}
	if got := primary.Must(t, "EXISTS", "lock:r"); got != "0" {
		t.Error("the grant without replicas is left behind")
	}
	if lease, err := other.Acquire(t.Context(), "r"); err != nil {
		t.Errorf("Acquire with Replicas 0: %v", err)
	} else if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	for _, resume := range resumes {
		resume()
	}
	var lease *leasehold.Lease
	var err error
	for end := time.Now().Add(20 * time.Second); ; {
		if lease, err = l.Acquire(t.Context(), "r"); err == nil {
			break
		}
		if !errors.Is(err, redislock.ErrReplicas) || time.Now().After(end) {
			t.Fatalf("Acquire with replicas back: %v", err)
		}
	}
	primary.Kill()
	// The new primary has the grant: nobody else gets it, and its holder goes on.
	for end := time.Now().Add(40 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if s.Primary(t) != primary {
			_, err := other.TryAcquire(t.Context(), "r")
			if errors.Is(err, leasehold.ErrBusy) {
				break
			}
			if err == nil {
				t.Fatal("two holders after a failover")
			}
		}
		if time.Now().After(end) {
			t.Fatal("no failover")
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release after the failover: %v", err)
	}
	token := lease.Token()
	if lease, err = other.Acquire(t.Context(), "r"); err != nil {
		t.Fatalf("Acquire after the failover: %v", err)
	}
	if lease.Token() <= token {
		t.Errorf("token %d after the failover, %d before", lease.Token(), token)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// A lease that the server does not have any more is told as lost, whether replicas acknowledge or not.
func TestRedisLostWithoutReplicas(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	replica := servers.StartRedis(t, "--replicaof", "127.0.0.1", fmt.Sprint(r.Port))
	d := redisDriverOf(t, redisClient(t, r), &redislock.Options{Replicas: 1})
	var renewals []driver.Renewal
	for i := range 3 {
		c := lateClaim(t, d, fmt.Sprint("n", i), fmt.Sprint("owner", i), time.Minute)
		within(t, 20*time.Second, "the replica acknowledges", func() bool {
			_, err := c.Try(t.Context())
			return err == nil
		})
		renewals = append(renewals, driver.Renewal{Claim: c, TTL: time.Minute})
	}
	replica.Kill()
	r.Must(t, "DEL", "lock:n1")
	d.RenewAll(t.Context(), renewals)
	for i, want := range []error{redislock.ErrReplicas, driver.ErrLost, redislock.ErrReplicas} {
		if err := renewals[i].Err; !errors.Is(err, want) {
			t.Errorf("renewal %d: %v; want %v", i, err, want)
		}
	}
}
