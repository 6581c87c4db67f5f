package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// withoutFailover is a client of a cluster that goes on without a node that hangs.
func withoutFailover(t testing.TB, nodes []*servers.Redis, user string) *redis.ClusterClient {
	t.Helper()
	options := redis.ClusterOptions{Username: user, Password: user}
	for _, n := range nodes {
		n.Must(t, "CONFIG", "SET", "cluster-node-timeout", "60000")
		options.Addrs = append(options.Addrs, n.Addr())
	}
	c := redis.NewClusterClient(&options)
	t.Cleanup(func() { c.Close() })
	return c
}

// homeOf is the address of the node that has the lock.
func homeOf(t testing.TB, c *redis.ClusterClient, name string) string {
	t.Helper()
	node, err := c.MasterForKey(context.Background(), "lock:"+name)
	if err != nil {
		t.Fatal(err)
	}
	return node.Options().Addr
}

// acquireByNode has so many leases, by the address of the node.
func acquireByNode(t testing.TB, l *leasehold.Locker, c *redis.ClusterClient, n int) map[string][]*leasehold.Lease {
	t.Helper()
	all := make(map[string][]*leasehold.Lease)
	for i := range n {
		lease, err := l.Acquire(t.Context(), fmt.Sprint("lease-", i))
		if err != nil {
			t.Fatal(err)
		}
		home := homeOf(t, c, lease.Name())
		all[home] = append(all[home], lease)
	}
	return all
}

// hangNode stops the node that has a name, and tells which other names it has. The cluster
// goes on without it.
func hangNode(t testing.TB, nodes []*servers.Redis, name string) (with func(other string) bool, resume func()) {
	t.Helper()
	c := withoutFailover(t, nodes, "")
	home := func(name string) string { return homeOf(t, c, name) }
	hung := home(name)
	for _, n := range nodes {
		if n.Addr() == hung {
			resume = n.Pause()
		}
	}
	return func(other string) bool { return home(other) == hung }, resume
}

// A node of a cluster that hangs ends the leases on its own slots and no others, and calls to
// the other nodes take no longer. A server that has nothing to do with the cluster shows how long the machine itself takes,
// and whether it is too slow to keep leases.
func TestHungClusterNodeSparesTheOthers(t *testing.T) {
	t.Parallel()
	const ttl, leases = 10 * time.Second, 240
	nodes := servers.StartCluster(t, 3)
	c := withoutFailover(t, nodes, "")
	least := ttl
	l := lockerOn(t, redisDriverOf(t, c, nil), leasehold.Options{TTL: ttl})
	apart := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr()})
	t.Cleanup(func() { apart.Close() })
	m := lockerOn(t, redisDriverOf(t, apart, nil), leasehold.Options{TTL: ttl})
	of := acquireByNode(t, l, c, leases)
	here := of[nodes[1].Addr()]
	elsewhere := slices.Concat(of[nodes[0].Addr()], of[nodes[2].Addr()])
	var machine []*leasehold.Lease
	for i := range elsewhere {
		lease, err := m.Acquire(t.Context(), fmt.Sprint("lease-", i))
		if err != nil {
			t.Fatal(err)
		}
		machine = append(machine, lease)
	}
	defer nodes[1].Pause()()
	var slowest, slowestApart time.Duration
	for start := time.Now(); time.Since(start) < 2*ttl; time.Sleep(50 * time.Millisecond) {
		for _, lease := range elsewhere {
			least = min(least, time.Until(lease.Deadline()))
		}
		var both sync.WaitGroup
		both.Go(func() { slowestApart = max(slowestApart, acquires(t, m, "next")) })
		both.Go(func() {
			slowest = max(slowest, acquires(t, l, elsewhere[0].Name()+"{"+"lock:"+elsewhere[0].Name()+"}"))
		})
		both.Wait()
	}
	for _, lease := range here {
		select {
		case <-lease.Context().Done():
		case <-time.After(time.Minute):
			t.Fatalf("%s is live, and its node hangs", lease.Name())
		}
	}
	t.Logf("%d leases elsewhere, %d on the hung node; the least that was left elsewhere: %v; slowest Acquire there: %v, apart: %v",
		len(elsewhere), len(here), least, slowest, slowestApart)
	lost, lostApart := ended(elsewhere), ended(machine)
	switch {
	case lostApart > 0:
		t.Skipf("the machine is too slow to keep leases: %d of %d were lost apart, %d elsewhere", lostApart, len(machine), lost)
	case lost > 0:
		t.Errorf("%d of %d leases elsewhere were lost", lost, len(elsewhere))
	}
	if slowest > time.Second+4*slowestApart {
		t.Errorf("an Acquire elsewhere took %v, apart at most %v", slowest, slowestApart)
	}
}

