package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/quorum"
	"github.com/leasehold-go/leasehold/redislock"
)

const (
	noFencing   = "leasehold, NoFencing"
	redsyncFast = "redsync, FailFast"
)

// startFive starts the nodes. They are started first and used last, because a node that
// was started less than a TTL ago does not count.
func startFive(b *testing.B) []*servers.Redis {
	var five []*servers.Redis
	for range 5 {
		five = append(five, servers.StartRedis(b))
	}
	return five
}

// redlock is one goroutine with a lock that nobody else wants, on five nodes.
func redlock(b *testing.B, five []*servers.Redis) {
	healthy := redlockWith(b, five, "five nodes healthy", 400, 400)
	resume := five[4].Pause()
	hung := redlockWith(b, five, "one node hung", 400, 1)
	resume()
	five[3].Kill()
	dead := redlockWith(b, five, "one node dead", 400, 10)

	atMost("Redlock: times redsync", float64(healthy[ours])/float64(healthy[redsyncLoc]), 1.5)
	atMost("Redlock, NoFencing: times redsync", float64(healthy[noFencing])/float64(healthy[redsyncLoc]), 1)
	atMost("Redlock, one node hung: times healthy", float64(hung[ours])/float64(healthy[ours]), 1.5)
	atMost("Redlock, one node dead: times healthy", float64(dead[ours])/float64(healthy[ours]), 1.5)
}

// redlockWith measures all on connections of their own, and returns their medians.
// redsync alone has fewer cycles, because one may take it ten seconds.
func redlockWith(b *testing.B, five []*servers.Redis, state string, cycles, plain int) map[string]time.Duration {
	names := []string{ours, noFencing, redsyncLoc, redsyncFast}
	locks := make(map[string]lockFunc)
	var s section
	for _, name := range names {
		lock, end := redlockOf(b, name, five)
		defer end()
		locks[name] = lock
		if name != redsyncLoc || plain > 1 {
			settle(b, lock, name, &s)
		}
	}
	took, grown := make(map[string][]time.Duration), make(map[string]int)
	const blocks = 10
	for range blocks {
		for _, name := range names {
			times := cycles / blocks
			if name == redsyncLoc {
				times = min(times, plain-len(took[name]))
			}
			before := runtime.NumGoroutine()
			all, err := cycle(locks[name], "redlock", &s, times)
			if err != nil {
				b.Fatalf("%s with %s: %v", name, state, err)
			}
			took[name] = append(took[name], all...)
			grown[name] = max(grown[name], runtime.NumGoroutine()-before)
		}
	}
	t := newTable("Redlock, "+state, "lock", "p50", "longest", "× redsync, FailFast", "goroutines left")
	medians := make(map[string]time.Duration)
	for _, name := range names {
		medians[name] = median(took[name])
		t.row(name, medians[name], slices.Max(took[name]), float64(medians[name])/float64(median(took[redsyncFast])), grown[name])
	}
	redlockContended(b, five, state)
	return medians
}

// redlockContended is four clients that want one lock; all of them poll.
func redlockContended(b *testing.B, five []*servers.Redis, state string) {
	names := []string{ours, noFencing, redsyncFast}
	s := compare(b, names, 1, func(name string, _ int) (tally, error) {
		four := make(chan lockFunc, 4) // each is used by one goroutine at a time
		for range cap(four) {
			lock, end := redlockOf(b, name, five)
			defer end()
			four <- lock
		}
		l := &locker{name: name, wire: &wire{}}
		l.lock = func(ctx context.Context, name string) (held, error) {
			lock := <-four
			h, err := lock(ctx, name)
			if err != nil {
				four <- lock
				return h, err
			}
			unlock := h.unlock
			h.unlock = func() error { defer func() { four <- lock }(); return unlock() }
			return h, nil
		}
		var one section
		got, err := oneSection(l, "contended", &one, cap(four), 2*time.Second).run()
		got.Turns = one.turns.Load()
		excluded(b, name, &one, got.sections())
		return got, err
	})
	t := newTable("Redlock, "+state+", one key, 4 clients", "lock", "sections/s", "turns/s", "longest wait", "starved")
	for _, name := range names {
		got := s.typical(name)
		t.row(name, got.rate(), float64(got.Turns)/got.Took.Seconds(), got.Longest, got.starved())
	}
}

// settle opens connections, until the lock is granted for the first time and some more.
func settle(b *testing.B, lock lockFunc, name string, s *section) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*ttl)
	defer cancel()
	for {
		held, err := lock(ctx, "redlock")
		if err == nil {
			err = held.unlock()
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			b.Fatalf("%s: %v", name, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if _, err := cycle(lock, "redlock", s, 10); err != nil {
		b.Fatalf("%s: %v", name, err)
	}
}

func redlockOf(b *testing.B, name string, five []*servers.Redis) (lockFunc, func()) {
	var clients []*redis.Client
	for _, r := range five {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: r.Addr()}))
	}
	var ends []func()
	for _, c := range clients {
		ends = append(ends, func() { c.Close() })
	}
	end := func() {
		for _, f := range slices.Backward(ends) {
			f()
		}
	}
	if name == redsyncLoc || name == redsyncFast {
		var pools []syncredis.Pool
		for _, c := range clients {
			pools = append(pools, goredis.NewPool(c))
		}
		return redsyncLocks(redsync.New(pools...), redsync.WithFailFast(name == redsyncFast)), end
	}
	var nodes []driver.Driver
	for _, c := range clients {
		d, err := redislock.New(c, nil)
		if err != nil {
			b.Fatal(err)
		}
		nodes = append(nodes, d)
		ends = append(ends, func() { d.Close() })
	}
	q, err := quorum.New(nodes, &quorum.Options{NoFencing: name == noFencing})
	if err != nil {
		b.Fatal(err)
	}
	locks, err := leasehold.New(q, nil)
	if err != nil {
		b.Fatal(fmt.Errorf("%s: %w", name, err))
	}
	ends = append(ends, func() { q.Close() }, func() { locks.Close() })
	return leaseholdLocks(locks), end
}
