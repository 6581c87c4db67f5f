package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A late is how a client is connected. It holds a connection back, as a link does that lost a packet:
// the caller has gone, and the connection has ended for the client, long before the server gets what was sent.
type late struct {
	next atomic.Pointer[held] // is what the next script is sent on
	sent chan *held           // told when that was held
}

// held is a connection whose writes are held back from some script on.
type held struct {
	net.Conn
	link *late

	mu     sync.Mutex
	holds  bool   // guarded by mu
	bytes  []byte // guarded by mu
	closed chan struct{}
}

func (l *late) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &held{Conn: conn, link: l, closed: make(chan struct{})}, nil
}

func (h *held) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.holds {
		if !bytes.Contains(b, []byte("EVAL")) || !h.link.next.CompareAndSwap(holdNext, nil) {
			return h.Conn.Write(b)
		}
		h.holds = true
		h.link.sent <- h
	}
	h.bytes = append(h.bytes, b...)
	return len(b), nil
}

// Close leaves the connection to what is held.
func (h *held) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.holds {
		return h.Conn.Close()
	}
	select {
	case <-h.closed:
	default:
		close(h.closed)
	}
	return nil
}

// holdNext asks for the next script to be held.
var holdNext = new(held)

// cancelled makes a call whose command arrives only when let go; it returns when the
// caller has given up, and the client the connection.
func (l *late) cancelled(t *testing.T, call func(ctx context.Context) error) (letGo func()) {
	t.Helper()
	l.next.Store(holdNext)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	var h *held
	select {
	case h = <-l.sent:
	case err := <-ended:
		t.Fatalf("a call that is to hang: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("a call that hangs, and whose context has ended: %v", err)
	}
	_ = h.SetReadDeadline(time.Now()) // breaks the connection for the client
	<-h.closed
	return func() { h.arrive(t) }
}

// arrive lets the server have, and serve, what was held back.
func (h *held) arrive(t *testing.T) {
	t.Helper()
	defer h.Conn.Close()
	_ = h.SetDeadline(time.Now().Add(10 * time.Second)) // else the test's own does
	if _, err := h.Conn.Write(h.bytes); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func openLate(t *testing.T, addr string, opts *redislock.Options) (*redislock.Driver, *redis.Client, *late) {
	t.Helper()
	l := &late{sent: make(chan *held, 1)}
	client := redis.NewClient(&redis.Options{Addr: addr, Dialer: l.dial})
	d, err := redislock.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		client.Close()
	})
	return d, client, l
}

func lateClaim(t *testing.T, d driver.Driver, name, owner string, ttl time.Duration) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: name, Owner: owner, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustTry(t *testing.T, c driver.Claim) {
	t.Helper()
	if _, err := c.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func tryOf(c driver.Claim) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.Try(ctx)
		return err
	}
}

func renewOf(c driver.Claim, ttl time.Duration) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.Renew(ctx, ttl)
		return err
	}
}

