package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// openedOn is a driver of its own until t ends.
func openedOn(t *testing.T, server *redis.Options, opts *redislock.Options) *redislock.Driver {
	t.Helper()
	d, err := redislock.Open(server, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// dialing makes the n-th connection (from 0) to address(n).
func dialing(address func(n int) string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	var made atomic.Int32
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address(int(made.Add(1))-1))
	}
}

// trickling is a connection that brings little at a time.
type trickling struct{ net.Conn }

func (c trickling) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 1<<10)])
	time.Sleep(20 * time.Millisecond)
	return n, err
}

// A long answer that takes its time is not silence: it arrives, and others take another connection
// meanwhile.
func TestRedisSlowAnswer(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	queue := openedOn(t, &redis.Options{Addr: r.Addr()}, nil)
	mustTry(t, lateClaim(t, queue, "long", "holder", time.Minute))
	const waiters = 120 // whose notes take 10 s to arrive
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() {
			c, err := queue.Claim(driver.Request{Resource: "long", Owner: fmt.Sprint("waiter ", i), TTL: time.Minute, Queue: true, Note: strings.Repeat("n", driver.MaxNote)})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
				t.Errorf("Try: %v", err)
			}
		})
	}
	all.Wait()
	var slow atomic.Bool
	d := openedOn(t, &redis.Options{Addr: r.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil && slow.CompareAndSwap(false, true) {
			c = trickling{c}
		}
		return c, err
	}}, nil)
	mustTry(t, lateClaim(t, d, "first", "a", time.Minute))
	start := time.Now()
	seen := make(chan error, 1)
	go func() {
		st, err := d.Inspect(t.Context(), "long")
		if err == nil && len(st.Waiters) == 0 {
			err = errors.New("no waiter is seen")
		}
		seen <- err
	}()
	time.Sleep(500 * time.Millisecond) // it has begun to arrive
	for i := range 10 {
		mustTry(t, lateClaim(t, d, fmt.Sprint("meanwhile ", i), "a", time.Minute))
	}
	t.Logf("others were answered after %v", time.Since(start))
	if err := <-seen; err != nil {
		t.Errorf("Inspect, after %v: %v", time.Since(start), err)
	}
	t.Logf("Inspect took %v", time.Since(start))
}

// A server that accepts connections and says nothing is given up, also where go-redis would wait for ever.
func TestRedisSilentHandshakes(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	hole, err := net.Listen("tcp", "127.0.0.1:0") // its kernel connects, and nobody reads
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hole.Close() })
	d := openedOn(t, &redis.Options{Addr: r.Addr(), ReadTimeout: -1, WriteTimeout: -1, Dialer: dialing(func(n int) string {
		if n < 3 {
			return hole.Addr().String()
		}
		return r.Addr()
	})}, nil)
	c := lateClaim(t, d, "a", "a", time.Minute)
	for end := time.Now().Add(30 * time.Second); ; {
		ctx, cancel := context.WithDeadline(t.Context(), end)
		_, err := c.Try(ctx)
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("Try, when the server has been back for long: %v", err)
		}
	}
}

// A stream is credentials that change.
type stream struct {
	mu        sync.Mutex
	now       auth.Credentials
	listeners map[auth.CredentialsListener]bool
}

func (s *stream) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners[l] = true
	return s.now, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, l)
		return nil
	}, nil
}

func (s *stream) change(to auth.Credentials) {
	s.mu.Lock()
	s.now = to
	var all []auth.CredentialsListener
	for l := range s.listeners {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.OnNext(to)
	}
}

// Credentials that change are taken for calls before the former ones end, and with them their connections.
func TestRedisCredentialsChange(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	for _, user := range []string{"old", "new"} {
		r.Must(t, "ACL", "SETUSER", user, "on", ">"+user, "~*", "&*", "+@all")
	}
	s := &stream{now: auth.NewBasicCredentials("old", "old"), listeners: make(map[auth.CredentialsListener]bool)}
	d := openedOn(t, &redis.Options{Addr: r.Addr(), StreamingCredentialsProvider: s}, nil)
	c := lateClaim(t, d, "a", "a", time.Minute)
	mustTry(t, c)
	s.change(auth.NewBasicCredentials("new", "new"))
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Errorf("Release with new credentials: %v", err)
	}
	within(t, 10*time.Second, "no call goes as the former user", func() bool {
		list := r.Must(t, "CLIENT", "LIST")
		for line := range strings.Lines(list) {
			if strings.Contains(line, "user=old") && strings.Contains(line, "cmd=eval") {
				return false
			}
		}
		return strings.Contains(list, "user=new")
	})
	r.Must(t, "ACL", "DELUSER", "old")
	mustTry(t, c)
	d.Close()
	within(t, 10*time.Second, "nobody listens any more", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.listeners) == 0
	})
}

