package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// Nodes that are away one after the other, for longer than the TTL, or start anew, are never more
// than a minority: a lease outlives them all.
func TestLeaseOutlivesEachNode(t *testing.T) {
	for name, fault := range map[string]func(*memory.Server, *locktest.Faulty){
		"away": func(_ *memory.Server, l *locktest.Faulty) {
			heal := l.Sever()
			time.Sleep(30 * time.Second)
			heal()
		},
		"empty": func(s *memory.Server, _ *locktest.Faulty) { s.Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(3)
				d, links := c.connect(t, nil)
				lease, err := locker(t, d).Acquire(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				for i := range 6 {
					fault(c[i%3], links[i%3])
					time.Sleep(20 * time.Second)
					if lease.Context().Err() != nil {
						t.Fatalf("lost when node %d was %s: %v", i%3+1, name, context.Cause(lease.Context()))
					}
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				for i, s := range c {
					if st, err := s.Connect().Inspect(t.Context(), "a"); err != nil || len(st.Holders) > 0 {
						t.Errorf("node %d after the release: %+v, %v", i+1, st.Holders, err)
					}
				}
			})
		})
	}
}

// A node that was regained knows the fence, and gives the next one a greater, although the others have forgotten
// it meanwhile.
func TestRegainedNodeKnowsTheFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		c[1].Connect().RaiseFence(t.Context(), "a", driver.FenceOf(uint64(1<<51))) // its clock is ahead
		claim, first, _ := heldByTwo(t, c, nil)
		mustRenew(t, claim, 3)
		claim.Release(t.Context(), driver.End{})
		synctest.Wait()
		c[0].Flush()
		c[1].Flush()
		d, links := c.connect(t, nil)
		links[0].Sever()
		next, err := newClaim(t, d, "next").Try(t.Context())
		if err != nil || next.Fence <= first.Fence {
			t.Errorf("fence %d, %v after %d", next.Fence, err, first.Fence)
		}
	})
}

func mustRenew(t *testing.T, c driver.Claim, times int) {
	t.Helper()
	for range times {
		if _, err := c.Renew(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // what goes on in the background
	}
}

// held back: the engine serves the call when gate is closed.
func gated(gate <-chan struct{}) locktest.Fault {
	return func(_ context.Context, apply func() error) error {
		<-gate
		return apply()
	}
}

// anotherHolds has another hold for a moment, of which the first node never hears.
func anotherHolds(t *testing.T, c cluster, opts *quorum.Options) {
	t.Helper()
	d, links := c.connect(t, opts)
	links[0].Always(locktest.OpTry, locktest.LoseRequest)
	next := newClaim(t, d, "next")
	if _, err := next.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := next.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// What a node grants late to a holder who was evicted meanwhile, and after another has held, makes no
// majority with what is left of the lease elsewhere.
func TestRegainedLateDoesNotCount(t *testing.T) {
	opts := &quorum.Options{NodeTimeout: 5 * time.Second}
	another := func(t *testing.T, c cluster) {
		t.Helper()
		if err := c[1].Connect().Evict(t.Context(), "a", "holder", "reason"); err != nil {
			t.Fatal(err)
		}
		anotherHolds(t, c, opts)
	}
	notRenewed := func(t *testing.T, c driver.Claim) {
		t.Helper()
		for range 3 {
			if _, err := c.Renew(t.Context(), 10*time.Second); err == nil {
				t.Fatal("renewed after another has held")
			} else if errors.Is(err, driver.ErrBusy) {
				t.Fatal(err)
			}
			synctest.Wait()
		}
	}
	t.Run("of the grant after one that was given up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(3)
			d, links := c.connect(t, opts)
			holder := newClaim(t, d, "holder")
			links[0].Next(locktest.OpTry, locktest.LoseRequest)
			links[1].Next(locktest.OpTry, locktest.LoseRequest)
			if _, err := holder.Try(t.Context()); err == nil {
				t.Fatal("granted by one of three")
			}
			synctest.Wait()
			links[2].Next(locktest.OpTry, locktest.LoseRequest)
			if _, err := holder.Try(t.Context()); err != nil {
				t.Fatal(err)
			}
			another(t, c)
			if _, err := newClaim(t, c[2].Connect(), "holder").Try(t.Context()); err != nil { // as what was lost would, late
				t.Fatal(err)
			}
			notRenewed(t, holder)
		})
	})
	t.Run("of the grant after one whose release was not sent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(3)
			d, links := c.connect(t, opts)
			holder := newClaim(t, d, "holder")
			gate := make(chan struct{})
			links[0].Next(locktest.OpTry, func(context.Context, func() error) error {
				<-gate
				return locktest.ErrInjected
			})
			links[1].Next(locktest.OpTry, locktest.LoseRequest)
			tried := make(chan error)
			go func() {
				_, err := holder.Try(t.Context())
				tried <- err
			}()
			synctest.Wait() // node 3 has granted
			links[2].Next(locktest.OpTry, locktest.HangRequest, locktest.HangRequest)
			for _, name := range []string{"finds node 3 down", "asks whether it is back"} {
				other, err := d.Claim(driver.Request{Resource: name, Owner: name, TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := other.Try(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(opts.NodeTimeout - time.Second)
				if name == "finds node 3 down" {
					time.Sleep(2 * time.Second)
				}
			}
			close(gate)
			if err := <-tried; err == nil {
				t.Fatal("granted by one of three")
			}
			time.Sleep(opts.NodeTimeout)
			if n := links[2].Calls(locktest.OpRelease); n > 0 {
				t.Fatalf("%d releases reached a node that was down", n)
			}
			links[2].Next(locktest.OpTry, locktest.LoseRequest)
			if _, err := holder.Try(t.Context()); err != nil {
				t.Fatal(err)
			}
			c[2].Connect().Evict(t.Context(), "a", "holder", "reason") // or it has expired
			another(t, c)
			if _, err := newClaim(t, c[2].Connect(), "holder").Try(t.Context()); err != nil { // as what was lost would, late
				t.Fatal(err)
			}
			notRenewed(t, holder)
		})
	})
	t.Run("of the grant itself, beyond the time of a call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(3)
			d, links := c.connect(t, &quorum.Options{NodeTimeout: 2 * time.Second})
			before, gate := make(chan struct{}), make(chan struct{})
			for i := range 64 { // a node takes no more at once
				links[2].Next(locktest.OpTry, gated(before))
				other, err := d.Claim(driver.Request{Resource: fmt.Sprint("other", i), Owner: "other", TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := other.Try(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			links[2].Next(locktest.OpTry, gated(gate))
			holder := newClaim(t, d, "holder")
			if _, err := holder.Try(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1900 * time.Millisecond)
			close(before) // now there is room for the holder's call, whose time begins
			time.Sleep(time.Second)
			another(t, c)
			close(gate)
			synctest.Wait()
			notRenewed(t, holder)
		})
	})
	for before, lost := range map[string]func(t *testing.T, holder driver.Claim){
		"a renewal": notRenewed,
		"its release": func(t *testing.T, holder driver.Claim) {
			if err := holder.Release(t.Context(), driver.End{}); err == nil {
				t.Error("released, though another has held since")
			}
		},
	} {
		t.Run("before "+before, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(3)
				holder, _, links := heldByTwo(t, c, opts)
				gate := make(chan struct{})
				links[2].Next(locktest.OpTry, gated(gate))
				mustRenew(t, holder, 2) // finds that node 3 has nothing, and asks it
				another(t, c)
				close(gate)
				synctest.Wait()
				lost(t, holder)
			})
		})
	}
	t.Run("during one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(3)
			holder, _, links := heldByTwo(t, c, opts)
			gate, answer := make(chan struct{}), make(chan struct{})
			links[2].Next(locktest.OpTry, gated(gate))
			mustRenew(t, holder, 1)
			links[0].Next(locktest.OpRenew, func(_ context.Context, apply func() error) error {
				err := apply()
				<-answer
				return err
			})
			renewed := make(chan error)
			go func() {
				_, err := holder.Renew(t.Context(), 10*time.Second)
				renewed <- err
			}()
			synctest.Wait()
			another(t, c)
			close(gate)
			synctest.Wait()
			close(answer)
			<-renewed // it counts from before the eviction, whatever it says
			synctest.Wait()
			notRenewed(t, holder)
		})
	})
}

