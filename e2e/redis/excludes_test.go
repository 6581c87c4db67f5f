package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/rivals"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestMain also runs the processes of the fight.
func TestMain(m *testing.M) {
	if what, ok := os.LookupEnv(fighterEnv); ok {
		fight(what)
	}
	os.Exit(m.Run())
}

// locker is a Locker of one more process on r until t ends.
func locker(t testing.TB, r *servers.Redis, o leasehold.Options) *leasehold.Locker {
	t.Helper()
	d, err := redislock.Open(&redis.Options{Addr: r.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := leasehold.New(d, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		d.Close()
	})
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
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer client.Close()
	const name, key = "contest", "lock:contest"
	var section rivals.Section
	alone := func() error { return section.Alone(ctx) }
	all := section.Ours(ctx, name, rounds, locker(t, r, leasehold.Options{}), locker(t, r, leasehold.Options{HandOver: -1}))
	theirs := bsm.New(client)
	red := redsync.New(goredis.NewPool(client))
	for who, enter := range map[string]func() error{
		"bare recipe": func() error { return bareRecipe{client, key}.do(ctx, alone) },
		"bsm/redislock": func() error {
			lock, err := theirs.Obtain(ctx, key, 10*time.Second, &bsm.Options{RetryStrategy: bsm.LinearBackoff(time.Millisecond)})
			if err != nil {
				return err
			}
			return errors.Join(alone(), lock.Release(ctx))
		},
		"redsync": func() error {
			m := red.NewMutex(key, redsync.WithTries(100000), redsync.WithRetryDelay(time.Millisecond), redsync.WithExpiry(10*time.Second))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			err := alone()
			_, released := m.UnlockContext(ctx)
			return errors.Join(err, released)
		},
	} {
		all[who] = rivals.Rival{Enter: enter, Rounds: rounds}
	}
	section.Contend(t, 2, all)
}
