package zklock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// leaderAndFollower are of an ensemble of three, with ticks of half a second.
func leaderAndFollower(t *testing.T) (leader, follower *servers.ZooKeeper) {
	t.Helper()
	all := servers.StartZooKeepers(t, 3, servers.ZooKeeperOptions{Tick: time.Second / 2, Config: []string{longSessions}})
	leader = servers.Leader(t, all)
	if all[0] == leader {
		return leader, all[1]
	}
	return leader, all[0]
}

// TestStallThenCut: our link stands still, a renewal comes through, and our server is cut off
// before it has told the leader of us. Nobody else is granted before the renewed lease ends.
func TestStallThenCut(t *testing.T) {
	t.Parallel()
	leader, near := leaderAndFollower(t)
	p := servers.StartProxy(t, near.Addr())
	opts := &zklock.Options{SessionTimeout: 9 * time.Second}
	ours := driverOn(t, opts, p.Addr())
	ttl := ours.Features().SessionTTL
	holder, other := claimOn(t, ours, "stall"), claimOn(t, driverOn(t, opts, leader.Addr()), "stall")
	claimtest.Granted(t, holder)
	claimtest.Refused(t, other)
	granted := make(chan time.Time, 1)
	go func() {
		for t.Context().Err() == nil {
			if _, err := other.Try(t.Context()); err == nil {
				granted <- time.Now()
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	if _, err := holder.Renew(t.Context(), ttl); err != nil {
		t.Fatal(err)
	}
	p.Dark()
	time.Sleep(opts.SessionTimeout / 2) // the client gives a connection up after two thirds
	p.Pass()
	asked := time.Now()
	g, err := holder.Renew(t.Context(), ttl)
	defer near.Pause()()
	if err != nil {
		t.Fatalf("Renew after the stall: %v", err)
	}
	if at := <-granted; at.Before(asked.Add(g.TTL)) {
		t.Errorf("another was granted %v before our lease ended; it had been renewed for %v", asked.Add(g.TTL).Sub(at), g.TTL)
	}
}

// TestStallThenEvent: the same with a grant that comes by the event of a deletion, and counts
// from before it.
func TestStallThenEvent(t *testing.T) {
	t.Parallel()
	leader, near := leaderAndFollower(t)
	p := servers.StartProxy(t, near.Addr())
	opts := &zklock.Options{SessionTimeout: 9 * time.Second}
	ours, theirs := driverOn(t, opts, p.Addr()), lastingOn(t, nil, leader.Addr())
	holder, next, last := claimOn(t, theirs, "event"), claimOn(t, ours, "event"), claimOn(t, theirs, "event")
	claimtest.Granted(t, claimOn(t, ours, "beside")) // begins the session
	p.Dark()
	time.Sleep(opts.SessionTimeout / 2)
	claimtest.Granted(t, holder)
	p.Pass()
	var asked time.Time
	var busy *driver.Busy
	claimtest.Eventually(t, "a refusal", func() (ok bool) { // until the servers accept the session again
		asked = time.Now()
		_, err := next.Try(t.Context())
		busy, ok = errors.AsType[*driver.Busy](err)
		return ok
	})
	claimtest.Refused(t, last)
	claimtest.Released(t, holder)
	g, ok := unasked(t, busy)
	defer near.Pause()()
	if !ok {
		t.Fatal("no grant came, so that this test shows nothing")
	}
	claimtest.Eventually(t, "another's grant", func() bool { _, err := last.Try(t.Context()); return err == nil })
	if at := time.Now(); at.Before(asked.Add(g.TTL)) {
		t.Errorf("another was granted %v before our lease ended; it was for %v", asked.Add(g.TTL).Sub(at), g.TTL)
	}
}

// grantsAreWhole: while nothing is wrong they are as long as was asked for, however long the
// driver has had nothing to do.
func grantsAreWhole(t *testing.T, z *servers.ZooKeeper) {
	var all sync.WaitGroup
	for i := range 5 {
		d := driverOn(t, nil, z.Addr())
		ttl, idle := d.Features().SessionTTL, zklock.DefaultSessionTimeout*time.Duration(i)/8
		c := claimOn(t, d, fmt.Sprint("whole-", i))
		all.Go(func() {
			for range 2 {
				if g, err := c.Try(t.Context()); err != nil || g.TTL < ttl-2*time.Second {
					t.Errorf("the grant, also after %v, is for %v, %v; want %v", idle, g.TTL, err, ttl)
				}
				if err := c.Release(t.Context(), driver.End{}); err != nil {
					t.Error(err)
				}
				time.Sleep(idle)
			}
		})
	}
	all.Wait()
}

// closeBesideTries: the driver is closed while claims are being tried. Whoever is granted
// is told of the end.
func closeBesideTries(t *testing.T, z *servers.ZooKeeper) {
	const rounds, claims = 10, 40
	for round := range rounds {
		d := driverOn(t, nil, z.Addr())
		var tries sync.WaitGroup
		first := make(chan struct{}, claims)
		for i := range claims {
			name := fmt.Sprintf("close-%d-%d", round, i)
			lost := make(chan struct{})
			c, err := d.Claim(driver.Request{
				Resource: name, Owner: name, TTL: d.Features().SessionTTL, Lost: func(error) { close(lost) },
			})
			if err != nil {
				t.Fatal(err)
			}
			tries.Go(func() {
				if _, err := c.Try(t.Context()); err != nil {
					return
				}
				first <- struct{}{}
				select {
				case <-lost:
				case <-time.After(soon):
					t.Errorf("%s was granted, and not told that its driver was closed", name)
				}
			})
		}
		<-first
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		tries.Wait()
	}
}

// deletedWhileAway: the nodes of leases are deleted while the link is down. No renewal that
// waits for the new connection succeeds.
func deletedWhileAway(t *testing.T, z *servers.ZooKeeper) {
	const leases = 40
	p := servers.StartProxy(t, z.Addr())
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, p.Addr())
	ttl := d.Features().SessionTTL
	conn := client(t, z.Addr())
	var all []driver.Claim
	for i := range leases {
		c := claimOn(t, d, fmt.Sprint("away-", i))
		claimtest.Granted(t, c)
		if _, err := c.Renew(t.Context(), ttl); err != nil { // watches the node
			t.Fatal(err)
		}
		all = append(all, c)
	}
	p.Dark()
	p.Reset()
	for i := range leases {
		if err := conn.Delete(onlyNode(t, conn, fmt.Sprint("away-", i)), -1); err != nil {
			t.Fatal(err)
		}
	}
	var renewals sync.WaitGroup
	for i, c := range all {
		renewals.Go(func() {
			for {
				_, err := c.Renew(t.Context(), ttl)
				switch {
				case err == nil:
					t.Errorf("lease %d was renewed after its node had been deleted", i)
					return
				case errors.Is(err, driver.ErrLost):
					return
				}
			}
		})
	}
	p.Pass()
	renewals.Wait()
}