// A node that is asked again while the call before is still on its way is not asked once more when that one has
// regained it: what it grants late would count from before somebody else held.
func TestRegainedNodeIsNotAskedOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := &quorum.Options{NodeTimeout: 5 * time.Second}
		c := newCluster(3)
		holder, _, links := heldByTwo(t, c, opts)
		first, second := make(chan struct{}), make(chan struct{})
		lateAndLost := func(_ context.Context, apply func() error) error {
			<-second
			return locktest.LoseReply(t.Context(), apply)
		}
		links[2].Next(locktest.OpTry, gated(first), lateAndLost)
		mustRenew(t, holder, 2) // node 3 is asked, and is to be asked again
		close(first)
		synctest.Wait()
		answer := make(chan struct{})
		links[0].Next(locktest.OpRenew, func(_ context.Context, apply func() error) error {
			err := apply()
			<-answer
			return err
		})
		renewed := make(chan error)
		go func() {
			_, err := holder.Renew(t.Context(), 10*time.Second)
			renewed <- err
		}()
		synctest.Wait()
		for _, i := range []int{1, 2} {
			if err := c[i].Connect().Evict(t.Context(), "a", "holder", "reason"); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Fatal(err)
			}
		}
		anotherHolds(t, c, opts)
		close(second)
		synctest.Wait()
		close(answer)
		<-renewed // it counts from before the eviction
		synctest.Wait()
		if err := holder.Release(t.Context(), driver.End{}); err == nil {
			t.Error("released, though another has held since")
		}
	})
}

// Nodes that answer, but take longer than a call may that is part of a grant, cost no lease which has
// seconds left; and Close does not wait for them.
func TestSlowNodesCostNoLease(t *testing.T) {
	for _, leases := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(3)
			d, links := c.connect(t, nil)
			locks := locker(t, d)
			var all []*leasehold.Lease
			for i := range leases {
				lease, err := locks.Acquire(t.Context(), fmt.Sprint(i))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, lease)
			}
			for _, l := range links {
				l.Always(locktest.OpRenew, locktest.SlowReply(10*quorum.DefaultNodeTimeout))
			}
			time.Sleep(time.Minute)
			for _, lease := range all {
				if lease.Context().Err() != nil {
					t.Fatalf("of %d: %v", leases, context.Cause(lease.Context()))
				}
			}
			for _, l := range links {
				l.Always(locktest.OpRenew, locktest.HangReply)
			}
			time.Sleep(5 * time.Second) // renewals are on their way
			start := time.Now()
			d.Close()
			if took := time.Since(start); took > quorum.DefaultNodeTimeout {
				t.Errorf("Close took %v", took)
			}
		})
	}
}
