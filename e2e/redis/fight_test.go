package redis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// fighterEnv makes this test binary a process that fights for one key; its value is
// KIND;ADDR;DIR.
const fighterEnv = "LEASEHOLD_REDIS_FIGHTER"

const (
	fightTTL    = 4 * time.Second
	fightRounds = 30 // of each goroutine
	fightTeam   = 2  // goroutines of each process
)

// fighters are the kinds of processes: each returns what runs one section under its lock.
var fighters = map[string]func(client *redis.Client) (func(ctx context.Context, section func() error) error, error){
	"bare recipe": func(client *redis.Client) (func(context.Context, func() error) error, error) {
		return bareRecipe{client, "lock:fight"}.do, nil
	},
	"bsm/redislock": func(client *redis.Client) (func(context.Context, func() error) error, error) {
		locks := bsm.New(client)
		return func(ctx context.Context, section func() error) error {
			lock, err := locks.Obtain(ctx, "lock:fight", fightTTL, &bsm.Options{RetryStrategy: bsm.LinearBackoff(time.Millisecond)})
			if err != nil {
				return err
			}
			return errors.Join(section(), lock.Release(ctx))
		}, nil
	},
	"redsync": func(client *redis.Client) (func(context.Context, func() error) error, error) {
		locks := redsync.New(goredis.NewPool(client))
		return func(ctx context.Context, section func() error) error {
			m := locks.NewMutex("lock:fight", redsync.WithTries(1_000_000), redsync.WithRetryDelay(time.Millisecond), redsync.WithExpiry(fightTTL))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			err := section()
			_, released := m.UnlockContext(ctx)
			return errors.Join(err, released)
		}, nil
	},
	"ours":                          oursFights(leasehold.Options{TTL: fightTTL}),
	"ours, without local hand-over": oursFights(leasehold.Options{TTL: fightTTL, HandOver: -1}),
}

func oursFights(o leasehold.Options) func(client *redis.Client) (func(context.Context, func() error) error, error) {
	return func(client *redis.Client) (func(context.Context, func() error) error, error) {
		d, err := redislock.New(client, nil)
		if err != nil {
			return nil, err
		}
		l, err := leasehold.New(d, &o)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, section func() error) error {
			return l.Do(ctx, "fight", func(context.Context) error { return section() })
		}, nil
	}
}

// An arena is a folder where processes see whether another is inside.
type arena string

// section fails when another is inside, and counts in a file without any protection but
// the lock. A process that dies inside leaves the mark for who finds it after the TTL.
func (a arena) section(stay time.Duration) error {
	mark := filepath.Join(string(a), "inside")
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		since, err := os.Stat(mark)
		if err == nil && time.Since(since.ModTime()) < fightTTL*9/10 {
			return fmt.Errorf("two holders at once: the other came in %v ago", time.Since(since.ModTime()))
		}
		f, err = os.Create(mark)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	f.Close()
	time.Sleep(stay)
	n := a.count()
	if err := os.WriteFile(filepath.Join(string(a), "count"), []byte(strconv.Itoa(n+1)), 0o600); err != nil {
		return err
	}
	return os.Remove(mark)
}

func (a arena) count() int {
	b, _ := os.ReadFile(filepath.Join(string(a), "count")) // 0 before the first
	n, _ := strconv.Atoi(string(b))
	return n
}

// fight is the inside of such a process; it ends it.
func fight(what string) {
	kind, rest, _ := strings.Cut(what, ";")
	addr, dir, _ := strings.Cut(rest, ";")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err := func() error {
		stay := 200 * time.Microsecond
		name, dies := strings.CutSuffix(kind, ", dies inside")
		if dies {
			stay = time.Hour
		}
		once, err := fighters[name](redis.NewClient(&redis.Options{Addr: addr}))
		if err != nil {
			return err
		}
		errs := make(chan error, fightTeam)
		for range fightTeam {
			go func() {
				errs <- func() error {
					for range fightRounds {
						if err := once(ctx, func() error { return arena(dir).section(stay) }); err != nil {
							return err
						}
					}
					return nil
				}()
			}()
		}
		for range fightTeam {
			err = errors.Join(err, <-errs)
		}
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Processes with five kinds of lock fight for one key, and one dies while it holds it:
// nobody is inside with another, and nobody is left outside.
func TestRedisExcludesOtherProcesses(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	dir := arena(t.TempDir())
	start := func(kind string) (*exec.Cmd, *strings.Builder) {
		cmd := exec.Command(os.Args[0])
		out := new(strings.Builder)
		cmd.Env = append(os.Environ(), fighterEnv+"="+kind+";"+r.Addr()+";"+string(dir))
		cmd.Stderr = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // most have ended
		return cmd, out
	}
	inside := func() bool {
		_, err := os.Stat(filepath.Join(string(dir), "inside"))
		return err == nil
	}
	dies, _ := start("ours, dies inside")
	for end := time.Now().Add(20 * time.Second); !inside(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the one that dies does not come in")
		}
	}
	var all sync.WaitGroup
	for kind := range fighters {
		cmd, out := start(kind)
		all.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s: %v: %s", kind, err, out)
			}
		})
	}
	if err := dies.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = dies.Wait() // it was killed
	all.Wait()
	if n, want := dir.count(), len(fighters)*fightTeam*fightRounds; n != want {
		t.Errorf("%d sections were counted, want %d", n, want)
	}
}
