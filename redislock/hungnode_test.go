package redislock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// hangNode stops the node that has a name, and tells which other names it has. The cluster
// goes on without it.
func hangNode(t testing.TB, nodes []*servers.Redis, name string) (with func(other string) bool, resume func()) {
	t.Helper()
	var addrs []string
	for _, n := range nodes {
		n.Must(t, "CONFIG", "SET", "cluster-node-timeout", "60000")
		addrs = append(addrs, n.Addr())
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { c.Close() })
	home := func(name string) string {
		node, err := c.MasterForKey(context.Background(), "lock:"+name)
		if err != nil {
			t.Fatal(err)
		}
		return node.Options().Addr
	}
	hung := home(name)
	for _, n := range nodes {
		if n.Addr() == hung {
			resume = n.Pause()
		}
	}
	return func(other string) bool { return home(other) == hung }, resume
}

// A node of a cluster that hangs ends the leases on its own slots and no others, and calls to
// the other nodes take no longer.
func TestHungClusterNodeSparesTheOthers(t *testing.T) {
	t.Parallel()
	const ttl, leases = 6 * time.Second, 240
	nodes := servers.StartCluster(t, 3)
	var addrs []string
	for _, n := range nodes {
		n.Must(t, "CONFIG", "SET", "cluster-node-timeout", "60000") // the cluster goes on without it
		addrs = append(addrs, n.Addr())
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { c.Close() })
	least := ttl
	l := lockerOn(t, redisDriverOf(t, c, nil), leasehold.Options{TTL: ttl})
	var here, elsewhere []*leasehold.Lease
	for i := range leases {
		name := fmt.Sprint("lease-", i)
		lease, err := l.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		node, err := c.MasterForKey(t.Context(), "lock:"+name)
		if err != nil {
			t.Fatal(err)
		}
		if node.Options().Addr == nodes[1].Addr() {
			here = append(here, lease)
		} else {
			elsewhere = append(elsewhere, lease)
		}
	}
	defer nodes[1].Pause()()
	slowest := time.Duration(0)
	for start := time.Now(); time.Since(start) < 3*ttl; {
		for _, lease := range elsewhere {
			least = min(least, time.Until(lease.Deadline()))
		}
		began := time.Now()
		lease, err := l.TryAcquire(t.Context(), elsewhere[0].Name()+"{"+"lock:"+elsewhere[0].Name()+"}")
		if err == nil {
			slowest = max(slowest, time.Since(began))
			err = lease.Release(context.Background())
		}
		if err != nil {
			t.Logf("a call to a node that serves: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	lost := 0
	for _, lease := range elsewhere {
		if lease.Context().Err() != nil {
			lost++
		}
	}
	for _, lease := range here {
		if lease.Context().Err() == nil {
			t.Errorf("%s is live, and its node hangs", lease.Name())
			break
		}
	}
	t.Logf("%d leases elsewhere, %d on the hung node; the least that was left elsewhere: %v; slowest Acquire there: %v", len(elsewhere), len(here), least, slowest)
	if lost > 0 {
		t.Errorf("%d of %d leases elsewhere were lost", lost, len(elsewhere))
	}
	if slowest > time.Second {
		t.Errorf("an Acquire elsewhere took %v", slowest)
	}
}
