package quorum_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// heldByTwo has "holder" hold at nodes 1 and 2, because 3 was not reached.
func heldByTwo(t *testing.T, c cluster, opts *quorum.Options) (driver.Claim, driver.Grant, []*locktest.Faulty) {
	t.Helper()
	d, links := c.connect(t, opts)
	links[2].Next(locktest.OpTry, locktest.LoseRequest)
	claim := newClaim(t, d, "holder")
	g, err := claim.Try(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return claim, g, links
}

// Of a holder of two nodes one is away: who looks is told of it all the same, as who tries is, and
// who evicts it has done so.
func TestHolderIsSeenBesideANodeThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		heldByTwo(t, c, nil)
		d, links := c.connect(t, nil)
		links[1].Sever()
		if st, err := d.Inspect(t.Context(), "a"); err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Reveal() != "holder" {
			t.Errorf("Inspect: %+v, %v", st, err)
		}
		if all, _, err := d.List(t.Context(), "", "", 100); err != nil || len(all) != 1 || len(all[0].Holders) != 1 {
			t.Errorf("List: %+v, %v", all, err)
		}
		if err := d.Evict(t.Context(), "a", "holder", "reason"); err != nil {
			t.Errorf("Evict: %v", err)
		}
		if st, err := d.Inspect(t.Context(), "a"); err != nil || len(st.Holders) != 0 {
			t.Errorf("Inspect after the eviction: %+v, %v", st, err)
		}
		if _, err := newClaim(t, d, "next").Try(t.Context()); err != nil {
			t.Errorf("after the eviction: %v", err)
		}
	})
}

// The fence of a Try that is repeated is the same, or greater: another majority may know less.
func TestFenceOfARepeatedTryIsNoLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		c[1].Connect().RaiseFence(t.Context(), "a", driver.FenceOf(uint64(1<<51))) // its clock is ahead
		claim, first, links := heldByTwo(t, c, nil)
		links[1].Sever()
		again, err := claim.Try(t.Context())
		if err != nil || again.Fence < first.Fence {
			t.Errorf("fence %d, %v after %d", again.Fence, err, first.Fence)
		}
	})
}

// Pages go on past a node that goes away between them, and hide nothing that a majority has.
func TestPagesGoOnWithoutANode(t *testing.T) {
	for gone := range 3 {
		for _, after := range []int{0, 1, 4} { // pages that were read before
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(3)
				d, links := c.connect(t, nil)
				want := make(map[string]bool)
				for i := range 10 {
					name := fmt.Sprint("n/", i)
					want[name] = true
					claim, err := d.Claim(driver.Request{Resource: name, Owner: "holder of " + name, TTL: time.Hour})
					if err == nil {
						_, err = claim.Try(t.Context())
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				next := ""
				for page := 0; page == 0 || next != ""; page++ {
					if page == after {
						links[gone].Sever()
					}
					states, following, err := d.List(t.Context(), "n/", next, 3)
					if err != nil || len(states) > 3 {
						t.Fatalf("without node %d after %d pages: page %d: %v, %v", gone, after, page, states, err)
					}
					for _, st := range states {
						delete(want, st.Resource)
					}
					next = following
				}
				if len(want) > 0 {
					t.Errorf("without node %d after %d pages: %v are missing", gone, after, want)
				}
			})
		}
	}
}

// A list may take a healthy node longer than the NodeTimeout. It neither fails nor keeps others from
// the nodes.
func TestSlowListHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, links := newCluster(3).connect(t, nil)
		l := locker(t, d)
		if _, err := l.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		const slow = 4 * quorum.DefaultNodeTimeout
		for _, link := range links {
			link.Always(locktest.OpInspect, locktest.SlowReply(slow))
		}
		list := func() error {
			all, _, err := d.List(t.Context(), "", "", 100)
			if err == nil && len(all) != 1 {
				err = fmt.Errorf("%d are listed", len(all))
			}
			return err
		}
		if err := list(); err != nil {
			t.Errorf("first: %v", err)
		}
		second := make(chan error)
		go func() { second <- list() }()
		time.Sleep(slow / 4)
		start := time.Now()
		if _, err := l.TryAcquire(t.Context(), "b"); err != nil || time.Since(start) > slow/4 {
			t.Errorf("TryAcquire beside a list: %v after %v", err, time.Since(start))
		}
		if err := <-second; err != nil {
			t.Errorf("second: %v", err)
		}
	})
}

// A node that hangs does not hold up lists once a majority has answered.
func TestHungNodeDelaysNoList(t *testing.T) {
	for hung := range 3 {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(3)
			d, links := c.connect(t, nil)
			l := locker(t, d)
			if _, err := l.Acquire(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			links[hung].Always(locktest.OpInspect, locktest.HangRequest)
			for n := range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				start := time.Now()
				all, _, err := d.List(ctx, "", "", 100)
				cancel()
				if took := time.Since(start); err != nil || len(all) != 1 || took > time.Second/2 {
					t.Errorf("node %d hangs: list %d: %d are listed after %v, %v", hung, n, len(all), took, err)
				}
			}
		})
	}
}

