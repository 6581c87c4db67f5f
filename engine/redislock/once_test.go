package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// holding stands in for a *leasehold.Lease.
type holding struct {
	name, owner string
	token       uint64
}

func (h holding) Name() string  { return h.name }
func (h holding) Owner() string { return h.owner }
func (h holding) Token() uint64 { return h.token }

func newOnce(t *testing.T, addr string, opts *redislock.OnceOptions) (*redislock.Once, *redis.Client) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: 500 * time.Millisecond})
	t.Cleanup(func() { client.Close() })
	o, err := redislock.NewOnce(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	return o, client
}

func wantStock(t *testing.T, client *redis.Client, key string, want int64) {
	t.Helper()
	if n, err := client.Get(t.Context(), key).Int64(); err != nil || n != want {
		t.Errorf("%s is %d, want %d: %v", key, n, want, err)
	}
}

func TestOnceOnRedis(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	o, client := newOnce(t, r.Addr(), nil)
	ctx := t.Context()

	t.Run("ItHappensOnce", func(t *testing.T) {
		d, err := redislock.New(client, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		locks, err := leasehold.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		for want := error(nil); ; want = fence.ErrDone {
			lease, err := locks.Acquire(ctx, "stock")
			if err != nil {
				t.Fatal(err)
			}
			reply, err := o.Do(ctx, "order-1", lease, "INCRBY", "sold", 2)
			if !errors.Is(err, want) || want == nil && reply != int64(2) {
				t.Errorf("first: %v, %v; want %v", reply, err, want)
			}
			if _, err := o.Do(ctx, "order-1", lease, "INCRBY", "sold", 2); !errors.Is(err, fence.ErrDone) {
				t.Errorf("again: %v", err)
			}
			if err := lease.Release(ctx); err != nil {
				t.Error(err)
			}
			if want != nil {
				break
			}
		}
		wantStock(t, client, "sold", 2)
	})

	t.Run("LateHolderIsRefused", func(t *testing.T) {
		// Tokens beyond what a Lua number holds, and of different lengths.
		tokens := []uint64{9, 10, 1<<60 - 1, 1 << 60, 1<<60 + 1, math.MaxUint64}
		for i, token := range tokens {
			key := "late-" + string(rune('a'+i))
			if _, err := o.Do(ctx, key, holding{"late", "x", token}, "INCR", "late"); err != nil {
				t.Errorf("token %d: %v", token, err)
			}
			for _, stale := range []holding{{"late", "x", token - 1}, {"late", "y", token}, {"late", "x", 0}} {
				if _, err := o.Do(ctx, key+"-2", stale, "INCR", "late"); !errors.Is(err, fence.ErrStale) {
					t.Errorf("token %d of %s after %d: %v", stale.token, stale.owner, token, err)
				}
			}
		}
		wantStock(t, client, "late", int64(len(tokens)))
	})

	t.Run("DoneIsDoneForLateHoldersToo", func(t *testing.T) {
		late, present := holding{"over", "x", 5}, holding{"over", "y", 6}
		for i, l := range []holding{late, present} {
			if _, err := o.Do(ctx, fmt.Sprint("over-", i), l, "INCR", "over"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := o.Do(ctx, "over-0", late, "INCR", "over"); !errors.Is(err, fence.ErrDone) {
			t.Errorf("asked again by its late holder: %v", err)
		}
		wantStock(t, client, "over", 2)
	})

	t.Run("BothOrNeither", func(t *testing.T) {
		l := holding{"both", "x", 10}
		r.Must(t, "SET", "text", "words")
		var refusal redis.Error
		if _, err := o.Do(ctx, "both-1", l, "INCR", "text"); !errors.As(err, &refusal) {
			t.Errorf("got %v, want the command's refusal", err)
		}
		r.Must(t, "SET", "text", "1")
		if reply, err := o.Do(ctx, "both-1", l, "INCR", "text"); err != nil || reply != int64(2) {
			t.Errorf("it could not be done later: %v, %v", reply, err)
		}
		used, err := client.ConfigGet(ctx, "maxmemory").Result()
		if err != nil {
			t.Fatal(err)
		}
		r.Must(t, "CONFIG", "SET", "maxmemory", "1")
		_, err = o.Do(ctx, "both-2", l, "INCR", "text")
		r.Must(t, "CONFIG", "SET", "maxmemory", used["maxmemory"])
		if err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("without memory: %v", err)
		}
		wantStock(t, client, "text", 2)
		if reply, err := o.Do(ctx, "both-2", l, "GET", "missing"); err != nil || reply != nil {
			t.Errorf("a reply that is nil: %v, %v", reply, err)
		}
	})

	t.Run("OneOfManyWins", func(t *testing.T) {
		var won, refused atomic.Int32
		var crowd sync.WaitGroup
		for i := range 20 {
			crowd.Go(func() {
				_, err := o.Do(ctx, "crowd", holding{"crowd", string(rune('a' + i)), uint64(10 + i%5)}, "INCR", "crowd")
				switch {
				case err == nil:
					won.Add(1)
				case errors.Is(err, fence.ErrDone), errors.Is(err, fence.ErrStale):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		crowd.Wait()
		if won.Load() != 1 || refused.Load() != 19 {
			t.Errorf("%d won, %d were refused", won.Load(), refused.Load())
		}
		wantStock(t, client, "crowd", 1)
	})

	t.Run("LostReply", func(t *testing.T) {
		proxy := servers.StartProxy(t, r.Addr())
		far, farClient := newOnce(t, proxy.Addr(), nil)
		if err := farClient.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		proxy.DropReplies()
		call, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
		defer cancel()
		if _, err := far.Do(call, "lost-1", holding{"lost", "x", 10}, "INCR", "lost"); err == nil || errors.Is(err, fence.ErrDone) {
			t.Errorf("got %v, but nobody knows", err)
		}
		proxy.Pass()
		if _, err := far.Do(ctx, "lost-1", holding{"lost", "x", 10}, "INCR", "lost"); !errors.Is(err, fence.ErrDone) {
			t.Errorf("again: %v", err)
		}
		wantStock(t, client, "lost", 1)

		// The client asks again by itself: it is the same attempt, not another's.
		proxy.DropReplies()
		time.AfterFunc(700*time.Millisecond, proxy.Pass)
		if _, err := far.Do(ctx, "lost-2", holding{"lost", "x", 10}, "INCR", "lost"); err != nil {
			t.Errorf("repeated by the client: %v", err)
		}
		wantStock(t, client, "lost", 2)
	})

	t.Run("MarksEndWithKeep", func(t *testing.T) {
		short, _ := newOnce(t, r.Addr(), &redislock.OnceOptions{Prefix: "short:", Keep: time.Hour})
		if _, err := short.Do(ctx, "k", holding{"n", "x", 10}, "INCR", "kept"); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"short:done:k", "short:token:n"} {
			if left := client.PTTL(ctx, key).Val(); left <= 0 || left > time.Hour {
				t.Errorf("%s ends in %v", key, left)
			}
		}
		if left := client.PTTL(ctx, "once:done:crowd").Val(); left != -1 {
			t.Errorf("a mark that is to stay ends in %v", left)
		}
		for _, bad := range []redislock.OnceOptions{{Keep: -1}, {Keep: time.Microsecond}, {Prefix: "a{b"}, {Prefix: "a\n"}} {
			if _, err := redislock.NewOnce(client, &bad); err == nil {
				t.Errorf("accepts %+v", bad)
			}
		}
		if _, err := o.Do(ctx, "a\nb", holding{"n", "x", 10}, "INCR", "kept"); !errors.Is(err, leasehold.ErrInvalidName) {
			t.Errorf("a key that is no name: %v", err)
		}
	})

	// Killed with -9: what was done stays done, together with its mark.
	r.Kill()
	r.Start(t)
	for tries := 1; ; tries++ { // a call may find a connection of before, or a server that is slow
		_, err := o.Do(ctx, "crowd", holding{"crowd", "z", 100}, "INCR", "crowd")
		if errors.Is(err, fence.ErrDone) {
			break
		}
		if err == nil || tries == 5 {
			t.Fatalf("after a restart: %v", err)
		}
	}
	wantStock(t, client, "crowd", 1)
}

// The answer gets lost, and go-redis sends it again to what is a replica by then. Its
// refusal says nothing of the first time.
func TestServersRefusalIsNotTheCommands(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	p := servers.StartProxy(t, r.Addr())
	client := redis.NewClient(&redis.Options{Addr: p.Addr(), ReadTimeout: time.Minute})
	defer client.Close()
	o, err := redislock.NewOnce(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	direct := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer direct.Close()
	r.Must(t, "SET", "stock", "10")
	l := holding{"shop", "x", 10}
	if _, err := o.Do(t.Context(), "warm", l, "GET", "stock"); err != nil { // the script is loaded
		t.Fatal(err)
	}
	p.DropReplies()
	before := p.Dropped()
	done := make(chan error, 1)
	go func() {
		_, err := o.Do(t.Context(), "order", l, "DECRBY", "stock", 2)
		done <- err
	}()
	for direct.Get(t.Context(), "stock").Val() != "8" && t.Context().Err() == nil && len(done) == 0 {
		time.Sleep(time.Millisecond)
	}
	untilDropped(t, p, before)
	r.Must(t, "REPLICAOF", "127.0.0.1", "1")
	p.Pass()
	err = <-done
	var refusal redis.Error
	if err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Fatalf("got %v, want that of a replica", err)
	}
	if errors.As(err, &refusal) {
		t.Errorf("%v says that nothing has happened", err)
	}
	r.Must(t, "REPLICAOF", "NO", "ONE")
	if _, err := o.Do(t.Context(), "order", l, "DECRBY", "stock", 2); !errors.Is(err, fence.ErrDone) {
		t.Errorf("asked again: %v", err)
	}
	wantStock(t, client, "stock", 8)
}

func TestOnceOnRedisCluster(t *testing.T) {
	t.Parallel()
	var addrs []string
	for _, r := range servers.StartCluster(t, 3) {
		addrs = append(addrs, r.Addr())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer client.Close()
	o, err := redislock.NewOnce(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	for want := error(nil); ; want = fence.ErrDone {
		if _, err := o.Do(t.Context(), "{42}/order", holding{"shop/{42}", "x", 10}, "INCR", "{42}/sold"); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if want != nil {
			break
		}
	}
	if _, err := o.Do(t.Context(), "order", holding{"shop", "x", 10}, "INCR", "sold"); err == nil || errors.Is(err, fence.ErrDone) {
		t.Errorf("keys of different slots: %v", err)
	}
	if n := client.Exists(t.Context(), "sold").Val(); n != 0 {
		t.Error("it happened all the same")
	}
}