// What arrives late must not undo what was granted or extended since.
func TestRedisLateCommandsDoNoHarm(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, client, link := openLate(t, r.Addr(), nil)

	t.Run("release", func(t *testing.T) {
		c := lateClaim(t, d, "release", "aaa", time.Minute)
		mustTry(t, c)
		letGo := link.cancelled(t, claimtest.Release(c))
		mustTry(t, c)
		letGo()
		if _, err := lateClaim(t, d, "release", "bbb", time.Minute).Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("a late Release freed a later grant: %v", err)
		}
	})
	t.Run("try after an unknown release", func(t *testing.T) {
		c := lateClaim(t, d, "again", "aaa", time.Minute)
		link.cancelled(t, tryOf(c))()
		link.cancelled(t, claimtest.Release(c))()
		mustTry(t, c)
	})
	t.Run("try", func(t *testing.T) {
		c := lateClaim(t, d, "try", "aaa", time.Second)
		letGo := link.cancelled(t, tryOf(c))
		mustTry(t, c)
		if _, err := c.Renew(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		letGo()
		if left := client.PTTL(t.Context(), "lock:try").Val(); left < 30*time.Minute {
			t.Errorf("%v left of the hour: a late Try shortened it", left)
		}
	})
	t.Run("try, after an eviction", func(t *testing.T) {
		for name, calls := range map[string]func(c driver.Claim){
			"after a try":               func(driver.Claim) {},
			"after a release and a try": func(c driver.Claim) { link.cancelled(t, claimtest.Release(c)) },
		} {
			c := lateClaim(t, d, "evicted "+name, "aaa", time.Minute)
			letGo := link.cancelled(t, tryOf(c))
			calls(c)
			mustTry(t, c)
			if err := d.Evict(t.Context(), "evicted "+name, "aaa", "reason"); err != nil {
				t.Fatal(err)
			}
			letGo()
			if _, err := lateClaim(t, d, "evicted "+name, "bbb", time.Minute).Try(t.Context()); err != nil {
				t.Errorf("%s: a late Try took the lease again: %v", name, err)
			}
		}
	})
	t.Run("renewal", func(t *testing.T) {
		c := lateClaim(t, d, "renew", "aaa", time.Hour)
		mustTry(t, c)
		letGo := link.cancelled(t, renewOf(c, time.Second))
		g, err := c.Renew(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		letGo()
		if left := client.PTTL(t.Context(), "lock:renew").Val(); g.TTL < time.Hour || left < 30*time.Minute {
			t.Errorf("%v left of the %v granted: a late renewal shortened it", left, g.TTL)
		}
	})
	t.Run("renewal before a longer one", func(t *testing.T) {
		c := lateClaim(t, d, "longer", "aaa", time.Minute)
		mustTry(t, c)
		letGo := link.cancelled(t, renewOf(c, time.Minute))
		g, err := c.Renew(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if g.TTL != time.Hour {
			t.Errorf("%v granted of an hour, which nothing can shorten", g.TTL)
		}
		letGo()
		if left := client.PTTL(t.Context(), "lock:longer").Val(); left < 30*time.Minute {
			t.Errorf("%v left of the hour: a late renewal shortened it", left)
		}
	})
}

// One key that somebody damaged fails its own renewal at most, and no other.
func TestRedisDamagedKeyFailsItsOwnRenewalOnly(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, client, _ := openLate(t, r.Addr(), nil)
	for what, spoil := range map[string]func(lock, history string){
		"lock is a list":    func(lock, _ string) { client.Del(t.Context(), lock); client.LPush(t.Context(), lock, "x") },
		"history is a list": func(_, h string) { client.Del(t.Context(), h); client.LPush(t.Context(), h, "x") },
		"history is text":   func(_, h string) { client.Set(t.Context(), h, "\xcf", 0) },
	} {
		t.Run(what, func(t *testing.T) {
			var renewals []driver.Renewal
			for i := range 10 {
				c := lateClaim(t, d, fmt.Sprint(what, i), fmt.Sprint("owner", i), time.Minute)
				mustTry(t, c)
				renewals = append(renewals, driver.Renewal{Claim: c, TTL: time.Minute})
			}
			lock := fmt.Sprint("lock:", what, 5)
			spoil(lock, "lock:\x1ff{"+lock+"}")
			d.RenewAll(t.Context(), renewals)
			for i, r := range renewals {
				if (r.Err == nil) != (i != 5 || what != "lock is a list") { // histories are left alone
					t.Errorf("renewal %d: %v", i, r.Err)
				}
			}
		})
	}
}

// A server that came back with the data of a while ago has a history, and has forgotten
// all the same.
func TestRedisOldSnapshotIsForgetful(t *testing.T) {
	t.Parallel()
	const memory = 3 * time.Second
	r := servers.StartRedis(t)
	d, client, _ := openLate(t, r.Addr(), &redislock.Options{MinUptime: memory})
	if _, err := d.Claim(driver.Request{Resource: "n", Owner: "aaa", TTL: memory + time.Second}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a TTL beyond MinUptime: %v", err)
	}
	for c := lateClaim(t, d, "n", "first", memory); ; time.Sleep(100 * time.Millisecond) {
		if _, err := c.Try(t.Context()); err == nil {
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Fatal(err)
			}
			break
		} else if !errors.Is(err, redislock.ErrServerTooYoung) {
			t.Fatal(err)
		}
	}
	if err := d.RaiseFence(t.Context(), "n", 1000); err != nil {
		t.Fatal(err)
	}
	if err := client.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	mustTry(t, lateClaim(t, d, "n", "aaa", memory))
	r.Kill()
	r.Start(t)
	if _, err := lateClaim(t, d, "n", "bbb", memory).Try(t.Context()); !errors.Is(err, redislock.ErrServerTooYoung) {
		t.Errorf("a second holder, or %v", err)
	}
}

// A refused TryAcquire leaves nothing in the driver: programs try for years.
func TestRedisRefusedTriesLeaveNothing(t *testing.T) {
	const tries = 10_000
	r := servers.StartRedis(t)
	other, _, _ := openLate(t, r.Addr(), nil)
	mustTry(t, lateClaim(t, other, "n", "other", time.Hour))
	d, _, _ := openLate(t, r.Addr(), nil)
	locks := newLocker(t, d)
	refuse := func(n int) {
		for range n {
			if _, err := locks.TryAcquire(t.Context(), "n"); !errors.Is(err, leasehold.ErrBusy) {
				t.Fatal(err)
			}
		}
	}
	refuse(100) // pools and caches fill
	before := heapInUse()
	refuse(tries)
	if each := (int64(heapInUse()) - int64(before)) / tries; each > 100 {
		t.Errorf("each of %d refusals left %d bytes", tries, each)
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// An attempt has no answer, and is made again. The first one, when it arrives at last, takes the lock for
// nobody: not when the second was granted and that was given up, and not when it was refused.
func TestRedisFirstAttemptArrivesLast(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	other := redisDriverOf(t, redisClient(t, r), nil)
	warm := lateClaim(t, other, "warm", "aaa", time.Minute) // the server knows the scripts
	mustTry(t, warm)
	if _, err := lateClaim(t, other, "warm", "bbb", time.Minute).Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Fatal(err)
	}
	for _, what := range []string{"granted", "refused"} {
		d, _, link := openLate(t, r.Addr(), nil)
		c := lateClaim(t, d, what, "owner", time.Minute)
		letGo := link.cancelled(t, tryOf(c))
		if what == "refused" {
			holder := lateClaim(t, other, what, "ccc", time.Minute)
			mustTry(t, holder)
			if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
				t.Fatal(err)
			}
			if err := holder.Release(t.Context(), driver.End{}); err != nil {
				t.Fatal(err)
			}
		} else {
			mustTry(t, c)
		}
		if err := c.Release(t.Context(), driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatal(err)
		}
		letGo()
		if got := r.Must(t, "GET", "lock:"+what); got != "" {
			t.Errorf("%s: %q has the lock, and nobody knows", what, got)
		}
	}
}

// A note that comes late replaces no later one.
func TestLateNote(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, _, link := openLate(t, r.Addr(), nil)
	for name, mode := range map[string]driver.Mode{"exclusive": driver.Exclusive, "shared": driver.Shared} {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", Mode: mode, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		mustTry(t, c)
		if err := c.Note(t.Context(), "warm"); err != nil { // the server knows the script
			t.Fatal(err)
		}
		late := link.cancelled(t, func(ctx context.Context) error { return c.Note(ctx, "first") })
		for _, note := range []string{"second", "third"} {
			if err := c.Note(t.Context(), note); err != nil {
				t.Fatal(err)
			}
		}
		late()
		if st, err := d.Inspect(t.Context(), name); err != nil || len(st.Holders) != 1 || st.Holders[0].Note != "third" {
			t.Errorf("%s: %+v, %v; want the third note", name, st.Holders, err)
		}
		other, _, _ := openLate(t, r.Addr(), nil)
		resumed := lateClaim(t, other, name, "o", time.Minute)
		if mode == driver.Exclusive {
			if err := resumed.Note(t.Context(), "fourth"); err != nil {
				t.Fatal(err)
			}
			if st, err := d.Inspect(t.Context(), name); err != nil || st.Holders[0].Note != "fourth" {
				t.Errorf("%s: %+v, %v; want that of another process", name, st.Holders, err)
			}
		}
	}
}