// A user that is deleted ends its connection, and a lease outlives that: the next call says who it is anew.
func TestRedisUserIsReplaced(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	var user atomic.Value
	user.Store("old")
	for _, name := range []string{"old", "new"} {
		r.Must(t, "ACL", "SETUSER", name, "on", ">"+name, "~*", "&*", "+@all")
	}
	d := openedOn(t, &redis.Options{Addr: r.Addr(), CredentialsProvider: func() (string, string) {
		name := user.Load().(string)
		return name, name
	}}, nil)
	c := lateClaim(t, d, "a", "a", time.Minute)
	mustTry(t, c)
	user.Store("new")
	r.Must(t, "ACL", "DELUSER", "old")
	within(t, 10*time.Second, "the lease is renewed", func() bool {
		_, err := c.Renew(t.Context(), time.Minute)
		if errors.Is(err, driver.ErrLost) {
			t.Fatal(err)
		}
		return err == nil
	})
	user.Store("wrong")
	r.Must(t, "ACL", "DELUSER", "new")
	within(t, 10*time.Second, "it is told that the user is wrong", func() bool {
		_, err := c.Renew(t.Context(), time.Minute)
		return errors.Is(err, redislock.ErrAuth)
	})
}

// Close leaves nothing behind, also while calls are out on a link that is dark.
func TestRedisCloseLeavesNothing(t *testing.T) {
	server := servers.StartRedis(t)
	p := servers.StartProxy(t, server.Addr())
	goroutines := runtime.NumGoroutine()
	for range 3 {
		p.Pass()
		d, err := redislock.Open(&redis.Options{Addr: p.Addr()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := lateClaim(t, d, "first", "a", time.Minute)
		mustTry(t, c)
		p.Dark()
		ended := make(chan error, 200)
		for i := range cap(ended) {
			go func() {
				_, err := lateClaim(t, d, fmt.Sprint("out ", i), "a", time.Minute).Try(context.Background())
				ended <- err
			}()
		}
		time.Sleep(600 * time.Millisecond) // some are out, some wait for a connection
		d.Close()
		for range cap(ended) {
			if err := <-ended; !errors.Is(err, driver.ErrClosed) {
				t.Errorf("a call when the driver was closed: %v", err)
			}
		}
		p.Pass()
		p.Reset()
		server.Must(t, "FLUSHALL")
	}
	within(t, 15*time.Second, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines+6 })
}

// The link ends while replicas are asked: the outcome is unknown, however the server had answered.
func TestRedisLinkEndsWhileReplicasAreAsked(t *testing.T) {
	t.Parallel()
	r, replica := servers.StartRedis(t), servers.StartRedis(t)
	replica.Must(t, "REPLICAOF", "127.0.0.1", fmt.Sprint(r.Port))
	within(t, 20*time.Second, "the replica follows", func() bool {
		return strings.Contains(r.Must(t, "INFO", "replication"), "state=online")
	})
	p := servers.StartProxy(t, r.Addr())
	d := openedOn(t, &redis.Options{Addr: p.Addr()}, &redislock.Options{Replicas: 1})
	first := lateClaim(t, d, "first", "a", time.Minute)
	within(t, 20*time.Second, "the replica acknowledges", func() bool { // one that has just come takes a while
		_, err := first.Try(t.Context())
		return err == nil
	})
	defer replica.Pause()()
	within(t, time.Minute, "the link ends before the driver has given the replicas up", func() bool {
		c := lateClaim(t, d, "asked", "a", time.Minute)
		tried := make(chan error, 1)
		go func() {
			_, err := c.Try(t.Context())
			tried <- err
		}()
		within(t, 10*time.Second, "the server has granted", func() bool { return r.Must(t, "EXISTS", "lock:asked") == "1" || len(tried) > 0 })
		p.Reset()
		err := <-tried
		if err == nil || errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try: %v", err)
		}
		within(t, 10*time.Second, "what was granted is released", func() bool { // its link may have ended, too
			return c.Release(t.Context(), driver.End{}) == nil
		})
		if r.Must(t, "EXISTS", "lock:asked") != "0" {
			t.Fatal("it is still held")
		}
		return !errors.Is(err, redislock.ErrReplicas)
	})
}
