package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// behindProxy is a process whose link to r goes through a proxy.
func behindProxy(t testing.TB, r *servers.Redis, o leasehold.Options) (*leasehold.Locker, *servers.Proxy) {
	t.Helper()
	p := servers.StartProxy(t, r.Addr())
	d, err := redislock.Open(&redis.Options{Addr: p.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return throughProxy(t, d, p, o), p
}

// behindProxyOnClient is the same on a client of the user's.
func behindProxyOnClient(t testing.TB, r *servers.Redis, o leasehold.Options) (*leasehold.Locker, *servers.Proxy) {
	t.Helper()
	p := servers.StartProxy(t, r.Addr())
	client := redis.NewClient(&redis.Options{Addr: p.Addr()})
	t.Cleanup(func() { client.Close() })
	return throughProxy(t, redisDriverOf(t, client, nil), p, o), p
}

func throughProxy(t testing.TB, d driver.Driver, p *servers.Proxy, o leasehold.Options) *leasehold.Locker {
	t.Helper()
	l := lockerOn(t, d, o)
	t.Cleanup(p.Pass) // so that what is closed finds its server
	// The server loads a script when it has answered that it has none: which is before.
	// A lease of a second may end meanwhile on a busy machine.
	err := firstCalls(t, l)
	for range 4 {
		if err == nil {
			return l
		}
		err = firstCalls(t, l)
	}
	t.Fatal(err)
	return nil
}

func firstCalls(t testing.TB, l *leasehold.Locker) error {
	lease, err := l.Acquire(t.Context(), "first")
	if err != nil {
		return err
	}
	return errors.Join(lease.Extend(t.Context(), time.Minute), lease.Release(t.Context()))
}

// lostBefore checks that the lease's context has ended when another is granted.
func lostBefore(t testing.TB, lease *leasehold.Lease) {
	t.Helper()
	if lease.Context().Err() == nil {
		t.Errorf("another was granted while the holder believed; its deadline was %v ago", time.Since(lease.Deadline()))
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, leasehold.ErrLost) {
		t.Errorf("cause %v", cause)
	}
}

// The holder's link goes dark. It is told before another is granted, what was held back
// harms nobody, and the process goes on by itself when the link is back.
func TestRedisDarkLink(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]func(testing.TB, *servers.Redis, leasehold.Options) (*leasehold.Locker, *servers.Proxy){
		"connections of the driver's": behindProxy, "client of the user's": behindProxyOnClient,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := servers.StartRedis(t)
			cut, proxy := behind(t, r, leasehold.Options{TTL: darkTTL})
			goesDark(t, cut, proxy, redisLocker(t, r, nil, leasehold.Options{}))
		})
	}
}

const (
	darkTTL = 5 * time.Second
	// farLink is how long a packet takes: more than the drift that is kept back, so that
	// who counted from the answer would believe for too long.
	farLink = 150 * time.Millisecond
)

