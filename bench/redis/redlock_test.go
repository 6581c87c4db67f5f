package redis_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
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

	contest.AtMost(titled("Redlock: times redsync, FailFast"), float64(healthy[ours])/float64(healthy[redsyncFast]), 1.5)
	contest.AtMost(titled("Redlock, NoFencing: times redsync, FailFast"), float64(healthy[noFencing])/float64(healthy[redsyncFast]), 1)
	contest.AtMost(titled("Redlock, one node hung: times healthy"), float64(hung[ours])/float64(healthy[ours]), 1.5)
	contest.AtMost(titled("Redlock, one node dead: times healthy"), float64(dead[ours])/float64(healthy[ours]), 1.5)
}

// redlockWith measures all on connections of their own, and returns their medians.
// redsync alone has fewer cycles, because one may take it ten seconds.
func redlockWith(b *testing.B, five []*servers.Redis, state string, cycles, plain int) map[string]time.Duration {
	names := []string{ours, noFencing, redsyncLoc, redsyncFast}
	locks := make(map[string]contest.LockFunc)
	var s contest.Section
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
			all, err := contest.Cycle(locks[name], "redlock", &s, times)
			if err != nil {
				b.Fatalf("%s with %s: %v", name, state, err)
			}
			took[name] = append(took[name], all...)
			grown[name] = max(grown[name], runtime.NumGoroutine()-before)
		}
	}
	t := contest.NewTable(titled("Redlock, "+state), "lock", "p50", "longest", "× redsync, FailFast", "goroutines left")
	medians := make(map[string]time.Duration)
	for _, name := range names {
		medians[name] = contest.Median(took[name])
		t.Row(name, medians[name], slices.Max(took[name]), float64(medians[name])/float64(contest.Median(took[redsyncFast])), grown[name])
	}
	redlockContended(b, five, state)
	return medians
}

// redlockContended is four clients that want one lock; all of them poll.
func redlockContended(b *testing.B, five []*servers.Redis, state string) {
	names := []string{ours, noFencing, redsyncFast}
	title := titled("Redlock, " + state + ", one key, 4 clients")
	s := contest.Compare(b, title, names, 1, func(name string, _ int) (contest.Tally, error) {
		four := make(chan contest.LockFunc, 4) // each is used by one goroutine at a time
		for range cap(four) {
			lock, end := redlockOf(b, name, five)
			defer end()
			four <- lock
		}
		return contest.Contend(&contest.Locker{Lock: oneOf(four)}, "contended", cap(four), 2*time.Second)
	})
	t := contest.NewTable(title, "lock", "sections/s", "turns/s", "longest wait", "starved")
	for _, name := range names {
		got := s.Typical(name)
		t.Row(name, got.Rate(), got.ASecond(got.Turns), got.Longest, got.Starved())
	}
}

// oneOf is a lock on whichever client is free.
func oneOf(clients chan contest.LockFunc) contest.LockFunc {
	return func(ctx context.Context, name string) (contest.Held, error) {
		lock := <-clients
		h, err := lock(ctx, name)
		if err != nil {
			clients <- lock
			return h, err
		}
		unlock := h.Unlock
		h.Unlock = func() error { defer func() { clients <- lock }(); return unlock() }
		return h, nil
	}
}

// settle opens connections, until the lock is granted for the first time and some more.
func settle(b *testing.B, lock contest.LockFunc, name string, s *contest.Section) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*contest.TTL)
	defer cancel()
	for {
		held, err := lock(ctx, "redlock")
		if err == nil {
			err = held.Unlock()
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			b.Fatalf("%s: %v", name, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if _, err := contest.Cycle(lock, "redlock", s, 10); err != nil {
		b.Fatalf("%s: %v", name, err)
	}
}

func redlockOf(b *testing.B, name string, five []*servers.Redis) (contest.LockFunc, func()) {
	var clients []redis.UniversalClient
	for _, r := range five {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: r.Addr()}))
	}
	end := func() {
		for _, c := range clients {
			c.Close()
		}
	}
	if name == redsyncLoc || name == redsyncFast {
		var pools []syncredis.Pool
		for _, c := range clients {
			pools = append(pools, goredis.NewPool(c))
		}
		return redsyncLocks(redsync.New(pools...), redsync.WithFailFast(name == redsyncFast)), end
	}
	// Without MinUptime: these servers may forget, but are not started again.
	d, err := redislock.NewRedlock(clients, &redislock.Options{NoMinUptime: true}, &quorum.Options{NoFencing: name == noFencing})
	if err != nil {
		b.Fatal(err)
	}
	l, err := contest.Leasehold(d, nil)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	return l.Lock, func() { l.Close(); end() }
}
