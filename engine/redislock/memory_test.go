package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// guardedLocker is one process's view of nodes whose leases last for memory at the most.
func guardedLocker(t *testing.T, nodes []*servers.Redis, memory time.Duration) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(openRedlock(t, nodes, memory), &leasehold.Options{TTL: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Two of three machines start anew with a wrong clock, which is then set right, so that
// they seem to have run for hours. What they forgot is not granted again before its deadline,
// whether its holder hears of that or not.
func TestRedlockTrustsNoServersClock(t *testing.T) {
	t.Parallel()
	const memory = 10 * time.Second
	var nodes []*servers.Redis
	var clocks []*servers.Clock
	for range 3 {
		r, clock := servers.StartRedisWithClock(t)
		clock.Set(time.Hour)
		nodes, clocks = append(nodes, r), append(clocks, clock)
	}
	mine, other := guardedLocker(t, nodes, memory), guardedLocker(t, nodes, memory)
	lease, err := mine.Acquire(t.Context(), "a", leasehold.Wait(3*memory))
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes[:2] {
		n.Kill()
		clocks[i].Set(-2 * time.Hour)
		n.Start(t)
		clocks[i].Set(time.Hour)
	}
	for _, n := range nodes[:2] { // Redis looks at its clock ten times a second
		for len(infoField(t, n, "uptime_in_seconds")) < 4 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	tries, deadline := 0, lease.Deadline()
	for ; time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		next, err := other.TryAcquire(t.Context(), "a")
		if left := time.Until(deadline); err == nil && left > 0 {
			t.Fatalf("two holders: token %d has %v left, and %d was granted", lease.Token(), left, next.Token())
		}
		if errors.Is(err, redislock.ErrServerTooYoung) { // else a node was slow
			tries++
		}
	}
	if tries < 2 {
		t.Fatal("the lease ended before anybody tried to have it, beside nodes that forgot")
	}
	next, err := other.Acquire(t.Context(), "a", leasehold.Wait(3*memory))
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
}

func infoField(t *testing.T, r *servers.Redis, name string) string {
	t.Helper()
	_, after, _ := strings.Cut(r.Must(t, "INFO"), name+":")
	value, _, _ := strings.Cut(after, "\r\n")
	return value
}

// What one process has seen of a server serves all, until the server forgets it with the rest.
func TestRedisMemoryIsSeenOnce(t *testing.T) {
	t.Parallel()
	const memory = 3 * time.Second
	r := servers.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	started := time.Now()
	open := func() *leasehold.Locker {
		return redisLocker(t, r, &redislock.Options{MinUptime: memory}, leasehold.Options{TTL: memory, HandOver: -1})
	}
	first := open()
	refused := func(when string, l *leasehold.Locker) {
		t.Helper()
		if lease, err := l.TryAcquire(t.Context(), "refused"); !errors.Is(err, redislock.ErrServerTooYoung) || errors.Is(err, leasehold.ErrBusy) {
			t.Fatalf("%s: lease %v, %v", when, lease != nil, err)
		}
	}
	granted := func(when string, l *leasehold.Locker) {
		t.Helper()
		lease, err := l.Acquire(t.Context(), "granted", leasehold.Wait(10*memory))
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		lease.Release(t.Context())
	}
	refused("a new server", first)
	if _, err := first.Acquire(t.Context(), "a", leasehold.Wait(memory/10)); !errors.Is(err, redislock.ErrServerTooYoung) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who waits for less: %v", err)
	}
	granted("who waits", first)
	if up := time.Since(started); up < memory {
		t.Errorf("granted when the server had run for %v", up)
	}
	var all sync.WaitGroup
	for i := range 100 { // many share a run of the script
		all.Go(func() {
			lease, err := first.TryAcquire(t.Context(), fmt.Sprint(i))
			if err != nil {
				t.Errorf("many at once: %v", err)
				return
			}
			lease.Release(t.Context())
		})
	}
	all.Wait()
	second := open()
	if lease, err := second.TryAcquire(t.Context(), "a"); err != nil {
		t.Errorf("after another has waited: %v", err)
	} else {
		lease.Release(t.Context())
	}
	refused("for longer leases", redisLocker(t, r, &redislock.Options{MinUptime: 100 * memory}, leasehold.Options{}))
	r.Must(t, "FLUSHALL")
	refused("flushed, who had waited", first)
	refused("flushed, the other", second)
	granted("after it was flushed", second)
	r.Kill()
	r.Start(t)
	if n := r.Must(t, "EXISTS", "lock:\x1fm"); n != "1" {
		t.Fatal("the mark of the former process is not there")
	}
	refused("started again with its data", first)
	granted("seen again for long enough", first)
}

// Processes none of which lives for long enough make it together.
func TestRedisMemoryAddsUp(t *testing.T) {
	t.Parallel()
	const memory, life = 3 * time.Second, time.Second
	r := servers.StartRedis(t)
	started := time.Now()
	for lives := 1; ; lives++ {
		l := redisLocker(t, r, &redislock.Options{MinUptime: memory}, leasehold.Options{TTL: memory})
		lease, err := l.Acquire(t.Context(), "a", leasehold.Wait(life))
		if err == nil {
			if up := time.Since(started); up < memory {
				t.Errorf("granted when the server had run for %v", up)
			}
			lease.Release(t.Context())
			t.Logf("%d lives of %v", lives, life)
			return
		}
		if !errors.Is(err, redislock.ErrServerTooYoung) && !errors.Is(err, context.DeadlineExceeded) || lives == 20 {
			t.Fatalf("life %d: %v", lives, err)
		}
		l.Close()
	}
}

func TestRedisMemoryOnClusterIsRefused(t *testing.T) {
	t.Parallel()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer client.Close()
	if _, err := redislock.New(client, &redislock.Options{MinUptime: time.Minute}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
