package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A move is a slot on its way from one node of a cluster to another.
type move struct {
	from, to     *servers.Redis
	slot         string
	fromID, toID string
}

func startMove(t *testing.T, nodes []*servers.Redis, key string) move {
	t.Helper()
	from, to := owner(t, nodes, key)
	m := move{
		from: from, to: to, slot: from.Must(t, "CLUSTER", "KEYSLOT", key),
		fromID: from.Must(t, "CLUSTER", "MYID"), toID: to.Must(t, "CLUSTER", "MYID"),
	}
	to.Must(t, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.fromID)
	from.Must(t, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.toID)
	return m
}

// key moves one key.
func (m move) key(t *testing.T, key string) {
	t.Helper()
	if reply := m.from.Must(t, "MIGRATE", "127.0.0.1", fmt.Sprint(m.to.Port), key, "0", "5000"); reply != "OK" {
		t.Fatalf("MIGRATE %q: %s", key, reply)
	}
}

func (m move) end(t *testing.T) {
	t.Helper()
	m.to.Must(t, "CLUSTER", "SETSLOT", m.slot, "NODE", m.toID)
	m.from.Must(t, "CLUSTER", "SETSLOT", m.slot, "NODE", m.toID)
}

// The nodes of a cluster name each other by IPv6 addresses, which they write without brackets.
func TestRedisClusterOnIPv6(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6")
	} else {
		l.Close()
	}
	nodes := servers.StartCluster(t, 3)
	for _, r := range nodes {
		r.Must(t, "CONFIG", "SET", "cluster-announce-ip", "::1")
	}
	for _, r := range nodes {
		within(t, 20*time.Second, "all have such addresses", func() bool {
			return strings.Count(r.Must(t, "CLUSTER", "SLOTS"), "::1") == len(nodes)
		})
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
	t.Cleanup(func() { c.Close() })
	claim := lateClaim(t, redisDriverOf(t, c, nil), "a", "a", time.Minute)
	mustTry(t, claim)
	m := startMove(t, nodes, "lock:a")
	m.key(t, "lock:a")
	if _, err := claim.Renew(t.Context(), time.Minute); err != nil {
		t.Errorf("Renew of what has moved: %v", err)
	}
}

// A slot may take long to move, key by key: a lease in it stays, wherever its keys are.
func TestRedisClusterSlowMigration(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	for what, leases := range map[string]int{"one": 1, "several": 3} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			nodes := servers.StartCluster(t, 3)
			c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
			t.Cleanup(func() { c.Close() })
			l := lockerOn(t, redisDriverOf(t, c, nil), leasehold.Options{TTL: ttl})
			var held []*leasehold.Lease
			for i := range leases {
				lease, err := l.Acquire(t.Context(), fmt.Sprint("{slow}", i))
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, lease)
			}
			stay := func(after string) {
				t.Helper()
				for i, lease := range held {
					if err := lease.Extend(t.Context(), ttl); err != nil {
						t.Errorf("Extend of lease %d after %s: %v", i, after, err)
					}
				}
				beyond := time.Now().Add(2 * ttl) // what was renewed a TTL from now has such a deadline
				for i, lease := range held {
					within(t, 4*ttl, fmt.Sprintf("lease %d renewed after %s", i, after), func() bool {
						return lease.Deadline().After(beyond) || lease.Context().Err() != nil
					})
					if err := context.Cause(lease.Context()); err != nil {
						t.Fatalf("lease %d after %s: %v", i, after, err)
					}
				}
			}
			m := startMove(t, nodes, "lock:{slow}0")
			waited := make(chan error, 1)
			go func() { // the keys of a free lock are nowhere
				_, err := l.Acquire(t.Context(), "{slow}free", leasehold.Wait(time.Minute))
				waited <- err
			}()
			stay("the beginning")
			for i := range held {
				m.key(t, fmt.Sprintf("lock:\x1ff{slow}lock:{slow}%d", i))
			}
			stay("the histories have moved")
			for i := range held {
				m.key(t, fmt.Sprintf("lock:{slow}%d", i))
			}
			stay("the locks have moved")
			m.end(t)
			stay("the end")
			if err := <-waited; err != nil {
				t.Errorf("who waited meanwhile: %v", err)
			}
			for i, lease := range held {
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("lease %d: %v", i, err)
				}
			}
		})
	}
}

// A lease that ends later than asked, as after the server's clock has gone back, is shortened when its slot has
// moved. It is renewed meanwhile.
func TestRedisClusterMigrationOfALongerLease(t *testing.T) {
	t.Parallel()
	nodes := servers.StartCluster(t, 3)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
	t.Cleanup(func() { c.Close() })
	d := redisDriverOf(t, c, nil)
	claim := lateClaim(t, d, "n", "owner", time.Minute)
	mustTry(t, claim)
	m := startMove(t, nodes, "lock:n")
	m.key(t, companion("f", "n"))
	m.from.Must(t, "PEXPIRE", "lock:n", "3600000")
	if g, err := claim.Renew(t.Context(), time.Minute); err != nil || g.TTL != time.Minute {
		t.Errorf("renewed for %v while its keys are in two places: %v", g.TTL, err)
	}
	m.key(t, "lock:n")
	m.end(t)
	if _, err := claim.Renew(t.Context(), time.Minute); err != nil || leftOf(t, m.to, "lock:n") > time.Minute {
		t.Errorf("%v left of a minute after the move: %v", leftOf(t, m.to, "lock:n"), err)
	}
}

// Why a lease was ended is told while its slot moves, too.
func TestRedisClusterMigrationTellsTheReason(t *testing.T) {
	t.Parallel()
	nodes := servers.StartCluster(t, 3)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
	t.Cleanup(func() { c.Close() })
	d := redisDriverOf(t, c, nil)
	claim := lateClaim(t, d, "n", "owner", time.Minute)
	mustTry(t, claim)
	if err := d.Evict(t.Context(), "n", "owner", "stuck"); err != nil {
		t.Fatal(err)
	}
	startMove(t, nodes, "lock:n")
	if _, err := claim.Renew(t.Context(), time.Minute); !errors.Is(err, driver.ErrEvicted) {
		t.Errorf("Renew: %v; want the reason", err)
	}
}
