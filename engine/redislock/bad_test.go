package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/rivals"
	"github.com/leasehold-go/leasehold/internal/servers"
)

const redisCanary = "s3cr3t-canary"

// refusedFor checks that no call believes in a lock, and that the error says what to do.
func refusedFor(t *testing.T, d driver.Driver, want error) {
	t.Helper()
	l := lockerOn(t, d, leasehold.Options{})
	for _, opt := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		lease, err := l.TryAcquire(t.Context(), "bad", opt...)
		if lease != nil || !errors.Is(err, want) {
			t.Errorf("TryAcquire: lease %v, %v; want %v", lease != nil, err, want)
		}
		if err != nil && strings.Contains(err.Error(), redisCanary) {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

func TestRedisWrongPassword(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Must(t, "CONFIG", "SET", "requirepass", "right")
	for what, o := range map[string]redis.Options{
		"none":       {},
		"wrong":      {Password: redisCanary},
		"wrong user": {Username: "nobody", Password: redisCanary},
	} {
		t.Run(what, func(t *testing.T) {
			o.Addr = r.Addr()
			client := redis.NewClient(&o)
			defer client.Close()
			refusedFor(t, redisDriverOf(t, client, nil), redislock.ErrAuth)
		})
	}
}

func TestRedisWrongType(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Must(t, "RPUSH", "lock:bad", "somebody's data")
	d := redisDriverOf(t, redisClient(t, r), nil)
	refusedFor(t, d, redislock.ErrWrongType)
	refusedFor(t, d, driver.ErrCorrupt)
	if got := r.Must(t, "LRANGE", "lock:bad", "0", "-1"); got != "somebody's data" {
		t.Errorf("the data became %q", got)
	}
}

func TestRedisReadOnlyReplica(t *testing.T) {
	t.Parallel()
	primary := servers.StartRedis(t, "--repl-diskless-sync-delay", "0")
	replica := servers.StartRedis(t, "--replicaof", "127.0.0.1 "+fmt.Sprint(primary.Port))
	refusedFor(t, redisDriverOf(t, redisClient(t, replica), nil), redislock.ErrReadOnly)
}

func TestRedisOutOfMemory(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, "--maxmemory-policy", "noeviction")
	d := redisDriverOf(t, redisClient(t, r), nil)
	l := lockerOn(t, d, leasehold.Options{})
	var leases []*leasehold.Lease
	for i, opt := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		lease, err := l.Acquire(t.Context(), fmt.Sprint("before-", i), opt...)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	r.Must(t, "CONFIG", "SET", "maxmemory", "1")
	refusedFor(t, d, redislock.ErrOutOfMemory)
	for _, lease := range leases {
		if err := lease.Extend(t.Context(), 10*time.Second); err != nil {
			t.Errorf("Extend when memory is short: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release when memory is short: %v", err)
		}
	}
	r.Must(t, "CONFIG", "SET", "maxmemory", "0")
	if keys := r.Must(t, "KEYS", "*bad*"); keys != "" && strings.Contains(keys, "lock:bad\n") {
		t.Errorf("left behind: %q", keys)
	}
}

func TestRedisLoading(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Must(t, "EVAL", `for i = 1, 3000 do redis.call("SET", "data-" .. i, string.rep("x", 100)) end`, "0")
	r.Must(t, "SAVE")
	client := redisClient(t, r)
	r.Kill()
	r.Loading(t, "--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
	refusedFor(t, redisDriverOf(t, client, nil), redislock.ErrLoading)
}

func TestRedisClusterDown(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, "--cluster-enabled", "yes") // it serves no slot
	refusedFor(t, redisDriverOf(t, redisClient(t, r), nil), redislock.ErrClusterDown)
}

func TestRedisCheckWarnsOfEviction(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	d := redisDriverOf(t, redisClient(t, r), nil)
	if level, text := servers.Found(t, d, driver.AboutEviction); level != driver.Weak || !strings.Contains(text, "allkeys-lru") {
		t.Errorf("Check: %v, %q; want a warning", level, text)
	}
	r.Must(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	if level, text := servers.Found(t, d, driver.AboutEviction); level != driver.Fine {
		t.Errorf("Check: %v, %q; want no warning", level, text)
	}
}

func TestRedisIdentify(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	id, err := d.Identify(t.Context())
	if err != nil || len(id) != 40 {
		t.Errorf("Identify: %q, %v", id, err)
	}
	r.Kill()
	r.Start(t)
	if again, err := d.Identify(t.Context()); err != nil || again == id {
		t.Errorf("Identify after a restart: %q, %v; was %q", again, err, id)
	}
}

// aclRule is what docs/engines/redis.md gives to the user that only locks.
func aclRule(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/engines/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rule, _ := strings.Cut(string(page), "ACL SETUSER locker")
	rule, _, ok := strings.Cut(rule, "```")
	if !ok {
		t.Fatal("the documentation has no ACL rule")
	}
	return append([]string{"ACL", "SETUSER", "locker"}, strings.Fields(strings.Replace(rule, "PASSWORD", "right", 1))...)
}

// The user of the documentation can do all that a lock needs, and nothing else.
func TestRedisACLRule(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Must(t, aclRule(t)...)
	user := func() *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "locker", Password: "right"})
		t.Cleanup(func() { c.Close() })
		return c
	}
	if err := user().Get(t.Context(), "data").Err(); !redis.IsPermissionError(err) {
		t.Errorf("GET of somebody else's key: %v; want NOPERM", err)
	}
	d := redisDriverOf(t, user(), nil)
	l, other := lockerOn(t, d, leasehold.Options{}), lockerOn(t, redisDriverOf(t, user(), nil), leasehold.Options{HandOver: -1})
	rivals.Permitted(t, l, other, "acl")
	lease, err := l.Acquire(t.Context(), "shortened")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Extend(t.Context(), 5*time.Second); err != nil || leftOf(t, r, "lock:shortened") > 5*time.Second {
		t.Errorf("%v left of the 5 s of an Extend: %v", leftOf(t, r, "lock:shortened"), err)
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		h := holderOf(t, d, "wanted "+mode.String(), mode, time.Minute)
		mustTry(t, h)
		waiterOn(t, redisDriverOf(t, user(), nil), "wanted "+mode.String(), "waiter")
		h.isTold(t, "by the one who waits")
	}
	if err := d.RaiseFence(t.Context(), "acl", 1); err != nil {
		t.Error(err)
	}
	if _, err := d.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// The same user suffices on each server of a Redlock.
func TestRedlockACLRule(t *testing.T) {
	t.Parallel()
	var clients []redis.UniversalClient
	for range 3 {
		r := servers.StartRedis(t)
		r.Must(t, aclRule(t)...)
		c := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "locker", Password: "right"})
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	d, err := redislock.NewRedlock(clients, &redislock.Options{NoMinUptime: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l := lockerOn(t, d, leasehold.Options{TTL: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// A busy machine may not hear of all servers in time.
	patient := func(call func() error) {
		t.Helper()
		err := call()
		for err != nil && !errors.Is(err, driver.ErrDenied) && ctx.Err() == nil {
			err = call()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var lease *leasehold.Lease
	patient(func() (err error) { lease, err = l.Acquire(ctx, "acl"); return err })
	patient(func() error {
		found, _, err := d.List(ctx, "", "", 10)
		if err == nil && len(found) != 1 {
			t.Errorf("List: %v", found)
		}
		return err
	})
	patient(func() error { _, err := d.Check(ctx); return err })
	patient(func() error {
		if err := lease.Release(ctx); !errors.Is(err, driver.ErrLost) { // else an earlier call has released it
			return err
		}
		return nil
	})
}
