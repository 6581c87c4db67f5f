package memcached

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// behindProxy is a process whose link to m goes through a proxy.
func behindProxy(t testing.TB, m *servers.Memcached, opts *leasehold.Options) (*leasehold.Locker, *servers.Proxy) {
	t.Helper()
	p := servers.StartProxy(t, m.Addr())
	l, err := leasehold.New(openDriver(t, nil, p.Addr()), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Pass()
		l.Close()
	})
	return l, p
}

// Links fail in every way, again and again: holders never overlap, and afterwards all
// works without help.
func TestMemcachedFlappingLinks(t *testing.T) {
	t.Parallel()
	const names, span, enough, longest = 4, 8 * time.Second, 20, 3 * time.Minute
	m := servers.StartMemcached(t)
	var lockers []*leasehold.Locker
	var proxies []*servers.Proxy
	for range 3 {
		l, p := behindProxy(t, m, &leasehold.Options{TTL: 2 * time.Second})
		lockers, proxies = append(lockers, l), append(proxies, p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var history locktest.History
	var all sync.WaitGroup
	for i := range 3 * names {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				lease, err := lockers[i%3].Acquire(ctx, fmt.Sprint("storm/", (i/3+n)%names))
				if err != nil {
					continue // whatever it was, nothing is held
				}
				done := history.Believe(lease)
				time.Sleep(rand.N(4 * time.Millisecond))
				done()
				_ = lease.Release(context.Background()) // may be lost, or unknown
			}
		})
	}
	start := time.Now()
	for time.Since(start) < span || history.Len() < enough && time.Since(start) < longest {
		p := proxies[rand.N(len(proxies))]
		[]func(){p.Dark, p.DropReplies, p.Reset, func() { p.Delay(rand.N(100 * time.Millisecond)) }}[rand.N(4)]()
		time.Sleep(rand.N(300 * time.Millisecond))
		p.Delay(0)
		p.Pass()
		time.Sleep(100 * time.Millisecond)
	}
	cancel()
	all.Wait()
	if err := history.Check(); err != nil {
		t.Error(err)
	}
	t.Logf("%d leases", history.Len())
	if history.Len() < enough { // it proves little
		t.Errorf("only %d leases in %v", history.Len(), time.Since(start))
	}
	for i := range names {
		mustRelease(t, mustAcquire(t, lockers[0], fmt.Sprint("storm/", i)))
	}
}

// The holder's link goes dark: it is told before another is granted, and what was held
// back harms nobody.
func TestMemcachedDarkLink(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	cut, proxy := behindProxy(t, m, &leasehold.Options{TTL: 3 * time.Second})
	other := openLocker(t, time.Minute, m.Addr())
	lease := mustAcquire(t, cut, "dark")
	for first := lease.Deadline(); lease.Deadline().Equal(first); time.Sleep(10 * time.Millisecond) {
		if lease.Context().Err() != nil {
			t.Fatal("never renewed")
		}
	}
	proxy.Dark()
	successor := mustAcquire(t, other, "dark")
	if lease.Context().Err() == nil {
		t.Errorf("another was granted while the holder believed; its deadline was %v ago", time.Since(lease.Deadline()))
	}
	proxy.Pass()
	if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of the lost lease: %v, want ErrLost", err)
	}
	if _, err := cut.TryAcquire(t.Context(), "dark"); !errors.Is(err, leasehold.ErrBusy) {
		t.Errorf("beside the successor: %v, want ErrBusy", err)
	}
	mustRelease(t, successor)
	mustRelease(t, mustAcquire(t, cut, "dark"))
}

// Whether a release whose answer was dropped is unknown or was asked for again, it frees
// the name and harms nobody.
func TestMemcachedRepliesDroppedOnRelease(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	cut, proxy := behindProxy(t, m, &leasehold.Options{TTL: 4 * time.Second})
	other := openLocker(t, time.Minute, m.Addr())
	lease := mustAcquire(t, cut, "released")
	proxy.DropReplies()
	released := make(chan error, 1)
	go func() { released <- lease.Release(context.Background()) }()
	// It cannot even read: the name is free when the lease expires.
	successor := mustAcquire(t, other, "released")
	proxy.Pass()
	if err := <-released; err == nil {
		t.Error("a release without an answer was called a success")
	}
	if err := successor.Extend(t.Context(), time.Minute); err != nil {
		t.Errorf("the successor's lease: %v", err)
	}
	mustRelease(t, successor)
}

// A connection that the server has ended since it was used last is not used again: nobody's call
// has an unknown outcome because of it.
func TestMemcachedRestartBetweenCalls(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	d := openDriver(t, nil, m.Addr())
	claimtest.Granted(t, claimOf(t, d, "before", "o", time.Minute))
	m.Kill()
	m.Start(t)
	time.Sleep(1100 * time.Millisecond) // longer than a connection is used unseen
	claimtest.Granted(t, claimOf(t, d, "after", "o", time.Minute))
}
