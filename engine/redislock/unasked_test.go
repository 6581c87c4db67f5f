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
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// queuedClaim has a place in the queue of name, and is heard by the server.
func queuedClaim(t *testing.T, d *redislock.Driver, name, owner string, ttl time.Duration) (driver.Claim, *driver.Busy, time.Time) {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: name, Owner: owner, TTL: ttl, Queue: true, Lost: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	sent := time.Now()
	_, err = c.Try(t.Context())
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok {
		t.Fatalf("Try: %v; want busy", err)
	}
	return c, busy, sent
}

func brought(t *testing.T, busy *driver.Busy) (driver.Grant, bool) {
	t.Helper()
	select {
	case <-busy.Wake:
	case <-time.After(time.Second):
		return driver.Grant{}, false
	}
	select {
	case g := <-busy.Granted:
		return g, true
	default:
		return driver.Grant{}, false
	}
}

// A release grants the lock to the first waiter, without another command of its own. The
// lease that it is told of is over before that of the server, and ends with its place.
func TestRedisReleaseGrantsToTheNext(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	d, other := redisDriverOf(t, redisClient(t, r), nil), redisDriverOf(t, redisClient(t, r), nil)
	for _, ttl := range []time.Duration{time.Minute, time.Second} {
		holder := lateClaim(t, d, "next", "aaa", time.Minute)
		first, err := holder.Try(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, busy, sent := queuedClaim(t, other, "next", "bbb", ttl)
		time.Sleep(600 * time.Millisecond) // its Try was a while ago
		if err := holder.Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
		g, ok := brought(t, busy)
		if !ok {
			t.Fatal("no grant was brought")
		}
		if g.Fence <= first.Fence {
			t.Errorf("fence %d after %d", g.Fence, first.Fence)
		}
		left := client.PTTL(t.Context(), "lock:next").Val()
		if believed := g.TTL - time.Since(sent); believed > left+time.Millisecond {
			t.Errorf("the waiter believes in %v, of which the server keeps %v", believed, left)
		} else if believed < min(ttl, time.Second)/2 {
			t.Errorf("the waiter believes in %v only", believed)
		}
		if left > 3*time.Second {
			t.Errorf("a waiter that may be gone got %v", left)
		}
		if st, err := d.Inspect(t.Context(), "next"); err != nil || len(st.Waiters) != 0 || len(st.Holders) != 1 || st.Holders[0].Owner.Reveal() != "bbb" || st.Holders[0].Fence != g.Fence {
			t.Errorf("Inspect: %+v, %v", st, err)
		}
		renewed, err := c.Renew(t.Context(), ttl)
		if err != nil || renewed.Fence != g.Fence {
			t.Errorf("Renew: %+v, %v; want fence %d", renewed, err, g.Fence)
		}
		if again, err := c.Try(t.Context()); err != nil || again.Fence != g.Fence {
			t.Errorf("Try of the holder: %+v, %v; want fence %d", again, err, g.Fence)
		}
		if err := c.Release(t.Context(), driver.End{}); err != nil {
			t.Error(err)
		}
	}
}

// Whoever is granted without asking and does not take it is in nobody's way for long:
// not who gives up at that moment, not who has gone, not who does not hear.
func TestRedisGrantThatNobodyTakes(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	others := redisLocker(t, r, nil, leasehold.Options{})
	free := func(what string, within time.Duration) {
		t.Helper()
		lease, err := others.Acquire(t.Context(), "taken", leasehold.Wait(within+2*time.Second))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	hold := func() driver.Claim {
		holder := lateClaim(t, d, "taken", "aaa", time.Minute)
		mustTry(t, holder)
		return holder
	}

	// It gives up while the grant is on its way.
	holder := hold()
	c, busy, _ := queuedClaim(t, d, "taken", "bbb", time.Minute)
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Errorf("Release of what was granted unasked: %v", err)
	}
	if _, ok := brought(t, busy); ok {
		t.Log("it was told before")
	}
	free("who gave up", 0)

	// It does not hear of it, and asks again.
	holder = hold()
	c, busy, _ = queuedClaim(t, d, "taken", "ccc", time.Minute)
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	g, err := c.Try(t.Context())
	if err != nil {
		t.Fatalf("Try of who holds it: %v", err)
	}
	if told, ok := brought(t, busy); ok && told.Fence != g.Fence {
		t.Errorf("told of fence %d, asked for it %d", told.Fence, g.Fence)
	}
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Error(err)
	}

	// It never answers again, but its connection stands, as that of a machine without power.
	holder = hold()
	queuedClaim(t, d, "taken", "ddd", time.Minute)
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	free("who has gone", 3*time.Second)

	// Its connection is gone too: nothing is granted to it.
	gone := redis.NewClient(&redis.Options{Addr: r.Addr()})
	goneDriver, err := redislock.New(gone, nil)
	if err != nil {
		t.Fatal(err)
	}
	holder = hold()
	queuedClaim(t, goneDriver, "taken", "eee", time.Minute)
	heard := func() int { return strings.Count(r.Must(t, "PUBSUB", "CHANNELS", "leasehold:*"), "leasehold:") }
	before := heard()
	goneDriver.Close()
	gone.Close()
	for end := time.Now().Add(time.Second); heard() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server still hears it")
		}
	}
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	if got := r.Must(t, "GET", "lock:taken"); got != "" {
		t.Errorf("granted to %q, whom nobody hears", got)
	}
	free("whose connection has gone", 3*time.Second)
}

