package redis

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/quorum"
	"github.com/leasehold-go/leasehold/redislock"
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
const nodeTimeout = 500 * time.Millisecond

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
	d, err := redislock.NewRedlock(clients, &redislock.Options{Memory: memory}, &quorum.Options{NodeTimeout: limit})
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

func TestRedlockConformance(t *testing.T) {
	nodes := startNodes(t, 5)
	locktest.Run(t, locktest.Harness{
		Open: func(t testing.TB) driver.Driver { // the suite contends hard, and no node is away
			return openRedlockWithin(t, nodes, -1, time.Second)
		},
		CallGoroutines: 14, // one a node, one that carries its call, and more where nodes are slow
		Pause: func(t testing.TB) (resume func()) {
			for _, n := range nodes {
				n.Signal(syscall.SIGSTOP)
			}
			return func() {
				for _, n := range nodes {
					n.Signal(syscall.SIGCONT)
				}
			}
		},
		NoHolderFence: true,
	})
}

// Every mask of five nodes that are dead or hung: three that answer are enough, two are
// an error in bounded time, and leave nothing behind when the others are back.
func TestRedlockMasks(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"dead", "hung"} {
		nodes := startNodes(t, 5)
		d, other := openRedlock(t, nodes, -1), openRedlock(t, nodes, -1)
		for mask := range uint(1 << 5) {
			t.Run(fmt.Sprintf("%s %05b", fault, mask), func(t *testing.T) {
				back := takeOut(t, nodes, mask, fault)
				defer back()
				testRedlockMask(t, d, other, bits.OnesCount(mask) <= 2, back)
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

func testRedlockMask(t *testing.T, d, other driver.Driver, works bool, back func()) {
	locks, others := newLocker(t, d), newLocker(t, other)
	name := fmt.Sprint("mask-", rand.Uint64())
	const bound = 6 * nodeTimeout // two rounds, each behind a call that hangs, and as much again
	start := time.Now()
	lease, err := locks.TryAcquire(t.Context(), name, leasehold.TTL(2*time.Second))
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

// Processes contend while nodes are killed, stopped and brought back, two at a time.
func TestRedlockHistoryUnderFaults(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 5)
	var history locktest.History
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var work sync.WaitGroup
	for range 4 {
		locks := newLocker(t, openRedlock(t, nodes, -1))
		work.Go(func() {
			for ctx.Err() == nil {
				lease, err := locks.Acquire(ctx, "contended", leasehold.TTL(time.Second), leasehold.Wait(500*time.Millisecond))
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
	const enough = 20
	for start := time.Now(); time.Since(start) < 8*time.Second || history.Len() < enough && ctx.Err() == nil; {
		out := rand.Perm(5)[:2] // never a majority; stopped ones keep their memory
		back := []func(){nodes[out[0]].Pause(), nodes[out[1]].Pause()}
		time.Sleep(rand.N(300 * time.Millisecond))
		for _, f := range back {
			f()
		}
		time.Sleep(rand.N(100 * time.Millisecond))
	}
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
	if _, err := mine.TryAcquire(t.Context(), "early"); !errors.Is(err, redislock.ErrForgetful) {
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