// A lister is a node whose lists are subject to a fault.
type lister struct {
	*memory.Driver
	fault locktest.Fault
}

func (l *lister) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	err = l.fault(ctx, func() (err error) {
		states, next, err = l.Driver.List(ctx, prefix, after, limit)
		return err
	})
	return states, next, err
}

// A node whose lists hang holds up one list of many names, and no other while the others answer.
func TestHungNodeDelaysOneListInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const names, limit, slow = 10, 3, 4 * quorum.DefaultNodeTimeout
		var nodes []*lister
		for range 3 {
			nodes = append(nodes, &lister{memory.New(), locktest.SlowReply(0)})
		}
		d, err := quorum.New([]driver.Driver{nodes[0], nodes[1], nodes[2]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		l := locker(t, d)
		for i := range names {
			if _, err := l.Acquire(t.Context(), fmt.Sprint("n/", i)); err != nil {
				t.Fatal(err)
			}
		}
		list := func() (took time.Duration, err error) {
			start := time.Now()
			seen := make(map[string]bool)
			for next, more := "", true; more && err == nil; more = next != "" {
				var states []driver.State
				states, next, err = d.List(t.Context(), "n/", next, limit)
				for _, st := range states {
					seen[st.Resource] = true
				}
			}
			if err == nil && len(seen) != names {
				err = fmt.Errorf("%d of %d are listed", len(seen), names)
			}
			return time.Since(start), err
		}
		nodes[0].fault = locktest.HangRequest
		if _, err := list(); err != nil {
			t.Error(err)
		}
		if took, err := list(); err != nil || took > time.Second/2 {
			t.Errorf("another list took %v, %v", took, err)
		}
		nodes[0].fault, nodes[1].fault = locktest.SlowReply(slow), locktest.LoseRequest
		if _, err = list(); err != nil { // it was late, but is needed now
			_, err = list()
		}
		if err != nil {
			t.Errorf("two of three list, one slowly: %v", err)
		}
	})
}

// A lock that only one node still has is not listed as held while another node is slow.
func TestSlowListMakesNoHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 4 * quorum.DefaultNodeTimeout
		nodes := []*lister{{memory.New(), locktest.SlowReply(0)}, {memory.New(), locktest.SlowReply(0)}, {memory.New(), locktest.SlowReply(slow)}}
		d, err := quorum.New([]driver.Driver{nodes[0], nodes[1], nodes[2]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for i, names := range [][]string{{"left", "held"}, {"held"}} { // "held" at a majority
			for _, name := range names {
				c, err := nodes[i].Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute})
				if err == nil {
					_, err = c.Try(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		start := time.Now()
		held, _, err := d.List(t.Context(), "", "", 100)
		if err != nil || len(held) != 1 || held[0].Resource != "held" {
			t.Errorf("%v are listed, %v", held, err)
		}
		if took := time.Since(start); took >= slow {
			t.Errorf("the list took %v", took)
		}
	})
}

// uninspected is a node whose Inspect has no answer.
type uninspected struct{ *lister }

func (uninspected) Inspect(context.Context, string) (driver.State, error) {
	return driver.State{}, locktest.ErrInjected
}

// A lock that a slow node may have is listed, and hides no other, if the nodes cannot be asked about it.
func TestSlowListMayHaveAHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &lister{memory.New(), locktest.SlowReply(0)}
		second := uninspected{&lister{memory.New(), locktest.SlowReply(0)}}
		third := uninspected{&lister{memory.New(), locktest.SlowReply(4 * quorum.DefaultNodeTimeout)}}
		d, err := quorum.New([]driver.Driver{first, second, third}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		claimtest.Granted(t, claimtest.New(t, first, driver.Request{Resource: "left", Owner: "o", TTL: time.Minute}))
		if held, _, err := d.List(t.Context(), "", "", 100); err != nil || len(held) != 1 {
			t.Errorf("%v are listed, %v", held, err)
		}
	})
}

// A page begins only where another may have ended.
func TestListRefusesAlienPlaces(t *testing.T) {
	t.Parallel()
	d, _ := newCluster(3).connect(t, nil)
	for place, ok := range map[string]bool{
		"0.0.a": true, "1.0.": true, "2.1.a": true, "1.1.": true,
		"2.0.": false, "3.0.": false, "3.1.": false, "2.2.": false, "0.1.": false, "-1.0.": false, "1.-1.": false, "x": false, "1": false,
	} {
		if _, _, err := d.List(t.Context(), "", place, 100); (err == nil) != ok {
			t.Errorf("%q: %v", place, err)
		}
	}
}
