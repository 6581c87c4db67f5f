package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// startNodes starts n Redis servers that know nothing of each other.
func startNodes(t testing.TB, n int) []*servers.Redis {
	var nodes []*servers.Redis
	for range n {
		nodes = append(nodes, servers.StartRedis(t))
	}
	return nodes
}

// nodeTimeout is long, because the machines that run tests are slow, not because servers are.
const nodeTimeout = time.Second

// openRedlock is one process's view of nodes. Most tests start theirs a moment ago and
// must not wait for them to have run for long: memory below 0.
func openRedlock(t testing.TB, nodes []*servers.Redis, memory time.Duration) driver.Driver {
	t.Helper()
	return openRedlockWithin(t, nodes, memory, nodeTimeout)
}

func openRedlockWithin(t testing.TB, nodes []*servers.Redis, memory, limit time.Duration) driver.Driver {
	t.Helper()
	var clients []redis.UniversalClient
	for _, n := range nodes {
		// After as many failures to connect as the pool has room for, go-redis does not try
		// for a second, in which a node that is back would still be away.
		client := redis.NewClient(&redis.Options{Addr: n.Addr(), PoolSize: 1000})
		t.Cleanup(func() { client.Close() })
		clients = append(clients, client)
	}
	d, err := redislock.NewRedlock(clients, &redislock.Options{MinUptime: max(memory, 0), NoMinUptime: memory < 0}, &quorum.Options{NodeTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func newLocker(t testing.TB, d driver.Driver) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// An address that was of one server leads to another node's, as when a balancer or a name moves: that
// server has one vote all the same. With the address back, the node counts again.
func TestRedlockServerBehindTwoAddressesHasOneVote(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 3)
	var clients []redis.UniversalClient
	var proxies []*servers.Proxy
	for _, n := range nodes {
		p := servers.StartProxy(t, n.Addr())
		client := redis.NewClient(&redis.Options{Addr: p.Addr(), PoolSize: 1000})
		t.Cleanup(func() { client.Close() })
		clients, proxies = append(clients, client), append(proxies, p)
	}
	d, err := redislock.NewRedlock(clients, &redislock.Options{NoMinUptime: true}, &quorum.Options{NodeTimeout: nodeTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l := newLocker(t, d)
	lease, err := l.TryAcquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	lease.Release(t.Context())

	proxies[2].Dark()
	proxies[1].Move(nodes[0].Addr())
	proxies[1].Reset()
	until := func(done func(err error) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; {
			lease, err := l.TryAcquire(t.Context(), "b")
			if err == nil {
				lease.Release(t.Context())
			}
			if done(err) {
				return
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	until(func(err error) bool {
		if err == nil {
			t.Fatal("one server was a majority")
		}
		return errors.Is(err, quorum.ErrSameNode)
	})
	proxies[1].Move(nodes[1].Addr())
	until(func(err error) bool { return err == nil })
}

func TestRedlockConformance(t *testing.T) {
	servers.Long(t, "quorum runs the suite on nodes in memory")
	apart.Run(t, redlockConformance)
}

func redlockConformance(t *testing.T) {
	nodes := startNodes(t, 5)
	locktest.Run(t, locktest.Harness{
		Open: func(t testing.TB) driver.Driver { // the suite contends hard, and no node is away
			return openRedlockWithin(t, nodes, -1, time.Second)
		},
		CallGoroutines: 14, // one a node, one that carries its call, and more where nodes are slow
		Pause:          func(testing.TB) (resume func()) { return servers.PauseAll(nodes) },
		NoHolderFence:  true,
	})
}

// Every mask of five nodes that are dead or hung: three that answer are enough, two are
// an error in bounded time, and leave nothing behind when the others are back.
func TestRedlockMasks(t *testing.T) {
	t.Parallel()
	for fault, limit := range map[string]time.Duration{"dead": 4 * time.Second, "hung": 2 * time.Second} {
		for _, half := range []uint{0, 1} {
			t.Run(fmt.Sprint(fault, " ", half), func(t *testing.T) {
				t.Parallel()
				nodes := startNodes(t, 5)
				d, other := openRedlockWithin(t, nodes, -1, limit), openRedlockWithin(t, nodes, -1, limit)
				for mask := half; mask < 1<<5; mask += 2 {
					t.Run(fmt.Sprintf("%05b", mask), func(t *testing.T) {
						back := takeOut(t, nodes, mask, fault)
						defer back()
						works := bits.OnesCount(mask) <= 2
						if !works {
							testRollBack(t, d, nodes, mask)
						}
						testRedlockMask(t, d, other, limit, works, back)
					})
				}
			})
		}
	}
}

// takeOut kills or stops the nodes in mask until back is called.
func takeOut(t *testing.T, nodes []*servers.Redis, mask uint, fault string) (back func()) {
	var undo []func()
	for i, n := range nodes {
		switch {
		case mask&(1<<i) == 0:
		case fault == "hung":
			undo = append(undo, n.Pause())
		default:
			n.Kill()
			undo = append(undo, func() { n.Start(t) })
		}
	}
	return sync.OnceFunc(func() {
		for _, f := range undo {
			f()
		}
	})
}

// testRollBack: a try that found no majority is taken back at the nodes that answer, although
// nobody releases: who waits tries again with the same claim.
func testRollBack(t *testing.T, d driver.Driver, nodes []*servers.Redis, mask uint) {
	name := fmt.Sprint("rolled-back-", rand.Uint64())
	if _, err := lateClaim(t, d, name, "waiter", time.Minute).Try(t.Context()); err == nil {
		t.Fatal("granted without a majority")
	}
	for i, n := range nodes {
		for end := time.Now().Add(15 * time.Second); mask&(1<<i) == 0 && n.Must(t, "EXISTS", "lock:"+name) != "0"; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("node %d keeps what it granted of a try that failed", i+1)
			}
		}
	}
}

func testRedlockMask(t *testing.T, d, other driver.Driver, limit time.Duration, works bool, back func()) {
	locks, others := newLocker(t, d), newLocker(t, other)
	name := fmt.Sprint("mask-", rand.Uint64())
	bound := 6 * limit // two rounds, each behind a call that hangs, and as much again
	start := time.Now()
	lease, err := locks.TryAcquire(t.Context(), name, leasehold.TTL(4*limit))
	if took := time.Since(start); took > bound {
		t.Errorf("acquire took %v", took)
	}
	if works != (err == nil) {
		t.Fatalf("acquire: %v, want success %v", err, works)
	}
	if err == nil {
		if _, err := others.TryAcquire(t.Context(), name); err == nil {
			t.Error("a second holder")
		} else if !errors.Is(err, leasehold.ErrBusy) {
			t.Logf("beside the holder: %v", err) // one node more was slow
		}
		start = time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		if took := time.Since(start); took > bound {
			t.Errorf("release took %v", took)
		}
	}
	back()
	next, err := others.Acquire(t.Context(), name, leasehold.Wait(10*time.Second))
	if err != nil {
		t.Fatalf("when all nodes are back: %v", err)
	}
	if lease != nil && next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	next.Release(t.Context())
}

func TestRedlockRefusesOneServerTwice(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 2)
	d := openRedlock(t, []*servers.Redis{nodes[0], nodes[1], nodes[0]}, -1)
	// One of the twins may be counted, with the other server: that is a majority.
	locks := newLocker(t, d)
	if lease, err := locks.TryAcquire(t.Context(), "a"); err == nil {
		lease.Release(t.Context())
	}
	nodes[1].Kill()
	if _, err := locks.TryAcquire(t.Context(), "b"); !errors.Is(err, quorum.ErrSameNode) {
		t.Errorf("one server as two of three: %v", err)
	}
}

// startApart starts n servers that know nothing of each other, whose clocks are hours apart
// and with them their fences, and who keep what they have said yes to.
func startApart(t *testing.T, n int) (nodes []*servers.Redis) {
	for i := range n {
		r, clock := servers.StartRedisWithClock(t, "--appendonly", "yes", "--appendfsync", "always")
		clock.Set(time.Duration(i-n/2) * time.Hour)
		nodes = append(nodes, r)
	}
	return nodes
}

// disturb takes minorities of nodes out until ctx ends: stopped or killed, for up to three
// times the limit of a call, so that calls time out and nodes count as down.
func disturb(ctx context.Context, t *testing.T, nodes []*servers.Redis, limit time.Duration) {
	for ctx.Err() == nil {
		var back []func()
		for _, i := range rand.Perm(len(nodes))[:len(nodes)/2] {
			back = append(back, takeOut(t, nodes, 1<<i, []string{"hung", "dead"}[rand.N(2)]))
		}
		time.Sleep(limit/2 + rand.N(5*limit/2))
		for _, f := range back {
			f()
		}
		time.Sleep(limit + rand.N(4*limit)) // what was not released there ends
	}
}

// Processes contend while nodes are killed, stopped and brought back, two at a time.
func TestRedlockHistoryUnderFaults(t *testing.T) {
	t.Parallel()
	nodes := startApart(t, 5)
	var history locktest.History
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var work sync.WaitGroup
	for range 4 {
		locks := newLocker(t, openRedlock(t, nodes, -1))
		work.Go(func() {
			for ctx.Err() == nil {
				lease, err := locks.Acquire(ctx, "contended", leasehold.TTL(2*time.Second), leasehold.Wait(3*nodeTimeout))
				if err != nil {
					continue
				}
				done := history.Believe(lease)
				time.Sleep(rand.N(3 * time.Millisecond))
				done()
				lease.Release(context.Background())
			}
		})
	}
	const enough = 10
	faults, calm := context.WithCancel(ctx)
	work.Go(func() { disturb(faults, t, nodes, nodeTimeout) })
	for start := time.Now(); time.Since(start) < 12*time.Second || history.Len() < enough && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
	}
	calm()
	stop()
	work.Wait()
	if err := history.Check(); err != nil {
		t.Error(err)
	}
	if history.Len() < enough {
		t.Errorf("only %d leases", history.Len())
	}
	t.Logf("%d leases", history.Len())
}

// A node that restarted without its data is not counted until what it forgot has expired.
func TestRedlockDoesNotCountNodesThatForgot(t *testing.T) {
	t.Parallel()
	const memory = 4 * time.Second
	nodes := startNodes(t, 3)
	open := func() *leasehold.Locker {
		l, err := leasehold.New(openRedlock(t, nodes, memory), &leasehold.Options{TTL: memory})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	mine, other := open(), open()
	if _, err := mine.TryAcquire(t.Context(), "early"); !errors.Is(err, redislock.ErrServerTooYoung) {
		t.Fatalf("nodes that were started just now: %v", err)
	}
	var lease *leasehold.Lease
	for end := time.Now().Add(memory + 5*time.Second); lease == nil; time.Sleep(100 * time.Millisecond) {
		var err error
		if lease, err = mine.TryAcquire(t.Context(), "a"); err != nil && time.Now().After(end) {
			t.Fatal(err)
		}
	}
	// Two of three forget it, while its holder is cut off from nothing.
	for _, n := range nodes[:2] {
		n.Kill()
		n.Start(t)
	}
	if _, err := other.TryAcquire(t.Context(), "a"); err == nil {
		t.Fatal("a second holder, by the yes of two nodes that forgot the first")
	}
	<-lease.Context().Done() // it cannot be renewed at a majority any more
	var next *leasehold.Lease
	for end := time.Now().Add(memory + 5*time.Second); ; time.Sleep(100 * time.Millisecond) {
		var err error
		if next, err = other.TryAcquire(t.Context(), "a"); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the nodes have run for long enough: %v", err)
		}
	}
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	next.Release(t.Context())
}

// Servers that start anew without their data, one after the other, cost no lease: each is asked for it again.
func TestRedlockLeaseOutlivesEachServer(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 3)
	lease, err := newLocker(t, openRedlock(t, nodes, -1)).Acquire(t.Context(), "kept", leasehold.TTL(12*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		n.Kill()
		n.Start(t)
		for end := time.Now().Add(time.Minute); n.Must(t, "GET", "lock:kept") != lease.Owner(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) || lease.Context().Err() != nil {
				t.Fatalf("it has no lease again: %v", context.Cause(lease.Context()))
			}
		}
		renewals(t, lease, 2) // the first may have been on its way
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The roll-back of a try that failed takes nothing of the next one, which follows at once:
// calls to a node keep their order. On one processor the newest goroutine often runs first.
func TestRedlockCallsKeepTheirOrder(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	nodes := startNodes(t, 3)
	var links []*locktest.Faulty
	var all []driver.Driver
	for _, n := range nodes {
		link := locktest.NewFaulty(redisDriverOf(t, redisClient(t, n), nil))
		links, all = append(links, link), append(all, link)
	}
	d, err := quorum.New(all, &quorum.Options{NodeTimeout: nodeTimeout})
	if err != nil {
		t.Fatal(err)
	}
	other := openRedlock(t, nodes, -1)
	links[0].Always(locktest.OpTry, locktest.LoseRequest)
	for round := range 50 {
		name := fmt.Sprint(round)
		links[1].Next(locktest.OpTry, locktest.LoseRequest)
		mine := lateClaim(t, d, name, "mine", time.Minute)
		if _, err := mine.Try(t.Context()); err == nil {
			t.Fatal("granted by one of three")
		}
		if _, err := mine.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); links[2].Calls(locktest.OpRelease) <= round; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the first try was not rolled back")
			}
		}
		if _, err := lateClaim(t, other, name, "other", time.Minute).Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("round %d: a second holder: %v", round, err)
		}
	}
}
