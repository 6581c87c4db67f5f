package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/redislock"
)

// redisClient is a client of r until t ends.
func redisClient(t testing.TB, r *servers.Redis) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() { client.Close() })
	return client
}

// redisLocker is a Locker of one more process on r until t ends.
func redisLocker(t testing.TB, r *servers.Redis, opts *redislock.Options, o leasehold.Options) *leasehold.Locker {
	t.Helper()
	return lockerOn(t, redisDriverOf(t, redisClient(t, r), opts), o)
}

func redisDriverOf(t testing.TB, client redis.UniversalClient, opts *redislock.Options) *redislock.Driver {
	t.Helper()
	d, err := redislock.New(client, opts)
	if err != nil {
		t.Fatalf("redislock.New: %v", err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func lockerOn(t testing.TB, d driver.Driver, o leasehold.Options) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, &o)
	if err != nil {
		t.Fatalf("leasehold.New: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// bareRecipe is the lock of the Redis manual.
type bareRecipe struct {
	client *redis.Client
	key    string
}

var bareUnlock = redis.NewScript(`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`)

func (b bareRecipe) do(ctx context.Context, section func() error) error {
	token := fmt.Sprint("bare-", time.Now().UnixNano())
	for {
		ok, err := b.client.SetNX(ctx, b.key, token, 10*time.Second).Result()
		if err != nil {
			return err
		}
		if ok {
			break
		}
		time.Sleep(time.Millisecond)
	}
	err := section()
	n, released := bareUnlock.Run(ctx, b.client, []string{b.key}, token).Int()
	if n != 1 {
		err = errors.Join(err, released, errors.New("the bare recipe's lock was taken away"))
	}
	return err
}

// All exclude each other on one key: the bare recipe, bsm/redislock, redsync, and ours,
// exclusive and shared.
func TestRedisExcludesOtherClients(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	const rounds = 40
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := redisClient(t, r)
	const name, key = "contest", "lock:contest"
	var inside, sharers atomic.Int32
	counter := 0 // the race detector sees it if the locks do not order holders
	section := func() error {
		if n, s := inside.Add(1), sharers.Load(); n != 1 || s != 0 {
			return fmt.Errorf("%d exclusive holders and %d sharers at once", n, s)
		}
		counter++
		time.Sleep(200 * time.Microsecond)
		inside.Add(-1)
		return nil
	}
	sharing := func(context.Context) error {
		sharers.Add(1)
		defer sharers.Add(-1)
		if n := inside.Load(); n != 0 {
			return fmt.Errorf("a sharer beside %d exclusive holders", n)
		}
		time.Sleep(200 * time.Microsecond)
		return nil
	}
	ours := []*leasehold.Locker{redisLocker(t, r, nil, leasehold.Options{}), redisLocker(t, r, nil, leasehold.Options{HandOver: -1})}
	theirs := bsm.New(client)
	red := redsync.New(goredis.NewPool(client))
	contenders := map[string]func() error{
		"bare recipe": func() error { return bareRecipe{client, key}.do(ctx, section) },
		"bsm/redislock": func() error {
			lock, err := theirs.Obtain(ctx, key, 10*time.Second, &bsm.Options{RetryStrategy: bsm.LinearBackoff(time.Millisecond)})
			if err != nil {
				return err
			}
			return errors.Join(section(), lock.Release(ctx))
		},
		"redsync": func() error {
			m := red.NewMutex(key, redsync.WithTries(100000), redsync.WithRetryDelay(time.Millisecond), redsync.WithExpiry(10*time.Second))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			err := section()
			_, released := m.UnlockContext(ctx)
			return errors.Join(err, released)
		},
		"ours": func() error { return ours[0].Do(ctx, name, func(context.Context) error { return section() }) },
		"ours, without local hand-over": func() error {
			return ours[1].Do(ctx, name, func(context.Context) error { return section() })
		},
		"ours, shared": func() error { return ours[1].Do(ctx, name, sharing, leasehold.Shared()) },
	}
	var all sync.WaitGroup
	for who, once := range contenders {
		for range 2 {
			all.Go(func() {
				for range rounds {
					if err := once(); err != nil {
						t.Errorf("%s: %v", who, err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if want := (len(contenders) - 1) * 2 * rounds; counter != want {
		t.Errorf("%d sections, want %d", counter, want)
	}
}

// scripts is how often clients have sent scripts.
func scripts(t testing.TB, r *servers.Redis) (n int) {
	t.Helper()
	for line := range strings.Lines(r.Must(t, "INFO", "commandstats")) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			rest, _, _ = strings.Cut(rest, ",")
			n, _ = strconv.Atoi(rest)
		}
	}
	return n
}

// sent counts the commands that a client sends.
type sent struct{ n atomic.Int64 }

// count leaves out how a connection begins: there may be one more at any time.
func (s *sent) count(cmds ...redis.Cmder) {
	if name := cmds[0].Name(); name != "hello" && name != "client" {
		s.n.Add(int64(len(cmds)))
	}
}

func (*sent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.count(cmd)
		return next(ctx, cmd)
	}
}

func (s *sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.count(cmds...)
		return next(ctx, cmds)
	}
}

// Alone, a cycle is two commands, with the fence on.
func TestRedisUncontendedCycleIsTwoCommands(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	l := lockerOn(t, redisDriverOf(t, client, nil), leasehold.Options{HandOver: -1})
	cycle := func() {
		lease, err := l.Acquire(t.Context(), "alone")
		if err != nil {
			t.Fatalf("Acquire: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatalf("Release: %v", err)
		}
	}
	cycle() // checks the version, and has the scripts loaded
	counter := new(sent)
	client.AddHook(counter)
	before := scripts(t, r)
	const cycles = 50
	for range cycles {
		cycle()
	}
	if n := counter.n.Load(); n != 2*cycles {
		t.Errorf("%d commands for %d cycles, want two each", n, cycles)
	}
	if n := scripts(t, r) - before; n != 2*cycles {
		t.Errorf("%d scripts for %d cycles, want two each", n, cycles)
	}
}

// A foreign holder's release wakes nobody: it is noticed soon, without hammering.
func TestRedisForeignHolder(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	l := lockerOn(t, d, leasehold.Options{})
	const name, key, token = "foreign", "lock:foreign", "somebody-elses-token"
	r.Must(t, "SET", key, token, "NX", "PX", "60000")

	_, err := l.TryAcquire(t.Context(), name)
	busy, ok := errors.AsType[*leasehold.BusyError](err)
	if !ok || busy.Holder.Owner != token {
		t.Fatalf("TryAcquire: %v; want busy with the foreign holder", err)
	}
	st, err := d.Inspect(t.Context(), name)
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner != token || st.Holders[0].Left <= 0 {
		t.Errorf("Inspect: %+v, %v; want the foreign holder", st, err)
	}
	list, err := d.List(t.Context(), "for")
	if err != nil || len(list) != 1 || list[0].Resource != name {
		t.Errorf("List: %+v, %v; want the foreign holder", list, err)
	}

	const waiters = 5 // of one process: only one asks the server
	granted := make(chan time.Time, waiters)
	var waiting sync.WaitGroup
	wait := func() {
		lease, err := l.Acquire(t.Context(), name)
		granted <- time.Now()
		if err == nil {
			err = lease.Release(context.Background())
		}
		if err != nil {
			t.Errorf("Acquire and Release: %v", err)
		}
	}
	for range waiters {
		waiting.Go(wait)
	}
	time.Sleep(500 * time.Millisecond) // until they poll
	before := scripts(t, r)
	const span = 3 * time.Second
	time.Sleep(span)
	after := scripts(t, r)
	if perSecond := float64(after-before) / span.Seconds(); perSecond > 20 || perSecond < 1 { // that it is often is measured below
		t.Errorf("%.1f commands a second while a foreign holder holds, want 10 to 20", perSecond)
	}
	var worst time.Duration
	released := time.Now()
	r.Must(t, "DEL", key)
	worst = (<-granted).Sub(released)
	for range waiters - 1 {
		<-granted
	}
	waiting.Wait()
	usual := []time.Duration{worst}
	for range 6 {
		r.Must(t, "SET", key, token, "NX", "PX", "60000")
		waiting.Go(wait)
		time.Sleep(300 * time.Millisecond)
		released = time.Now()
		r.Must(t, "DEL", key)
		usual = append(usual, (<-granted).Sub(released))
		waiting.Wait()
	}
	slices.Sort(usual)
	t.Logf("foreign releases were noticed after %v", usual)
	if usual[len(usual)/4] > 100*time.Millisecond+500*time.Millisecond { // the machine may be slow, now and then
		t.Errorf("foreign releases were noticed after %v, want 100ms", usual)
	}

	// An operator can end it.
	r.Must(t, "SET", key, token, "NX", "PX", "60000")
	if err := d.Evict(t.Context(), name, token, "test"); err != nil {
		t.Errorf("Evict of a foreign holder: %v", err)
	}
	lease, err := l.TryAcquire(t.Context(), name)
	if err != nil {
		t.Fatalf("TryAcquire after Evict: %v", err)
	}
	// A foreign client that honours the recipe does not get past us.
	if reply := r.Must(t, "SET", key, "intruder", "NX", "PX", "1000"); reply != "" {
		t.Errorf("SET NX beside our lease: %q", reply)
	}
	if got := r.Must(t, "GET", key); got != lease.Owner() {
		t.Error("the lock key does not hold the owner")
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}
