package memcached

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// openDriver is one more process's driver, until t ends.
func openDriver(t testing.TB, opts *memcachelock.Options, addresses ...string) driver.Driver {
	t.Helper()
	d, err := memcachelock.New(addresses, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// openLocker is one more process's Locker, until t ends.
func openLocker(t testing.TB, ttl time.Duration, addresses ...string) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(openDriver(t, nil, addresses...), &leasehold.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustAcquire(t testing.TB, l *leasehold.Locker, name string, opts ...leasehold.Option) *leasehold.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		t.Fatalf("Acquire of %q: %v", name, err)
	}
	return lease
}

func mustRelease(t testing.TB, lease *leasehold.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// lost waits until the lease has ended by itself, which must be no later than by, and
// before its deadline if a renewal was to notice.
func lost(t testing.TB, lease *leasehold.Lease, by time.Time) {
	t.Helper()
	select {
	case <-lease.Context().Done():
	case <-time.After(max(0, time.Until(by)) + time.Second):
		t.Fatal("the holder was not told that its lease was lost")
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, leasehold.ErrLost) {
		t.Errorf("cause: %v, want ErrLost", cause)
	}
}

// The server forgets everything. Each holder is told by its next renewal, and neither its
// renewal nor its release harms who has taken its place meanwhile.
func TestMemcachedForgets(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for what, forget := range map[string]func(*testing.T, *servers.Memcached){
		"restart": func(t *testing.T, m *servers.Memcached) {
			m.Kill()
			m.Start(t)
		},
		"flush_all": func(t *testing.T, m *servers.Memcached) { m.Must(t, "flush_all") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := servers.StartMemcached(t)
			l, other := openLocker(t, ttl, m.Addr()), openLocker(t, time.Minute, m.Addr())
			overtaken, alone := mustAcquire(t, l, "overtaken"), mustAcquire(t, l, "alone")
			deadline := alone.Deadline()
			forget(t, m)
			successor := mustAcquire(t, other, "overtaken")
			for _, lease := range []*leasehold.Lease{overtaken, alone} {
				lost(t, lease, deadline)
				if time.Now().After(deadline) {
					t.Error("told only at the deadline; want at the next renewal")
				}
				if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
					t.Errorf("Release: %v, want ErrLost", err)
				}
			}
			if err := successor.Extend(t.Context(), time.Minute); err != nil {
				t.Errorf("the successor's lease: %v", err)
			}
			mustRelease(t, successor)
			mustRelease(t, mustAcquire(t, l, "alone"))
		})
	}
}

// ownerLike is as long as the core's owners.
var ownerLike = strings.Repeat("o", 32)

// fill stores items until stop says so. They have the size of the lease of that name: memcached
// evicts what is of the same size.
func fill(t testing.TB, m *servers.Memcached, name string, stop func(stored int) bool) {
	t.Helper()
	client := memcache.New(m.Addr())
	defer client.Close()
	lease, err := client.Get("lock:" + name)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; !stop(i); i++ {
		err := client.Set(&memcache.Item{Key: fmt.Sprintf("lock:%07d", i), Value: lease.Value})
		if err != nil && !strings.Contains(err.Error(), "out of memory") {
			t.Fatal(err)
		}
		if i > 200_000 {
			t.Fatalf("%d items fit into 2 MB", i)
		}
	}
}

// A lease is evicted when others need the memory. The next renewal notices.
func TestMemcachedEvicts(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t, "-m", "2")
	d := openDriver(t, nil, m.Addr())
	c := claimOf(t, d, "evicted", ownerLike, time.Hour)
	claimtest.Granted(t, c)
	// Nobody looks at the lease meanwhile, which would keep it alive.
	fill(t, m, "evicted", func(stored int) bool {
		if stored%5000 != 4999 {
			return false
		}
		evictions, err := strconv.Atoi(m.Stat(t, "evictions"))
		return err != nil || evictions > 30_000
	})
	evicted := func() bool { return m.Must(t, "gets lock:evicted") == "END" }
	if !evicted() {
		t.Fatal("the lease is still there")
	}
	if _, err := c.Renew(t.Context(), time.Hour); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of an evicted lease: %v, want ErrLost", err)
	}
	if !evicted() {
		t.Error("the renewal brought the lease back")
	}
	next := claimOf(t, d, "evicted", "next", time.Hour)
	claimtest.Granted(t, next)
	if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of an evicted lease: %v, want ErrLost", err)
	}
	if err := next.Release(t.Context(), driver.End{}); err != nil {
		t.Errorf("the successor's Release: %v", err)
	}
}

// With -M nothing is evicted. On a full server grants are refused with an error that says
// so, and renewals too, because a swap takes memory. What is held stays until it expires.
func TestMemcachedWithoutEviction(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t, "-m", "2", "-M")
	d := openDriver(t, nil, m.Addr())
	c := claimOf(t, d, "held", ownerLike, time.Hour)
	claimtest.Granted(t, c)
	var refused error
	fill(t, m, "held", func(stored int) bool {
		if stored%1000 == 999 {
			_, refused = claimOf(t, d, fmt.Sprint("more/", stored), ownerLike, time.Hour).Try(t.Context())
		}
		return refused != nil
	})
	if !errors.Is(refused, memcachelock.ErrOutOfMemory) {
		t.Errorf("Try on a full server: %v, want ErrOutOfMemory", refused)
	}
	if m.Stat(t, "evictions") != "0" {
		t.Error("something was evicted")
	}
	if _, err := c.Renew(t.Context(), time.Minute); !errors.Is(err, memcachelock.ErrOutOfMemory) {
		t.Errorf("Renew on a full server: %v, want ErrOutOfMemory", err)
	}
	if got := m.Must(t, "gets lock:held"); !strings.Contains(got, ownerLike) {
		t.Errorf("the lease is gone: %q", got)
	}
	if err := c.Release(t.Context(), driver.End{}); err != nil { // what it leaves is smaller
		t.Errorf("Release on a full server: %v", err)
	}
}