// renewals waits until so many came since.
func renewals(t *testing.T, lease *leasehold.Lease, n int) {
	t.Helper()
	for ; n > 0; n-- {
		before := lease.Deadline()
		for lease.Deadline().Equal(before) {
			if lease.Context().Err() != nil {
				t.Fatalf("lost with a link: %v", context.Cause(lease.Context()))
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func goesDark(t *testing.T, cut *leasehold.Locker, proxy *servers.Proxy, other *leasehold.Locker) {
	for _, opt := range [][]leasehold.Option{nil, {leasehold.Limit(1)}} {
		lease, err := cut.Acquire(t.Context(), "dark", opt...)
		if err != nil {
			t.Fatal(err)
		}
		renewals(t, lease, 1) // loads the script
		proxy.Delay(farLink)
		renewals(t, lease, 2) // the first may have been on its way
		proxy.Dark()
		next, err := other.Acquire(t.Context(), "dark", append(opt, leasehold.Wait(darkTTL+10*time.Second))...)
		if err != nil {
			t.Fatalf("when the holder is cut off: %v", err)
		}
		lostBefore(t, lease)
		if next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
		proxy.Delay(0)
		proxy.Pass()
		if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
			t.Errorf("Release of the lost lease: %v", err)
		}
		if _, err := cut.TryAcquire(t.Context(), "dark", opt...); !errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("TryAcquire beside the successor: %v", err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Errorf("the successor's Release: %v", err)
		}
		again, err := cut.Acquire(t.Context(), "dark", append(opt, leasehold.Wait(10*time.Second))...)
		if err != nil {
			t.Fatalf("when the link is back: %v", err)
		}
		if again.Token() <= next.Token() {
			t.Errorf("token %d after %d", again.Token(), next.Token())
		}
		if err := again.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The answer to an acquire is lost, again and again. Nobody gets a lease for it, it is
// not called busy, and what the server granted is given up as soon as the link is back.
func TestRedisRepliesDroppedOnAcquire(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	const ttl = time.Minute
	cut, proxy := behindProxy(t, r, leasehold.Options{TTL: ttl})
	others := redisLocker(t, r, nil, leasehold.Options{})
	for what, opt := range map[string][]leasehold.Option{"exclusive": nil, "shared": {leasehold.Limit(1)}} {
		warm, err := cut.Acquire(t.Context(), what+" before", opt...) // connects
		if err != nil {
			t.Fatal(err)
		}
		proxy.DropReplies()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		lease, err := cut.Acquire(ctx, what, opt...)
		cancel()
		if err == nil || errors.Is(err, leasehold.ErrBusy) || errors.Is(err, leasehold.ErrLost) {
			t.Fatalf("%s: Acquire without a reply: lease %v, %v", what, lease != nil, err)
		}
		proxy.Pass() // the clean-up's request may have arrived before
		next, err := others.Acquire(t.Context(), what, append(opt, leasehold.Wait(ttl/2))...)
		if err != nil {
			t.Fatalf("%s: what may have been granted was not given up: %v", what, err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := warm.Release(t.Context()); err != nil {
			t.Errorf("%s: Release of what was held all the time: %v", what, err)
		}
	}
}

// A waiter whose answers are lost keeps no place for ever, and gets its turn without
// help when the link is back.
func TestRedisRepliesDroppedWhileWaiting(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	queued := make(chan struct{}, 100)
	cut, proxy := behindProxy(t, r, leasehold.Options{Trace: locktest.On(leasehold.StepQueued, func(leasehold.Event) { queued <- struct{}{} })})
	d := redisDriverOf(t, redisClient(t, r), nil)
	others := lockerOn(t, d, leasehold.Options{HandOver: -1})
	waiters := func(want int) {
		t.Helper()
		for end := time.Now().Add(15 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			st, err := d.Inspect(t.Context(), "waited")
			if err != nil {
				t.Fatal(err)
			}
			if len(st.Waiters) == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d waiters, want %d", len(st.Waiters), want)
			}
		}
	}
	for what, spoil := range map[string]func(){"replies dropped": proxy.DropReplies, "dark": proxy.Dark} {
		lease, err := others.Acquire(t.Context(), "waited")
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan error, 1)
		go func() {
			lease, err := cut.Acquire(context.Background(), "waited", leasehold.Wait(40*time.Second))
			if err == nil {
				err = lease.Release(context.Background())
			}
			granted <- err
		}()
		<-queued // it has heard that it waits
		waiters(1)
		spoil()
		if what == "dark" {
			waiters(0) // its place goes when it is not heard of
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Others go on, at the latest when the lease of the deaf one has expired.
		next, err := others.Acquire(t.Context(), "waited", leasehold.Wait(30*time.Second))
		if err != nil {
			t.Fatalf("%s: beside a waiter that hears nothing: %v", what, err)
		}
		proxy.Pass()
		if err := next.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil {
			t.Errorf("%s: the waiter, when its link was back: %v", what, err)
		}
	}
}

// Renewals whose answers are lost do not move the deadline; the next one that is answered
// does, and nothing was lost.
func TestRedisRepliesDroppedOnRenewal(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	const ttl = 6 * time.Second
	cut, proxy := behindProxy(t, r, leasehold.Options{TTL: ttl})
	lease, err := cut.Acquire(t.Context(), "renewed")
	if err != nil {
		t.Fatal(err)
	}
	renewals(t, lease, 1) // nothing else is asked then: who misses an answer leaves the connection, over which the next renewal is to go
	token, deadline := lease.Token(), lease.Deadline()
	proxy.DropReplies()
	client := redisClient(t, r)
	for client.PTTL(t.Context(), "lock:renewed").Val() <= time.Until(deadline)+200*time.Millisecond { // until the server has renewed
		if lease.Context().Err() != nil {
			t.Fatal("lost before a renewal was sent")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := lease.Deadline(); !got.Equal(deadline) {
		t.Errorf("a renewal without an answer moved the deadline by %v", got.Sub(deadline))
	}
	proxy.Pass()
	for lease.Deadline().Equal(deadline) {
		if lease.Context().Err() != nil {
			t.Fatalf("lost although the link was back %v before the deadline: %v", time.Until(deadline), context.Cause(lease.Context()))
		}
		time.Sleep(10 * time.Millisecond)
	}
	if lease.Token() != token {
		t.Errorf("token %d became %d", token, lease.Token())
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A release whose answer is lost is unknown, never a false yes or lost; the resource is
// free.
func TestRedisRepliesDroppedOnRelease(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	cut, proxy := behindProxy(t, r, leasehold.Options{TTL: time.Minute})
	other := redisLocker(t, r, nil, leasehold.Options{})
	for _, opt := range [][]leasehold.Option{nil, {leasehold.Limit(1)}} {
		lease, err := cut.Acquire(t.Context(), "released", opt...)
		if err != nil {
			t.Fatal(err)
		}
		proxy.DropReplies()
		before := proxy.Dropped()
		released := make(chan error, 1)
		go func() { released <- lease.Release(context.Background()) }()
		next, err := other.Acquire(t.Context(), "released", append(opt, leasehold.Wait(20*time.Second))...)
		if err != nil {
			t.Fatalf("the request to release had arrived: %v", err)
		}
		untilDropped(t, proxy, before)
		proxy.Pass()
		if err := <-released; err == nil || errors.Is(err, leasehold.ErrLost) {
			t.Errorf("Release without an answer: %v; want an unknown outcome", err)
		}
		if _, err := cut.TryAcquire(t.Context(), "released", opt...); !errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("the release, sent again, ended the next lease: %v", err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// untilDropped waits for the reply to what the server has served already.
func untilDropped(t *testing.T, p *servers.Proxy, before int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); p.Dropped() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no reply came")
		}
	}
}

// Links fail in every way, again and again, under load: holders never overlap, tokens
// grow, and afterwards all works without help.
func TestRedisFlappingLinks(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	var lockers []*leasehold.Locker
	var proxies []*servers.Proxy
	for range 3 {
		l, p := behindProxy(t, r, leasehold.Options{TTL: time.Second})
		lockers, proxies = append(lockers, l), append(proxies, p)
	}
	redisStorm(t, lockers, 8*time.Second, 100*time.Millisecond, func() {
		p := proxies[rand.N(len(proxies))]
		switch rand.N(4) {
		case 0:
			p.Dark()
		case 1:
			p.DropReplies()
		case 2:
			p.Delay(rand.N(100 * time.Millisecond))
		case 3:
			p.Reset()
		}
		time.Sleep(rand.N(300 * time.Millisecond))
		p.Delay(0)
		p.Pass()
	}, func(err error) bool { return !errors.Is(err, leasehold.ErrBusy) })
}

// A client that is cut off from all nodes of a Redlock is told before another is granted;
// one that is cut off from a minority notices nothing.
func TestRedlockDarkLinks(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 5)
	var proxies []*servers.Proxy
	var clients []redis.UniversalClient
	for _, n := range nodes {
		p := servers.StartProxy(t, n.Addr())
		c := redis.NewClient(&redis.Options{Addr: p.Addr()})
		t.Cleanup(func() {
			p.Pass()
			c.Close()
		})
		proxies, clients = append(proxies, p), append(clients, c)
	}
	d, err := redislock.NewRedlock(clients, &redislock.Options{NoMinUptime: true}, &quorum.Options{NodeTimeout: nodeTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	const ttl = 8 * time.Second
	cut := lockerOn(t, d, leasehold.Options{TTL: ttl})
	other := newLocker(t, openRedlock(t, nodes, -1))
	for what, spoil := range map[string]func(*servers.Proxy){"dark": (*servers.Proxy).Dark, "replies dropped": (*servers.Proxy).DropReplies} {
		lease := acquiredByMost(t, cut, what)
		for _, p := range proxies[:2] {
			spoil(p)
		}
		renewals(t, lease, 1) // loads the script
		for _, p := range proxies {
			p.Delay(farLink / 2)
		}
		renewals(t, lease, 2)
		for _, p := range proxies {
			spoil(p)
		}
		next, err := other.Acquire(t.Context(), what, leasehold.Wait(5*ttl))
		if err != nil {
			t.Fatalf("%s: when the holder is cut off: %v", what, err)
		}
		lostBefore(t, lease)
		if next.Token() <= lease.Token() {
			t.Errorf("%s: token %d after %d", what, next.Token(), lease.Token())
		}
		for _, p := range proxies {
			p.Delay(0)
			p.Pass()
		}
		if err := next.Release(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		again := acquiredByMost(t, cut, what)
		if again.Token() <= next.Token() {
			t.Errorf("%s: token %d after %d", what, again.Token(), next.Token())
		}
		if err := again.Release(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// acquiredByMost repeats a call that fails until most nodes have connections and answer in time. A
// lease that was left behind is over by then.
func acquiredByMost(t *testing.T, l *leasehold.Locker, name string) *leasehold.Lease {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		lease, err := l.Acquire(t.Context(), name, leasehold.Wait(15*time.Second))
		if err == nil {
			return lease
		}
		if errors.Is(err, leasehold.ErrBusy) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// Histories over links that really fail, for the interval checker, on Redlock.
func TestRedlockFlappingLinks(t *testing.T) {
	t.Parallel()
	nodes := startApart(t, 3)
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	const enough = 20
	var history locktest.History
	ended := make(chan struct{})
	var workers int
	for range 3 {
		var clients []redis.UniversalClient
		var proxies []*servers.Proxy
		for _, n := range nodes {
			p := servers.StartProxy(t, n.Addr())
			c := redis.NewClient(&redis.Options{Addr: p.Addr()})
			t.Cleanup(func() { c.Close() })
			clients, proxies = append(clients, c), append(proxies, p)
		}
		d, err := redislock.NewRedlock(clients, &redislock.Options{NoMinUptime: true}, &quorum.Options{NodeTimeout: nodeTimeout})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		l := lockerOn(t, d, leasehold.Options{TTL: 2 * nodeTimeout})
		workers += 2
		go func() {
			defer func() { ended <- struct{}{} }()
			for n := 0; ctx.Err() == nil; n++ {
				lease, err := l.Acquire(ctx, fmt.Sprint("flap-", n%2), leasehold.Wait(time.Second))
				if err != nil {
					continue
				}
				done := history.Believe(lease)
				time.Sleep(rand.N(3 * time.Millisecond))
				done()
				_ = lease.Release(context.Background()) // whatever its outcome, nobody else may overlap
			}
		}()
		go func() { // one link of each client at a time
			defer func() { ended <- struct{}{} }()
			for ctx.Err() == nil {
				p := proxies[rand.N(len(proxies))]
				[]func(){p.Dark, p.DropReplies, p.Reset}[rand.N(3)]()
				time.Sleep(nodeTimeout/2 + rand.N(2*nodeTimeout)) // mostly longer than a call may take
				p.Pass()
			}
		}()
	}
	for start := time.Now(); time.Since(start) < 8*time.Second || history.Len() < enough && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	for range workers {
		<-ended
	}
	if err := history.Check(); err != nil {
		t.Error(err)
	}
	t.Logf("%d leases", history.Len())
	if history.Len() < enough {
		t.Errorf("only %d leases", history.Len())
	}
	d := openRedlock(t, nodes, -1)
	for n := range 2 {
		lease := acquiredByMost(t, newLocker(t, d), fmt.Sprint("flap-", n))
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("after the faults: %v", err)
		}
	}
}

// A server that is further away than a near one may be silent keeps its connection: each renewal goes by it.
func TestRedisFarServerKeepsItsConnection(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, proxy := behindProxy(t, r, leasehold.Options{TTL: time.Minute})
	lease, err := d.Acquire(t.Context(), "far")
	if err != nil {
		t.Fatal(err)
	}
	renew := func(n int) {
		t.Helper()
		for range n {
			if err := lease.Extend(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
	made := func() int {
		_, stat, _ := strings.Cut(r.Must(t, "INFO", "stats"), "total_connections_received:")
		n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(stat, "\n", 2)[0]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	proxy.Delay(farLink)
	renew(2) // the connection of before is left
	before := made()
	renew(5)
	if after := made(); after > before+3 { // a busy machine may be silent, too
		t.Errorf("%d connections for 5 renewals", after-before)
	}
}
