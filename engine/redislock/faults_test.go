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
	"github.com/leasehold-go/leasehold/locktest"
)

// How many names a storm has, and how many may share one.
const stormNames, stormLimit = 3, 2

// redisStorm has several processes' lockers contend for names while disturb is called
// again and again, and checks what they believed. It lasts for span, and longer until there were enough leases
// to learn from. tolerate says which errors may come.
func redisStorm(t *testing.T, lockers []*leasehold.Locker, span, every time.Duration, disturb func(), tolerate func(error) bool) {
	t.Helper()
	const enough, longest = 20, 3 * time.Minute
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var history locktest.History
	var all sync.WaitGroup
	for i, l := range lockers {
		for j := range 2 * stormNames {
			shared := j >= stormNames
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					name := fmt.Sprint("storm-", (i+j+n)%stormNames)
					var opts []leasehold.Option
					if shared {
						opts = append(opts, leasehold.Limit(stormLimit))
					}
					called := time.Now()
					lease, err := l.Acquire(ctx, name, opts...)
					if err != nil {
						if ctx.Err() == nil && !tolerate(err) {
							t.Errorf("Acquire: %v", err)
						}
						continue
					}
					var done func()
					if shared {
						done = history.BelieveShared(lease, stormLimit, 1, called)
					} else {
						done = history.Believe(lease)
					}
					time.Sleep(time.Duration(n%3) * time.Millisecond)
					done()
					if err := lease.Release(context.Background()); err != nil && !tolerate(err) {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	start := time.Now()
	for time.Since(start) < span || history.Len() < enough && time.Since(start) < longest {
		time.Sleep(every)
		disturb()
	}
	cancel()
	all.Wait()
	if err := history.Check(); err != nil {
		t.Error(err)
	}
	t.Logf("%d leases", history.Len())
	if history.Len() < enough {
		t.Errorf("only %d leases in %v", history.Len(), time.Since(start))
	}
	for i := range stormNames { // nothing is left behind
		lease, err := lockers[0].Acquire(t.Context(), fmt.Sprint("storm-", i), leasehold.Wait(15*time.Second))
		if err != nil {
			t.Errorf("after the storm: %v", err)
			continue
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("after the storm: %v", err)
		}
	}
}

func never(error) bool { return false }

func threeLockers(t testing.TB, r *servers.Redis) []*leasehold.Locker {
	var all []*leasehold.Locker
	for range 3 {
		all = append(all, redisLocker(t, r, nil, leasehold.Options{TTL: 5 * time.Second}))
	}
	return all
}

// The script cache may be lost at any time, and nobody notices.
func TestRedisScriptFlush(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	redisStorm(t, threeLockers(t, r), 3*time.Second, 50*time.Millisecond, func() { r.Must(t, "SCRIPT", "FLUSH") }, never)
}

// All connections, subscriptions too, are cut again and again.
func TestRedisClientKill(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	kill := func() {
		r.Must(t, "CLIENT", "KILL", "TYPE", "normal")
		r.Must(t, "CLIENT", "KILL", "TYPE", "pubsub")
	}
	// Unknown outcomes are allowed; what was released though the answer was lost is not "lost".
	redisStorm(t, threeLockers(t, r), 4*time.Second, 100*time.Millisecond, kill, func(err error) bool {
		return !errors.Is(err, leasehold.ErrLost) && !errors.Is(err, leasehold.ErrBusy)
	})
}

// A fence never goes back: the counter lost, set back, or of a server that came back
// from an old state.
func TestRedisFenceSurvivesTheCounter(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	d := redisDriverOf(t, client, nil)
	l := lockerOn(t, d, leasehold.Options{HandOver: -1})
	const name, history = "fence", "lock:\x1ff{lock:fence}"
	last := uint64(0)
	grows := func(after string) {
		t.Helper()
		lease, err := l.Acquire(t.Context(), name)
		if err != nil {
			t.Fatalf("after %s: %v", after, err)
		}
		if lease.Token() <= last {
			t.Errorf("token %d after %s, %d before", lease.Token(), after, last)
		}
		last = lease.Token()
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	grows("nothing")
	old := client.Dump(t.Context(), history).Val()
	if old == "" {
		t.Fatalf("there is no history at %q", history)
	}
	for range 3 {
		grows("a grant")
	}
	r.Must(t, "DEL", history)
	grows("the counter was deleted")
	if err := client.RestoreReplace(t.Context(), history, 0, old).Err(); err != nil {
		t.Fatal(err)
	}
	grows("the counter was rolled back")
	r.Must(t, "SET", history, strings.Repeat("\xff", 40))
	grows("the counter was damaged")
	r.Must(t, "FLUSHALL")
	grows("FLUSHALL")
	if ttl := client.PTTL(t.Context(), history).Val(); ttl < 24*time.Hour {
		t.Errorf("the history lives for %v, want a day and more", ttl)
	}

	// The holder keeps its token although the history is lost under it.
	lease, err := l.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	r.Must(t, "DEL", history)
	if err := lease.Extend(t.Context(), 10*time.Second); err != nil {
		t.Errorf("Extend after the history was deleted: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}

	// Counter lost and clock set back, both: only the driver's own memory tells. A fence
	// far ahead of the clock stands in for the clock.
	if err := d.RaiseFence(t.Context(), name, driver.FenceOf(time.Now().Add(24*time.Hour).UnixMicro())); err != nil {
		t.Fatal(err)
	}
	grows("RaiseFence")
	r.Must(t, "DEL", history)
	if lease, err := l.Acquire(t.Context(), name); !errors.Is(err, redislock.ErrFenceRegressed) {
		t.Fatalf("Acquire after counter and clock went back: %v, %v; want ErrFenceRegressed", lease, err)
	}
	if n := r.Must(t, "EXISTS", "lock:"+name); n != "0" {
		t.Error("the refused grant is left behind")
	}
	if err := d.RaiseFence(t.Context(), name, last); err != nil {
		t.Fatal(err)
	}
	grows("RaiseFence, which heals it")
}

func TestRedisRequireFenceHistory(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	d := redisDriverOf(t, client, &redislock.Options{RequireFenceHistory: true})
	l := lockerOn(t, d, leasehold.Options{HandOver: -1})
	for _, opt := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		if _, err := l.Acquire(t.Context(), "new", opt...); !errors.Is(err, redislock.ErrNoFenceHistory) {
			t.Fatalf("Acquire without a history: %v; want ErrNoFenceHistory", err)
		}
	}
	if keys := r.Must(t, "KEYS", "*"); keys != "" {
		t.Errorf("left behind: %q", keys)
	}
	if err := d.RaiseFence(t.Context(), "new", 7); err != nil {
		t.Fatal(err)
	}
	lease, err := l.Acquire(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ttl := client.PTTL(t.Context(), "lock:\x1ff{lock:new}").Val(); ttl != -1 {
		t.Errorf("the history lives for %v, want for ever", ttl)
	}
	r.Must(t, "FLUSHALL")
	if _, err := l.Acquire(t.Context(), "new"); !errors.Is(err, redislock.ErrNoFenceHistory) {
		t.Errorf("Acquire after FLUSHALL: %v; want ErrNoFenceHistory", err)
	}
}

// A history that never expires stays so, though drivers without the option, as under
// "leasehold serve", use the name too.
func TestRedisHistoryStaysForever(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	a, b := redisDriverOf(t, client, &redislock.Options{RequireFenceHistory: true}), redisDriverOf(t, client, nil)
	stays := func(after string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", after, err)
		}
		if ttl := client.PTTL(t.Context(), "lock:\x1ff{lock:n}").Val(); ttl != -1 {
			t.Fatalf("after %s the history lives for %v, want for ever", after, ttl)
		}
	}
	step := func(d *redislock.Driver, mode driver.Mode, then func(c driver.Claim)) {
		t.Helper()
		c, err := d.Claim(driver.Request{Resource: "n", Owner: mode.String(), Mode: mode, TTL: 20 * time.Hour}) // each renewal refreshes the history
		if err == nil {
			_, err = c.Try(t.Context())
		}
		stays("Try", err)
		then(c)
	}
	stays("RaiseFence", a.RaiseFence(t.Context(), "n", 7*driver.FenceStep))
	stays("another's RaiseFence", b.RaiseFence(t.Context(), "n", 8*driver.FenceStep))
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		step(b, mode, func(c driver.Claim) {
			_, err := c.Renew(t.Context(), 20*time.Hour)
			stays("Renew", err)
			stays("Release", c.Release(t.Context(), driver.End{}))
		})
	}
	calls := scripts(t, r)
	step(b, driver.Exclusive, func(c driver.Claim) { stays("Release", c.Release(t.Context(), driver.End{})) })
	if made := scripts(t, r) - calls; made != 2 {
		t.Errorf("Try and Release take %d calls, want 2", made)
	}
	step(a, driver.Exclusive, func(driver.Claim) {
		stays("Evict", b.Evict(t.Context(), "n", driver.Exclusive.String(), "test"))
	})
}

func acquireWith(t *testing.T, l *leasehold.Locker, name string, opts []leasehold.Option) *leasehold.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// A server that is stopped serves what waited in its sockets in any order when it goes
// on: a Try that comes after its Release must not be granted.
func TestRedisLateTryIsRefused(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	after := lockerOn(t, redisDriverOf(t, redisClient(t, r), nil), leasehold.Options{})
	for i := range 10 {
		name := fmt.Sprint("late-", i)
		claim, err := d.Claim(driver.Request{Resource: name, Owner: fmt.Sprint("owner-", i), TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 { // connect
			_, _ = claim.Try(t.Context())
			_ = claim.Release(t.Context(), driver.End{})
		}
		resume := r.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := claim.Try(ctx); err == nil || errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try of a server that is stopped: %v", err)
		}
		cancel()
		released := make(chan error, 1)
		go func() { released <- claim.Release(context.Background(), driver.End{}) }()
		time.Sleep(20 * time.Millisecond)
		resume()
		if err := <-released; err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release: %v", err)
		}
		time.Sleep(20 * time.Millisecond) // for the one that comes late
		lease, err := after.TryAcquire(t.Context(), name)
		if err != nil {
			t.Fatalf("held by nobody who knows: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The claim itself may try again.
		if _, err := claim.Try(t.Context()); err != nil {
			t.Fatalf("Try after Release: %v", err)
		}
		if err := claim.Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
	}
}

// On Cluster a turn is told within the shard, wherever the resource lives, also after
// its slot has moved to another node.
func TestRedisClusterTellsTurnsWhereTheSlotIs(t *testing.T) {
	t.Parallel()
	nodes := servers.StartCluster(t, 3)
	open := func() *leasehold.Locker {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
		t.Cleanup(func() { c.Close() })
		return lockerOn(t, redisDriverOf(t, c, nil), leasehold.Options{HandOver: -1})
	}
	a, b := open(), open()
	var worst time.Duration
	turn := func(name string) time.Duration {
		t.Helper()
		lease, err := a.Acquire(t.Context(), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		granted := make(chan time.Time, 1)
		var waiter sync.WaitGroup
		defer waiter.Wait()
		waiter.Go(func() {
			lease, err := b.Acquire(t.Context(), name)
			granted <- time.Now()
			if err == nil {
				err = lease.Release(context.Background())
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		for {
			st, err := a.Inspect(t.Context(), name)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(st.Waiters) == 1 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond) // until it sleeps
		start := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return (<-granted).Sub(start)
	}
	for i := range 20 {
		worst = max(worst, turn(fmt.Sprint("slots-", i)))
	}
	t.Logf("told within %v", worst)
	if worst > 500*time.Millisecond { // half of what it costs to come back unasked
		t.Errorf("granted %v after the release: it was not told", worst)
	}
	channels := 0
	for _, r := range nodes {
		if n := strings.TrimSpace(r.Must(t, "PUBSUB", "SHARDCHANNELS")); n != "" {
			channels += strings.Count(n, "\n") + 1
		}
	}
	if channels == 0 {
		t.Error("nobody subscribed to a shard channel")
	}

	// Move a slot that is in use.
	const name = "slots-0"
	key := "lock:" + name
	from, to := owner(t, nodes, key)
	migrate(t, from, to, key)
	for range 3 {
		if took := turn(name); took > 2*time.Second {
			t.Errorf("granted %v after the release, after the slot had moved", took)
		}
	}
	if took := turn(name); took > 500*time.Millisecond {
		t.Errorf("granted %v after the release: nobody subscribed where the slot is now", took)
	}
}

// owner finds the node that serves key, and another.
func owner(t *testing.T, nodes []*servers.Redis, key string) (from, to *servers.Redis) {
	for _, r := range nodes {
		if _, err := r.Do("GET", key); err == nil {
			from = r
		} else {
			to = r
		}
	}
	if from == nil || to == nil {
		t.Fatalf("nobody serves %q", key)
	}
	return from, to
}

// migrate moves the slot of key with all its keys, as redis-cli does.
func migrate(t *testing.T, from, to *servers.Redis, key string) {
	t.Helper()
	slot := from.Must(t, "CLUSTER", "KEYSLOT", key)
	fromID, toID := from.Must(t, "CLUSTER", "MYID"), to.Must(t, "CLUSTER", "MYID")
	to.Must(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	from.Must(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	for {
		keys := from.Must(t, "CLUSTER", "GETKEYSINSLOT", slot, "100")
		if keys == "" {
			break
		}
		args := append([]string{"MIGRATE", "127.0.0.1", fmt.Sprint(to.Port), "", "0", "5000", "KEYS"}, strings.Split(keys, "\n")...)
		from.Must(t, args...)
	}
	to.Must(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	from.Must(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
}

// What waits for replicas goes to one server, which go-redis does not follow when its slots
// move. These have no replica, which is all that is wrong.
func TestRedisClusterMigrationWithReplicas(t *testing.T) {
	t.Parallel()
	nodes := servers.StartCluster(t, 3)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
	t.Cleanup(func() { c.Close() })
	locks := newLocker(t, redisDriverOf(t, c, &redislock.Options{Replicas: 1}))
	for range 3 {
		if _, err := locks.TryAcquire(t.Context(), "moves"); !errors.Is(err, redislock.ErrReplicas) {
			t.Errorf("TryAcquire: %v; want ErrReplicas", err)
		}
		from, to := owner(t, nodes, "lock:moves")
		migrate(t, from, to, "lock:moves")
	}
}

// Slots move while they are in use: nobody holds twice, and nobody hangs.
func TestRedisClusterMigrationUnderLoad(t *testing.T) {
	t.Parallel()
	migrateUnderLoad(t, servers.StartCluster(t, 3), nil)
}

// The same where replicas must acknowledge: those of the node that answers, wherever a call was sent first.
func TestRedisClusterMigrationUnderLoadWithReplicas(t *testing.T) {
	t.Parallel()
	migrateUnderLoad(t, servers.StartReplicatedCluster(t, 3), &redislock.Options{Replicas: 1})
}

func migrateUnderLoad(t *testing.T, nodes []*servers.Redis, opts *redislock.Options) {
	var lockers []*leasehold.Locker
	for range 3 {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
		t.Cleanup(func() { c.Close() })
		lockers = append(lockers, lockerOn(t, redisDriverOf(t, c, opts), leasehold.Options{TTL: 5 * time.Second}))
	}
	i := 0
	redisStorm(t, lockers, 6*time.Second, 400*time.Millisecond, func() {
		key := fmt.Sprint("lock:storm-", i%3)
		i++
		from, to := owner(t, nodes, key)
		migrate(t, from, to, key)
	}, func(err error) bool { return !errors.Is(err, leasehold.ErrLost) && !errors.Is(err, leasehold.ErrBusy) })
}