// Holders that were granted without asking are told of an eviction, keep what was promised
// when they are paused for longer than that, and are renewed to their whole TTL.
func TestRedisUnaskedHolders(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	const ttl = 30 * time.Second
	a, b := redisLocker(t, r, nil, leasehold.Options{TTL: ttl, HandOver: -1}), redisLocker(t, r, nil, leasehold.Options{TTL: ttl, HandOver: -1})
	next := func(opts ...leasehold.Option) *leasehold.Lease {
		t.Helper()
		lease, err := a.Acquire(t.Context(), "unasked")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *leasehold.Lease)
		go func() {
			lease, err := b.Acquire(context.Background(), "unasked", opts...)
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		for {
			st, err := a.Inspect(t.Context(), "unasked")
			if err != nil {
				t.Fatal(err)
			}
			if len(st.Waiters) == 1 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		before := scripts(t, r)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease = <-got
		if lease == nil {
			t.FailNow()
		}
		if n := scripts(t, r) - before; len(opts) == 0 && n > 3 { // the release, for which the plain one is tried first, and a renewal
			t.Errorf("%d scripts for a release that grants", n)
		}
		return lease
	}
	lease := next()
	for end := time.Now().Add(2 * time.Second); time.Until(lease.Deadline()) < ttl/2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%v are left of a lease of %v that was granted unasked", time.Until(lease.Deadline()), ttl)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	lease = next(leasehold.NoRenew())
	if left := time.Until(lease.Deadline()); left < ttl/2 {
		t.Errorf("%v are left of a lease of %v that is not renewed", left, ttl)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	lease = next()
	if err := a.Evict(t.Context(), "unasked", lease.Owner(), "test"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(time.Second):
		t.Error("the holder was not told of its eviction")
	}
}

// What cannot be kept by a grant without asking is not granted so: acknowledgements by
// replicas, and a server that must have run for long.
func TestRedisGuardedWaitersAskAgain(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	for what, o := range map[string]redislock.Options{"replicas": {Replicas: 1}, "memory": {MinUptime: time.Minute}} {
		holder := lateClaim(t, d, what, "aaa", time.Minute)
		mustTry(t, holder)
		guarded := redisDriverOf(t, redisClient(t, r), &o)
		c, busy, _ := queuedClaim(t, guarded, what, "bbb", time.Minute)
		if err := holder.Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
		if _, ok := brought(t, busy); ok {
			t.Errorf("%s: granted without asking", what)
		}
		if _, err := c.Try(t.Context()); !errors.Is(err, redislock.ErrReplicas) && !errors.Is(err, redislock.ErrServerTooYoung) {
			t.Errorf("%s: Try: %v", what, err)
		}
		_ = c.Release(t.Context(), driver.End{}) // whatever became of it
	}
}

// editWaiter has a piece of Lua change what the server stores of a waiter, v, and returns
// the waiter's channel and the number of its last Try.
func editWaiter(t *testing.T, client *redis.Client, name, owner, lua string) (channel, number string) {
	t.Helper()
	script := `local v = {cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))}
local told = {v[4], tostring(v[8])}
` + lua + `
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(unpack(v)))
return told`
	told, err := client.Eval(t.Context(), script, []string{"lock:\x1fd{lock:" + name + "}"}, "w"+owner).StringSlice()
	if err != nil {
		t.Fatal(err)
	}
	return told[0], told[1]
}

// Nothing is granted over what somebody else has put at the lock key.
func TestRedisForeignDataIsNotGrantedOver(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	d := redisDriverOf(t, client, nil)
	holder := lateClaim(t, d, "data", "aaa", time.Minute)
	mustTry(t, holder)
	gives, _, _ := queuedClaim(t, d, "data", "bbb", time.Minute)
	queuedClaim(t, d, "data", "ccc", time.Minute)
	r.Must(t, "DEL", "lock:data")
	r.Must(t, "HSET", "lock:data", "somebody", "1")
	for what, release := range map[string]func(context.Context) error{"a waiter": claimtest.Release(gives), "the late holder": claimtest.Release(holder)} {
		_ = release(t.Context()) // what it gives up is not the question
		if got := client.Type(t.Context(), "lock:data").Val(); got != "hash" {
			t.Fatalf("%s gave up, and the data became a %s", what, got)
		}
	}
}

// The server's clock is set forward, or another server takes over, while one waits: it
// does not believe in more than the server keeps.
func TestRedisClockSetWhileWaiting(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	d := redisDriverOf(t, client, nil)
	holder := lateClaim(t, d, "clock", "aaa", time.Minute)
	mustTry(t, holder)
	_, busy, sent := queuedClaim(t, d, "clock", "bbb", time.Minute)
	editWaiter(t, client, "clock", "bbb", "v[7] = v[7] - 3600000")
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	g, ok := brought(t, busy)
	if !ok {
		t.Fatal("no grant was brought")
	}
	believed := g.TTL - time.Since(sent)
	if left := client.PTTL(t.Context(), "lock:clock").Val(); believed > left+10*time.Second {
		t.Errorf("the waiter believes in %v, of which the server keeps %v", believed, left)
	}
}

// Who is granted without asking, and not told, finds its grant although the fence was
// raised since.
func TestRedisFenceRaisedOverAnUntoldGrant(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	d := redisDriverOf(t, client, nil)
	holder := lateClaim(t, d, "raised", "aaa", time.Minute)
	mustTry(t, holder)
	c, _, _ := queuedClaim(t, d, "raised", "bbb", time.Minute)
	editWaiter(t, client, "raised", "bbb", "v[8] = '99'") // it takes what it is told for the answer to another Try
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	if err := d.RaiseFence(t.Context(), "raised", driver.FenceOf(time.Now().Add(time.Hour).UnixMicro())); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); err != nil {
		t.Errorf("Try of who was granted before: %v", err)
	}
}

// A grant that is told of after its lease has ended, and after another one to the same
// claim, counts no more.
func TestRedisToldTooLate(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	d := redisDriverOf(t, client, nil)
	heard := make(chan struct{})
	last, err := d.Claim(driver.Request{Resource: "other", Owner: "last", TTL: time.Minute, Lost: func(error) { close(heard) }})
	if err != nil {
		t.Fatal(err)
	}
	mustTry(t, last)
	holder := lateClaim(t, d, "told", "aaa", time.Minute)
	mustTry(t, holder)
	c, _, _ := queuedClaim(t, d, "told", "bbb", time.Minute)
	elsewhere := client.Subscribe(t.Context(), "leasehold:elsewhere")
	defer elsewhere.Close()
	if _, err := elsewhere.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	channel, number := editWaiter(t, client, "told", "bbb", "v[4] = 'leasehold:elsewhere'")
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	r.Must(t, "DEL", "lock:told") // as if it had expired
	between := lateClaim(t, d, "told", "ccc", time.Minute)
	mustTry(t, between) // nobody else wants it: the driver takes the case for plain from now on
	if err := between.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	g, err := c.Try(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client.Publish(t.Context(), channel, fmt.Sprintf("g3:bbb%s %d 60000 3000", number, driver.NumberOf(g.Fence)+1))
	client.Publish(t.Context(), channel, "e4:last") // heard after the other
	select {
	case <-heard:
	case <-time.After(10 * time.Second):
		t.Fatal("the driver hears nothing")
	}
	renewals := []driver.Renewal{{Claim: c, TTL: time.Minute}}
	d.RenewAll(t.Context(), renewals)
	if got := renewals[0]; got.Err != nil || got.Grant.Fence != g.Fence {
		t.Errorf("renewed: %+v, %v; want fence %d", got.Grant, got.Err, g.Fence)
	}
}
