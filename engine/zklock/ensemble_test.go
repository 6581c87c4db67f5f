package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// quick is an ensemble that notices the loss of its leader within a second or two.
var quick = servers.ZooKeeperOptions{Config: []string{"syncLimit=5"}}

// steady is an ensemble that keeps its leader on a busy machine, for 20 s without an answer.
var steady = servers.ZooKeeperOptions{Config: []string{"syncLimit=100"}}

// TestLeaderGoes: the leader is killed, or stopped for a while, while a lease is held and
// 50 wait for another. The lease stays, with its token, and all are served.
func TestLeaderGoes(t *testing.T) {
	t.Parallel()
	ways := make(map[string]func(*testing.T))
	for how, disturb := range map[string]func(t *testing.T, leader *servers.ZooKeeper){
		"Killed": func(t *testing.T, leader *servers.ZooKeeper) {
			leader.Kill()
			time.Sleep(2 * time.Second)
			leader.Start(t)
		},
		"Stopped": func(_ *testing.T, leader *servers.ZooKeeper) {
			resume := leader.Pause()
			defer resume()
			time.Sleep(10 * time.Second)
		},
	} {
		ways[how] = func(t *testing.T) { leaderGoes(t, disturb) }
	}
	atOnce(t, 2, ways)
}

func leaderGoes(t *testing.T, disturb func(*testing.T, *servers.ZooKeeper)) {
	const waiters, processes = 50, 5
	const ttl = 30 * time.Second // longer than a failover on a busy machine
	all := servers.StartZooKeepers(t, 3, quick)
	opts := &zklock.Options{SessionTimeout: ttl * 3 / 2}
	var lockers []*leasehold.Locker
	waiting := make(chan struct{}, 10*waiters)
	for range processes {
		lockers = append(lockers, lockerOn(t, driverOn(t, opts, addresses(all)...), leasehold.Options{
			Trace: locktest.On(leasehold.StepQueued, func(leasehold.Event) { waiting <- struct{}{} }),
		}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	kept := mustAcquire(t, lockers[0], "kept")
	token := kept.Token()
	wanted := mustAcquire(t, lockers[1], "wanted")
	var history locktest.History
	var queue sync.WaitGroup
	for i := range waiters {
		queue.Go(func() {
			lease, err := lockers[i%processes].Acquire(ctx, "wanted")
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
				return
			}
			done := history.Believe(lease)
			time.Sleep(rand.N(time.Millisecond))
			done()
			if err := lease.Release(ctx); err != nil {
				t.Errorf("waiter %d: Release: %v", i, err)
			}
		})
	}
	for range waiters {
		<-waiting
	}
	disturb(t, servers.Leader(t, all))
	if err := wanted.Release(ctx); err != nil {
		t.Errorf("Release after the leader had gone: %v", err)
	}
	queue.Wait()
	if err := kept.Extend(ctx, ttl); err != nil || kept.Token() != token {
		t.Errorf("the lease that was held: %v, token %d, was %d", err, kept.Token(), token)
	}
	if err := kept.Release(ctx); err != nil {
		t.Errorf("Release of what was held: %v", err)
	}
	if err := history.Check(); err != nil || history.Len() != waiters {
		t.Errorf("%d of %d were served: %v", history.Len(), waiters, err)
	}
	if left, err := lockers[0].Page(ctx, leasehold.PageOptions{}); err != nil || len(left.States) > 0 {
		t.Errorf("left over: %+v, %v", left, err)
	}
}

func mustAcquire(t testing.TB, l *leasehold.Locker, name string, opts ...leasehold.Option) *leasehold.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for { // a busy server may accept no session, or no connection, in the time of one call
		lease, err := l.Acquire(ctx, name, opts...)
		if err == nil {
			return lease
		}
		if busy := errors.Is(err, zklock.ErrNoQuorum) || errors.Is(err, zklock.ErrUnreachable); !busy || ctx.Err() != nil {
			t.Fatalf("Acquire of %q: %v", name, err)
		}
		time.Sleep(50 * time.Millisecond) // a refused connection is reported at once
	}
}

// TestStaleServerRenewsNothing: the one server that we talk to has lost the leader. It goes
// on answering for a while, but no lease is renewed or granted on its word.
func TestStaleServerRenewsNothing(t *testing.T) {
	t.Parallel()
	all := servers.StartZooKeepers(t, 3, steady)
	leader := servers.Leader(t, all)
	var near *servers.ZooKeeper
	for _, z := range all {
		if z != leader {
			near = z
		}
	}
	// The lease must not be over before the others stand, however busy the machine is.
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, near.Addr())
	reader := client(t, near.Addr())
	holder := claimOn(t, d, "held")
	claimtest.Granted(t, holder)
	if _, _, err := reader.Children(zklock.DefaultPrefix + "/held"); err != nil { // begins its session
		t.Fatal(err)
	}
	for _, z := range all {
		if z != near {
			defer z.Pause()()
		}
	}
	stopped := time.Now()
	for time.Since(stopped) < time.Second {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		g, err := holder.Renew(ctx, d.Features().SessionTTL)
		cancel()
		if err == nil {
			t.Fatalf("renewed for %v by a server without a leader", g.TTL)
		}
	}
	if nodes, _, err := reader.Children(zklock.DefaultPrefix + "/held"); err != nil || len(nodes) != 1 {
		t.Errorf("the server should have gone on answering reads, else this test shows nothing: %v, %v", nodes, err)
	}
}

func claimOn(t testing.TB, d driver.Driver, name string) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{
		Resource: name, Owner: fmt.Sprint(t.Name(), "/", time.Now().UnixNano()), TTL: d.Features().SessionTTL, Queue: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The one server of three that the driver talks to hangs, a follower: its leases go on by the others.
func TestOurServerHangs(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	all := servers.StartZooKeepers(t, 3, quick)
	leader := servers.Leader(t, all)
	for {
		var at atomic.Pointer[string]
		d := driverOn(t, &zklock.Options{SessionTimeout: ttl * 3 / 2, Dial: func(network, address string, timeout time.Duration) (net.Conn, error) {
			conn, err := net.DialTimeout(network, address, timeout)
			if err == nil {
				at.Store(&address)
			}
			return conn, err
		}}, addresses(all)...)
		lease := mustAcquire(t, lockerOn(t, d, leasehold.Options{}), "kept")
		ours := slices.IndexFunc(all, func(z *servers.ZooKeeper) bool { return z.Addr() == *at.Load() })
		if all[ours] == leader {
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		defer all[ours].Pause()()
		select {
		case <-lease.Context().Done():
			t.Errorf("a lease of %v ended while one server of three hung: %v", ttl, context.Cause(lease.Context()))
		case <-time.After(ttl + ttl/3):
		}
		return
	}
}

// A process that begins with the one server of three that hangs gets its lock by another, within a call of the core.
func TestNewcomerMeetsAHungServer(t *testing.T) {
	t.Parallel()
	all := servers.StartZooKeepers(t, 3, steady)
	leader := servers.Leader(t, all)
	hung := all[slices.IndexFunc(all, func(z *servers.ZooKeeper) bool { return z != leader })]
	defer hung.Pause()()
	for met := false; !met; {
		var first sync.Once
		d := driverOn(t, &zklock.Options{Dial: func(network, address string, timeout time.Duration) (net.Conn, error) {
			first.Do(func() { met = address == hung.Addr() })
			return net.DialTimeout(network, address, timeout)
		}}, addresses(all)...)
		lease, err := lockerOn(t, d, leasehold.Options{}).TryAcquire(t.Context(), "new")
		if err != nil {
			t.Fatalf("met the hung server first: %v; %v", met, err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
