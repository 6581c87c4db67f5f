package redislock_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Programs in Python with redis-py's Lock, and ours on the same keys, exclude each other:
// they add to a number in a file that nothing else protects.
func TestRedisExcludesRedisPy(t *testing.T) {
	t.Parallel()
	const rounds, processes = 50, 2
	python := servers.NeedPython(t, "redis")
	r := servers.StartRedis(t)
	host, port, err := net.SplitHostPort(r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	locks := redisLocker(t, r, &redislock.Options{NoPrefix: true}, leasehold.Options{})
	var all sync.WaitGroup
	for range processes {
		all.Go(func() {
			cmd := exec.CommandContext(ctx, python, "testdata/sections.py", host, port, "stock", file, strconv.Itoa(rounds))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("redis-py: %v\n%s", err, out)
			}
		})
		all.Go(func() {
			for range rounds {
				if err := locks.Do(ctx, "stock", func(context.Context) error { return addOne(file) }); err != nil {
					t.Errorf("ours: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	text, err := os.ReadFile(file)
	if want := strconv.Itoa(2 * processes * rounds); err != nil || string(text) != want {
		t.Errorf("the number is %q after %s sections: %v", text, want, err)
	}
}

func addOne(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}