// One of three servers dies: who holds a name of it is told at the deadline, and nobody
// gets one; all other names go on. It comes back, and so do its names.
func TestMemcachedLosesOneServer(t *testing.T) {
	t.Parallel()
	const ttl, names = 3 * time.Second, 12
	var all []*servers.Memcached
	var addresses []string
	for range 3 {
		m := servers.StartMemcached(t)
		all, addresses = append(all, m), append(addresses, m.Addr())
	}
	l := openLocker(t, ttl, addresses...)
	other := openLocker(t, ttl, addresses[2], addresses[0], addresses[1])
	var leases []*leasehold.Lease
	for i := range names {
		leases = append(leases, mustAcquire(t, l, fmt.Sprint(i)))
		if _, err := other.TryAcquire(t.Context(), fmt.Sprint(i)); !errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("%d, on the servers in another order: %v, want ErrBusy", i, err)
		}
	}
	onDead := make(map[int]bool)
	for i := range names {
		onDead[i] = strings.HasPrefix(all[0].Must(t, fmt.Sprint("gets lock:", i)), "VALUE")
	}
	all[0].Kill()
	killed := time.Now()
	for i, lease := range leases {
		if !onDead[i] {
			continue
		}
		lost(t, lease, killed.Add(ttl))
		if now := time.Now(); now.Before(lease.Deadline()) {
			t.Errorf("%d was lost %v before its deadline, although nobody knows", i, lease.Deadline().Sub(now))
		}
		if _, err := other.TryAcquire(t.Context(), fmt.Sprint(i)); err == nil || errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("%d, whose server is down: %v, want an error that says so", i, err)
		}
	}
	all[0].Start(t)
	for i, lease := range leases {
		if onDead[i] {
			mustRelease(t, mustAcquire(t, other, fmt.Sprint(i)))
			continue
		}
		if lease.Context().Err() != nil {
			t.Errorf("%d, on a server that lives, was lost: %v", i, context.Cause(lease.Context()))
		}
		mustRelease(t, lease)
	}
	if n := len(onDead); n != names {
		t.Errorf("%d names", n)
	}
}

// A waiter costs the server 20 commands a second at most, also at first.
func TestMemcachedWaiterKeepsToItsBudget(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	holder, waiter := openLocker(t, time.Minute, m.Addr()), openLocker(t, time.Minute, m.Addr())
	lease := mustAcquire(t, holder, "budget")
	commands := func() (n int) {
		for _, stat := range []string{"cmd_get", "cmd_set", "cmd_touch", "cmd_meta"} {
			one, err := strconv.Atoi(m.Stat(t, stat))
			if err != nil {
				t.Fatal(err)
			}
			n += one
		}
		return n
	}
	// Its first call also asks what the server can.
	if _, err := waiter.TryAcquire(t.Context(), "budget"); !errors.Is(err, leasehold.ErrBusy) {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	before, start := commands(), time.Now()
	go func() {
		lease, err := waiter.Acquire(context.Background(), "budget")
		if err == nil {
			err = lease.Release(context.Background())
		}
		granted <- err
	}()
	for range 5 {
		time.Sleep(time.Until(start.Add(time.Second)))
		now := commands()
		seconds := time.Since(start).Seconds()
		t.Logf("%.1f commands a second", float64(now-before)/seconds)
		if float64(now-before) > 20*seconds {
			t.Errorf("%d commands in %.2f s", now-before, seconds)
		}
		if now == before {
			t.Error("nobody asked")
		}
		before, start = now, time.Now()
	}
	mustRelease(t, lease)
	if err := <-granted; err != nil {
		t.Error(err)
	}
}

// A counter counts connections.
type counter struct{ open, most atomic.Int64 }

func (n *counter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	for open := n.open.Add(1); ; {
		most := n.most.Load()
		if open <= most || n.most.CompareAndSwap(most, open) {
			return &countedConn{Conn: conn, gone: sync.OnceFunc(func() { n.open.Add(-1) })}, nil
		}
	}
}

type countedConn struct {
	net.Conn
	gone func()
}

func (c *countedConn) Close() error {
	c.gone()
	return c.Conn.Close()
}

// Many callers share few connections, none of which stays after Close.
func TestMemcachedConnections(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	var connections counter
	d := openDriver(t, &memcachelock.Options{Dial: connections.dial}, m.Addr())
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 200)
	for i := range cap(errs) {
		go func() {
			lease, err := locks.Acquire(context.Background(), fmt.Sprint(i))
			if err == nil {
				err = lease.Release(context.Background())
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if most := connections.most.Load(); most < 2 || most > 32 {
		t.Errorf("%d connections for %d callers at once", most, cap(errs))
	}
	locks.Close()
	d.Close()
	if n := connections.open.Load(); n > 0 {
		t.Errorf("%d connections after Close", n)
	}
	if _, err := claimOf(t, d, "n", "o", time.Minute).Try(t.Context()); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Try after Close: %v, want ErrClosed", err)
	}
}
