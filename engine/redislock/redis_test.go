package redislock_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite.
func TestMain(m *testing.M) {
	if addr, isHolder := os.LookupEnv(holderEnv); isHolder {
		if err := hold(addr); err != nil {
			fmt.Fprintln(os.Stderr, "holder:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", "7") // the tests mostly wait; it exists, and the command line overrides it
	locktest.Main(m, openRedisAddress)
}

func init() { redis.SetLogger(silent{}) } // servers that are down are part of the tests

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// redisDriver closes its client too.
type redisDriver struct {
	*redislock.Driver
	client redis.UniversalClient
}

func (d redisDriver) Close() error {
	err := d.Driver.Close()
	if closed := d.client.Close(); err == nil {
		err = closed
	}
	return err
}

func onClient(client redis.UniversalClient) (driver.Driver, error) {
	d, err := redislock.New(client, nil)
	if err != nil {
		return nil, err
	}
	return redisDriver{d, client}, nil
}

// openRedisAddress opens what redisAddress describes: KIND,ADDR,ADDR…
func openRedisAddress(address string) (driver.Driver, error) {
	kind, rest, _ := strings.Cut(address, ",")
	addrs := strings.Split(rest, ",")
	switch kind {
	case "single":
		return redislock.Open(&redis.Options{Addr: addrs[0]}, nil)
	case "sentinel":
		return onClient(redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "mymaster", SentinelAddrs: addrs}))
	case "cluster":
		return onClient(redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs}))
	}
	return nil, fmt.Errorf("no Redis of kind %q", kind)
}

func redisHarness(address string, pause func() []*servers.Process) locktest.Harness {
	return locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := openRedisAddress(address)
			if err != nil {
				t.Fatalf("open %s: %v", address, err)
			}
			return d
		},
		Address: address,
		Pause:   func(testing.TB) (resume func()) { return servers.PauseAll(pause()) },
	}
}

// flushCases are those of the suite that lose the state: Redis tells no holder of that,
// so that they hear of it from the next renewal.
func flushCases(t *testing.T, h locktest.Harness, flush func()) {
	h.NoLossNotice = true
	h.FlushState = func(testing.TB) { flush() }
	for _, c := range locktest.Cases() {
		if c.Needs&locktest.NeedFlushState != 0 {
			t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
		}
	}
}

func TestRedisConformance(t *testing.T) { apart.Run(t, redisConformance) }

func redisConformance(t *testing.T) {
	r := servers.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	h := redisHarness("single,"+r.Addr(), func() []*servers.Process { return []*servers.Process{r.Process} })
	h.Restart = func(t testing.TB) {
		r.Kill()
		r.Start(t)
	}
	locktest.Run(t, h)
	flushCases(t, h, func() { r.Must(t, "FLUSHALL") })
}

// clientCall is how many goroutines a call through a client of the caller's takes: the one
// that waits, one that carries the call, and one of go-redis that connects.
const clientCall = 3

func TestRedisSentinelConformance(t *testing.T) {
	servers.Long(t, "the suite runs on one server")
	apart.Run(t, redisSentinelConformance)
}

func redisSentinelConformance(t *testing.T) {
	s := servers.StartSentinel(t)
	h := redisHarness("sentinel,"+strings.Join(s.Sentinels, ","), nil)
	h.Pause = nil // that makes a failover, which is a test of its own
	h.CallGoroutines = clientCall
	locktest.Run(t, h)
	flushCases(t, h, func() { s.Primary(t).Must(t, "FLUSHALL") })
}

func TestRedisClusterConformance(t *testing.T) {
	servers.Long(t, "the suite runs on one server")
	apart.Run(t, redisClusterConformance)
}

func redisClusterConformance(t *testing.T) {
	nodes := servers.StartCluster(t, 3)
	var addrs []string
	var processes []*servers.Process
	for _, r := range nodes {
		addrs, processes = append(addrs, r.Addr()), append(processes, r.Process)
	}
	h := redisHarness("cluster,"+strings.Join(addrs, ","), func() []*servers.Process { return processes })
	h.CallGoroutines = clientCall
	h.Hang = func(t testing.TB, name string) (with func(string) bool, resume func()) {
		return hangNode(t, nodes, name)
	}
	locktest.Run(t, h)
	flushCases(t, h, func() {
		for _, r := range nodes {
			r.Must(t, "FLUSHALL")
		}
	})
}

// Many leases share calls: their renewals cost the server a script for hundreds of them.
func TestRedisRenewsInBatches(t *testing.T) {
	const leases = 2000
	r := servers.StartRedis(t)
	d, err := openRedisAddress("single," + r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, &leasehold.Options{TTL: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	held := make([]*leasehold.Lease, leases)
	for i := range held {
		var opts []leasehold.Option
		if i%100 == 0 {
			opts = append(opts, leasehold.Shared()) // renewed one by one, beside the others
		}
		if held[i], err = locks.Acquire(t.Context(), fmt.Sprint("lease/", i), opts...); err != nil {
			t.Fatal(err)
		}
	}
	r.Must(t, "DEL", "lock:lease/777")
	r.Must(t, "CONFIG", "RESETSTAT")
	time.Sleep(8 * time.Second)
	for i, lease := range held {
		live := lease.Context().Err() == nil
		if live != (i != 777) {
			t.Errorf("lease %d: live %v: %v", i, live, context.Cause(lease.Context()))
		}
		if err := lease.Release(t.Context()); (err == nil) != live {
			t.Errorf("release of lease %d: %v", i, err)
		}
	}
	stats := r.Must(t, "INFO", "commandstats")
	_, after, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
	calls, _ := strconv.Atoi(after[:strings.IndexByte(after, ',')])
	calls -= leases // the releases
	t.Logf("%d scripts in 8 s for %d leases", calls, leases)
	if calls > leases/2 {
		t.Errorf("%d scripts in 8 s for %d leases", calls, leases)
	}
}
