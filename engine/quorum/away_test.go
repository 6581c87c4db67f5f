package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
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

// damaging returns names that are damaged, as far as they can be read.
type damaging struct {
	*memory.Driver
	damaged map[string]bool
}

func (d *damaging) Inspect(ctx context.Context, name string) (driver.State, error) {
	st, err := d.Driver.Inspect(ctx, name)
	if d.damaged[name] {
		err = errors.Join(err, fmt.Errorf("%q: %w", name, driver.ErrCorrupt))
	}
	return st, err
}

func (d *damaging) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	for _, st := range states {
		if d.damaged[st.Resource] {
			err = errors.Join(err, fmt.Errorf("%q: %w", st.Resource, driver.ErrCorrupt))
		}
	}
	return states, next, err
}

// A resource that is damaged at a majority hides none of the others, however many there are.
func TestListDespiteDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes []driver.Driver
		for i := range 3 {
			nodes = append(nodes, &damaging{memory.New(), map[string]bool{"n/5": i < 2}})
		}
		d, err := quorum.New(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for i := range 10 {
			claim := claimOf(t, d, driver.Request{Resource: fmt.Sprint("n/", i), Owner: "o", TTL: time.Hour})
			if _, err := claim.Try(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		seen, damage := make(map[string]bool), 0
		for next := ""; ; {
			states, following, err := d.List(t.Context(), "n/", next, 3)
			if err != nil && !errors.Is(err, driver.ErrCorrupt) {
				t.Fatal(err)
			}
			if err != nil && strings.Contains(err.Error(), "n/5") {
				damage++
			}
			for _, st := range states {
				seen[st.Resource] = true
			}
			if next = following; next == "" {
				break
			}
		}
		if delete(seen, "n/5"); len(seen) != 9 || damage == 0 {
			t.Errorf("%v are listed, and damage on %d pages; want the 9 others, and some damage", seen, damage)
		}
	})
}
