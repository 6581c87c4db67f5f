package redislock_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A dawdler is how a client is connected. It holds some scripts and some of their replies back, and lets
// them go on when their callers have gone.
type dawdler struct{ busy atomic.Int64 } // writes on their way

// A slow connection passes on in order what is written, late, also when it was closed meanwhile.
type slow struct {
	net.Conn
	dawdler *dawdler
	writes  chan []byte

	mu     sync.Mutex
	closed bool // guarded by mu; writes is
}

func (d *dawdler) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	s := &slow{Conn: conn, dawdler: d, writes: make(chan []byte, 1000)}
	go s.pass()
	return s, nil
}

func (s *slow) pass() {
	defer s.Conn.Close()
	for b := range s.writes {
		if bytes.Contains(b, []byte("EVALSHA")) {
			dawdle()
		}
		_, _ = s.Conn.Write(b) // the client hears of it when it reads
		s.dawdler.busy.Add(-1)
	}
}

func (s *slow) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	s.dawdler.busy.Add(1)
	s.writes <- bytes.Clone(b)
	return len(b), nil
}

func (s *slow) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	dawdle()
	return n, err
}

func (s *slow) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.writes)
		_ = s.SetReadDeadline(time.Now()) // who reads hears of it
	}
	return nil
}

func dawdle() {
	if mathrand.N(3) == 0 {
		time.Sleep(mathrand.N(120 * time.Millisecond))
	}
}

// A waiter gives up about when it is granted, and its commands come late. Once its clean-up
// is through, nothing of it is left, nor is there when the last command has come.
func TestRedisGivingUpLeavesNothing(t *testing.T) {
	t.Parallel()
	r, nodes := servers.StartRedis(t), servers.StartCluster(t, 3)
	type dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	for kind, connect := range map[string]func(dialer) redis.UniversalClient{
		"single": func(dial dialer) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: r.Addr(), Dialer: dial})
		},
		"cluster": func(dial dialer) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}, Dialer: dial})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			open := func(late *dawdler) *redislock.Driver {
				var dial dialer
				if late != nil {
					dial = late.dial
				}
				client := connect(dial)
				t.Cleanup(func() { client.Close() })
				return redisDriverOf(t, client, nil)
			}
			prompt := open(nil)
			var all sync.WaitGroup
			for i := range 8 {
				late := new(dawdler)
				d := open(late)
				all.Go(func() {
					for range 20 {
						if err := givesUpWhenGranted(t.Context(), fmt.Sprint("given-up-", i), prompt, d, late); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// givesUpWhenGranted has a waiter on d give up about when a holder on prompt releases.
func givesUpWhenGranted(ctx context.Context, name string, prompt, d *redislock.Driver, late *dawdler) error {
	holder, err := prompt.Claim(driver.Request{Resource: name, Owner: rand.Text(), TTL: 30 * time.Second})
	if err != nil {
		return err
	}
	if _, err := holder.Try(ctx); err != nil {
		return fmt.Errorf("%s: Try where nobody is: %w", name, err)
	}
	waiters, err := leasehold.New(d, nil)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, mathrand.N(250*time.Millisecond))
	defer cancel()
	outcome := make(chan error, 1)
	go func() {
		lease, err := waiters.Acquire(short, name)
		if err == nil {
			outcome <- lease.Release(ctx)
			return
		}
		outcome <- nil
	}()
	time.Sleep(mathrand.N(250 * time.Millisecond)) // while it waits, or after
	released := holder.Release(ctx, driver.End{})
	if err := errors.Join(released, <-outcome, waiters.Close()); err != nil { // Close waits for the clean-up
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := nobodyAt(ctx, prompt, name); err != nil {
		return fmt.Errorf("after Close: %w", err)
	}
	for late.busy.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := nobodyAt(ctx, d, name); err != nil { // by the same connection, after all the others
		return fmt.Errorf("after late commands: %w", err)
	}
	if err := nobodyAt(ctx, prompt, name); err != nil {
		return fmt.Errorf("after late commands: %w", err)
	}
	return nil
}

func nobodyAt(ctx context.Context, d *redislock.Driver, name string) error {
	st, err := d.Inspect(ctx, name)
	if err == nil && len(st.Holders)+len(st.Waiters) > 0 {
		err = fmt.Errorf("%s has %d holders and %d waiters", name, len(st.Holders), len(st.Waiters))
	}
	return err
}