// acquires returns how long TryAcquire takes, 0 if it fails.
func acquires(t testing.TB, l *leasehold.Locker, name string) (took time.Duration) {
	began := time.Now()
	lease, err := l.TryAcquire(t.Context(), name)
	if err == nil {
		took = time.Since(began)
		err = lease.Release(context.Background())
	}
	if err != nil {
		t.Logf("a call to a node that serves: %v", err)
	}
	return took
}

// ended counts the leases that have ended.
func ended(leases []*leasehold.Lease) (n int) {
	for _, lease := range leases {
		if lease.Context().Err() != nil {
			n++
		}
	}
	return n
}

// A lease that was evicted while nobody listened is found lost when the driver listens again, though
// a node of the cluster hangs on which others are.
func TestEvictionIsFoundBesideAHungNode(t *testing.T) {
	t.Parallel()
	nodes := servers.StartCluster(t, 3)
	everywhere := func(command string) {
		for _, n := range nodes {
			n.Must(t, strings.Fields(command)...)
		}
	}
	everywhere("ACL SETUSER deaf on >deaf ~* &* +@all")
	c := withoutFailover(t, nodes, "deaf")
	l := lockerOn(t, redisDriverOf(t, c, nil), leasehold.Options{TTL: time.Hour})
	of := acquireByNode(t, l, c, 60)
	listens := func(n *servers.Redis) bool {
		return strings.Contains(n.Must(t, "PUBSUB", "CHANNELS", "leasehold:*"), "leasehold:")
	}
	home := -1
	for end := time.Now().Add(locktest.Margin); home < 0; time.Sleep(10 * time.Millisecond) {
		if home = slices.IndexFunc(nodes, listens); time.Now().After(end) {
			t.Fatal("the driver does not listen")
		}
	}
	everywhere("ACL SETUSER deaf -subscribe")
	everywhere("CLIENT KILL TYPE pubsub")
	evicted := of[nodes[home].Addr()][0]
	operator := lockerOn(t, redisDriverOf(t, withoutFailover(t, nodes, ""), nil), leasehold.Options{})
	if err := operator.Evict(t.Context(), evicted.Name(), evicted.Owner(), ""); err != nil {
		t.Fatal(err)
	}
	hung := nodes[(home+1)%len(nodes)]
	defer hung.Pause()()
	nodes[home].Must(t, "ACL", "SETUSER", "deaf", "+subscribe")
	select {
	case <-evicted.Context().Done():
	case <-time.After(5 * locktest.Margin):
		t.Errorf("the holder does not know, beside %d leases on the node that hangs", len(of[hung.Addr()]))
	}
}

// While a slot moves to a node that hangs, the leases whose keys are there already keep none of the others
// waiting, which the former node renews still.
func TestSlotOnItsWayToAHungNode(t *testing.T) {
	t.Parallel()
	const leases, moved = 200, 150
	nodes := servers.StartCluster(t, 3)
	d := redisDriverOf(t, withoutFailover(t, nodes, ""), nil)
	var renewals []driver.Renewal
	for i := range leases {
		c := lateClaim(t, d, fmt.Sprint("{slot}", i), "owner", time.Minute)
		mustTry(t, c)
		renewals = append(renewals, driver.Renewal{Claim: c, TTL: time.Minute})
	}
	m := startMove(t, nodes, "lock:{slot}0")
	for i := range moved {
		m.key(t, fmt.Sprint("lock:{slot}", i))
	}
	defer m.to.Pause()()
	ctx, cancel := context.WithTimeout(t.Context(), locktest.Margin)
	defer cancel()
	d.RenewAll(ctx, renewals)
	for i, r := range renewals {
		if (r.Err != nil) != (i < moved) {
			t.Fatalf("renewal %d, of which the first %d are on the node that hangs: %v", i, moved, r.Err)
		}
	}
}
