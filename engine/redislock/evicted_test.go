package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// An eviction ends the holder's context at once, with the reason, also on a lease that
// another process resumed.
func TestRedisEvictionTellsTheReason(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	l, other := redisLocker(t, r, nil, leasehold.Options{TTL: time.Minute}), redisLocker(t, r, nil, leasehold.Options{TTL: time.Minute})
	for _, opt := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		lease, err := l.Acquire(t.Context(), "evicted", opt...)
		if err != nil {
			t.Fatal(err)
		}
		resumed, err := other.Resume(t.Context(), "evicted", lease.Owner(), opt...)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Evict(t.Context(), "evicted", lease.Owner(), "maintenance: a:b é"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-resumed.Context().Done():
		case <-time.After(locktest.Margin):
			t.Fatal("the holder does not know")
		}
		if cause := context.Cause(resumed.Context()); !errors.Is(cause, leasehold.ErrLost) || !strings.Contains(cause.Error(), "evicted: maintenance: a:b é") {
			t.Errorf("cause %v", cause)
		}
		if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrEvicted) {
			t.Errorf("Release: %v", err)
		}
		_ = resumed.Release(t.Context()) // it is lost
	}
}

// A holder hears of an eviction that came before its subscription stood as soon as it stands.
func TestEvictionBeforeTheSubscription(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	rules := func(rules string) { r.Must(t, strings.Fields("ACL SETUSER deaf on >pw ~* &* +@all "+rules)...) }
	rules("-subscribe")
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "deaf", Password: "pw"})
	t.Cleanup(func() { client.Close() })
	l := lockerOn(t, redisDriverOf(t, client, nil), leasehold.Options{TTL: time.Hour})
	operator := redisLocker(t, r, nil, leasehold.Options{})
	for _, opt := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		evicted, kept := acquireWith(t, l, "evicted", opt), acquireWith(t, l, "kept", opt)
		if err := operator.Evict(t.Context(), "evicted", evicted.Owner(), "stuck"); err != nil {
			t.Fatal(err)
		}
		rules("+subscribe")
		select {
		case <-evicted.Context().Done():
		case <-time.After(locktest.Margin):
			t.Fatal("the holder does not know")
		}
		if cause := context.Cause(evicted.Context()); !errors.Is(cause, leasehold.ErrEvicted) || !strings.HasSuffix(cause.Error(), "stuck") {
			t.Errorf("cause %v; want ErrEvicted with the reason", cause)
		}
		time.Sleep(200 * time.Millisecond) // it may be asked after later
		if err := errors.Join(context.Cause(kept.Context()), kept.Release(t.Context())); err != nil {
			t.Errorf("a lease that nobody ended: %v", err)
		}
		rules("-subscribe")
		r.Must(t, "CLIENT", "KILL", "TYPE", "pubsub")
	}
}

// The connection of calls may have died with the subscription, and nobody knows yet: who is asked after on it is
// asked after once more.
func TestEvictionWhileAllConnectionsWereBroken(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	rules := func(rules string) { r.Must(t, strings.Fields("ACL SETUSER deaf on >pw ~* &* +@all "+rules)...) }
	rules("-subscribe")
	link := &late{sent: make(chan *held, 1)}
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "deaf", Password: "pw", Dialer: link.dial})
	t.Cleanup(func() { client.Close() })
	l := lockerOn(t, redisDriverOf(t, client, nil), leasehold.Options{TTL: time.Hour})
	operator := redisLocker(t, r, nil, leasehold.Options{})
	var evicted []*leasehold.Lease
	for i := range 10 {
		lease := acquireWith(t, l, fmt.Sprint("evicted", i), nil)
		if err := operator.Evict(t.Context(), lease.Name(), lease.Owner(), ""); err != nil {
			t.Fatal(err)
		}
		evicted = append(evicted, lease)
	}
	kept := acquireWith(t, l, "kept", nil)
	link.next.Store(holdNext) // nothing more arrives on that connection
	rules("+subscribe")
	<-link.sent
	late := time.After(locktest.Margin)
	for _, lease := range evicted {
		select {
		case <-lease.Context().Done():
		case <-late:
			t.Fatalf("the holder of %s does not know", lease.Name())
		}
	}
	if err := errors.Join(context.Cause(kept.Context()), kept.Release(t.Context())); err != nil {
		t.Errorf("a lease that nobody ended: %v", err)
	}
}

// Who hears no message is told by the next call, whichever that is, and whoever holds the lock by then; and is
// not told of it once more when the same owner's next lease ends.
func TestEvictionIsToldByTheNextCall(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Must(t, strings.Fields("ACL SETUSER deaf on >pw ~* &* +@all -subscribe")...)
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "deaf", Password: "pw"})
	t.Cleanup(func() { client.Close() })
	d := redisDriverOf(t, client, nil)
	for how, call := range map[string]func(driver.Claim) error{
		"renew": func(c driver.Claim) error { _, err := c.Renew(t.Context(), time.Minute); return err },
		"renewall": func(c driver.Claim) error {
			all := []driver.Renewal{{Claim: c, TTL: time.Minute}}
			d.RenewAll(t.Context(), all)
			return all[0].Err
		},
		"note":    func(c driver.Claim) error { return c.Note(t.Context(), "mine") },
		"release": func(c driver.Claim) error { return c.Release(t.Context(), driver.End{}) },
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			t.Run(fmt.Sprint(how, mode), func(t *testing.T) {
				name := fmt.Sprint(how, mode)
				claim := func(owner string, ttl time.Duration) driver.Claim {
					c, err := d.Claim(driver.Request{Resource: name, Owner: owner, TTL: ttl, Mode: mode, Lost: func(error) {}})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := c.Try(t.Context()); err != nil {
						t.Fatal(err)
					}
					return c
				}
				evicted := claim("a", time.Minute)
				if err := d.Evict(t.Context(), name, "a", "stuck: 1 2"); err != nil {
					t.Fatal(err)
				}
				other := claim("b", time.Minute)
				if err := d.Evict(t.Context(), name, "b", "another"); err != nil {
					t.Fatal(err)
				}
				if err := call(evicted); err == nil || err.Error() != driver.Evicted("stuck: 1 2").Error() {
					t.Errorf("the evicted one is told %v", err)
				}
				if err := call(other); err == nil || err.Error() != driver.Evicted("another").Error() {
					t.Errorf("the next one is told %v", err)
				}
				again := claim("a", 20*time.Millisecond)
				time.Sleep(40 * time.Millisecond)
				if err := call(again); !errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrEvicted) {
					t.Errorf("one whose time was over is told %v", err)
				}
			})
		}
	}
}
