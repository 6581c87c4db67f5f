package redis

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
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/redislock"
)

// A late holds single commands of a client back, as a link does that lost a packet: the
// caller has gone long before the server gets them.
type late struct {
	next atomic.Pointer[chan struct{}] // holds the next script until closed
	sent chan struct{}                 // told when it was held
}

func (*late) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*late) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *late) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			if hold := l.next.Swap(nil); hold != nil {
				l.sent <- struct{}{}
				<-*hold
				ctx = context.WithoutCancel(ctx)
			}
		}
		return next(ctx, cmd)
	}
}

// cancelled makes a call whose command arrives only when let go; it returns when the
// caller has given up.
func (l *late) cancelled(t *testing.T, call func(ctx context.Context) error) (letGo func()) {
	t.Helper()
	hold := make(chan struct{})
	l.next.Store(&hold)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	select {
	case <-l.sent:
	case err := <-ended:
		t.Fatalf("a call that is to hang: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("a call that hangs, and whose context has ended: %v", err)
	}
	return func() {
		close(hold)
		time.Sleep(300 * time.Millisecond) // for the server to serve it, and do no harm
	}
}

func openLate(t *testing.T, addr string, opts *redislock.Options) (*redislock.Driver, *redis.Client, *late) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	l := &late{sent: make(chan struct{}, 1)}
	client.AddHook(l)
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
		letGo := link.cancelled(t, c.Release)
		mustTry(t, c)
		letGo()
		if _, err := lateClaim(t, d, "release", "bbb", time.Minute).Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("a late Release freed a later grant: %v", err)
		}
	})
	t.Run("try after an unknown release", func(t *testing.T) {
		c := lateClaim(t, d, "again", "aaa", time.Minute)
		link.cancelled(t, tryOf(c))()
		link.cancelled(t, c.Release)()
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
	t.Run("renewal", func(t *testing.T) {
		c := lateClaim(t, d, "renew", "aaa", time.Hour)
		mustTry(t, c)
		letGo := link.cancelled(t, renewOf(c, time.Second))
		g, err := c.Renew(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		letGo()
		if left := client.PTTL(t.Context(), "lock:renew").Val(); left < g.TTL-400*time.Millisecond {
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
	t.Run("two renewals", func(t *testing.T) {
		c := lateClaim(t, d, "twice", "aaa", time.Hour)
		mustTry(t, c)
		letGo := link.cancelled(t, renewOf(c, time.Second))
		link.cancelled(t, renewOf(c, time.Minute))()
		g, err := c.Renew(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		letGo()
		if left := client.PTTL(t.Context(), "lock:twice").Val(); left < g.TTL-400*time.Millisecond {
			t.Errorf("%v left of the %v granted: the shorter of two late renewals was forgotten", left, g.TTL)
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
	d, client, _ := openLate(t, r.Addr(), &redislock.Options{Memory: memory})
	if _, err := d.Claim(driver.Request{Resource: "n", Owner: "aaa", TTL: memory + time.Second}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a TTL beyond Memory: %v", err)
	}
	for c := lateClaim(t, d, "n", "first", memory); ; time.Sleep(100 * time.Millisecond) {
		if _, err := c.Try(t.Context()); err == nil {
			if err := c.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			break
		} else if !errors.Is(err, redislock.ErrForgetful) {
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
	if _, err := lateClaim(t, d, "n", "bbb", memory).Try(t.Context()); !errors.Is(err, redislock.ErrForgetful) {
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

// A stuck holds back the first thing that a client writes with text in it. Its connection
// outlives what closes it, as what is in a network does.
type stuck struct {
	text []byte

	mu   sync.Mutex
	conn net.Conn // guarded by mu
	held []byte   // guarded by mu
}

type stuckConn struct {
	net.Conn
	stuck *stuck
}

func (s *stuck) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return stuckConn{conn, s}, err
}

func (c stuckConn) Write(b []byte) (int, error) {
	c.stuck.mu.Lock()
	defer c.stuck.mu.Unlock()
	if c.stuck.conn == nil && bytes.Contains(b, c.stuck.text) {
		c.stuck.conn, c.stuck.held = c.Conn, bytes.Clone(b)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c stuckConn) Close() error {
	c.stuck.mu.Lock()
	defer c.stuck.mu.Unlock()
	if c.stuck.conn == c.Conn {
		return nil
	}
	return c.Conn.Close()
}

// arrive lets the server have, and serve, what was held back.
func (s *stuck) arrive(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		t.Fatal("nothing was held back")
	}
	defer s.conn.Close()
	_ = s.conn.SetDeadline(time.Now().Add(10 * time.Second)) // else the test's own does
	if _, err := s.conn.Write(s.held); err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// go-redis sends a renewal again when there is no answer, too. A first copy that asks for
// less, and arrives at last, leaves no less than what was granted since.
func TestRedisFirstCopyOfAShorterRenewalArrivesLast(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s := &stuck{text: []byte("\r\n3000\r\n")}
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), Dialer: s.dial, ReadTimeout: 500 * time.Millisecond})
	t.Cleanup(func() { client.Close() })
	c := lateClaim(t, redisDriverOf(t, client, nil), "n", "aaa", time.Minute)
	mustTry(t, c)
	var g driver.Grant
	for _, ttl := range []time.Duration{time.Minute, 3 * time.Second, time.Minute} { // the first one loads the script
		var err error
		if g, err = c.Renew(t.Context(), ttl); err != nil {
			t.Fatal(err)
		}
	}
	granted := time.Now()
	s.arrive(t)
	if left := client.PTTL(t.Context(), "lock:n").Val(); left < g.TTL-time.Since(granted)-time.Second {
		t.Errorf("%v left of the %v granted", left, g.TTL)
	}
}

// go-redis sends an attempt again when there is no answer. The first copy, when it arrives
// at last, takes the lock for nobody: not when the second one was granted and that was
// given up, and not when it was refused.
func TestRedisFirstCopyArrivesLast(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	other := redisDriverOf(t, redisClient(t, r), nil)
	warm := lateClaim(t, other, "warm", "aaa", time.Minute) // the server knows the scripts
	mustTry(t, warm)
	if _, err := lateClaim(t, other, "warm", "bbb", time.Minute).Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Fatal(err)
	}
	for _, what := range []string{"granted", "refused"} {
		s := &stuck{text: []byte("owner-" + what)}
		client := redis.NewClient(&redis.Options{Addr: r.Addr(), Dialer: s.dial, ReadTimeout: 500 * time.Millisecond})
		t.Cleanup(func() { client.Close() })
		c := lateClaim(t, redisDriverOf(t, client, nil), what, string(s.text), time.Minute)
		release := c.Release
		if what == "refused" {
			holder := lateClaim(t, other, what, "ccc", time.Minute)
			mustTry(t, holder)
			release = holder.Release
		}
		if _, err := c.Try(t.Context()); errors.Is(err, driver.ErrBusy) != (what == "refused") || err != nil && what == "granted" {
			t.Fatalf("%s: %v", what, err)
		}
		if err := release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.arrive(t)
		if got := r.Must(t, "GET", "lock:"+what); got != "" {
			t.Errorf("%s: %q has the lock, and nobody knows", what, got)
		}
	}
}

// The reply to an attempt is lost, and go-redis sends it again to a server that has lost
// the script. The driver still knows that a first copy may come: the release leaves a mark
// that refuses it.
func TestRedisRepeatedWithoutTheScript(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	p := servers.StartProxy(t, r.Addr())
	client := redis.NewClient(&redis.Options{Addr: p.Addr()})
	t.Cleanup(func() { client.Close() })
	d := redisDriverOf(t, client, nil)
	warm := lateClaim(t, d, "warm", "owner", time.Minute)
	mustTry(t, warm)
	p.DropReplies()
	before := p.Dropped()
	c := lateClaim(t, d, "flushed", "owner", time.Minute)
	tried := make(chan error, 1)
	go func() {
		_, err := c.Try(t.Context())
		tried <- err
	}()
	for p.Dropped() == before {
		time.Sleep(time.Millisecond)
	}
	r.Must(t, "SCRIPT", "FLUSH")
	p.Pass()
	if err := <-tried; err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	const gone = "lock:\x1fg{lock:flushed}\x1fowner"
	if n, err := redisClient(t, r).Exists(t.Context(), gone).Result(); n != 1 || err != nil {
		t.Errorf("the claim's mark: %d, %v", n, err)
	}
}
