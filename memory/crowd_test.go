package memory

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A long queue keeps its order while its waiters keep their places, and passes over who has died or left.
func TestCrowdKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New()
		defer d.Close()
		const many, dies, leaves = 3 * long, long + 7, long + 9
		var all []driver.Claim
		for i := range many {
			c := claimtest.New(t, d, driver.Request{Resource: "crowd", Owner: fmt.Sprint("owner-", i), TTL: time.Minute, Queue: true})
			all = append(all, c)
			if _, err := c.Try(t.Context()); (err == nil) != (i == 0) {
				t.Fatalf("the first Try of %d: %v", i, err)
			}
		}
		for second := range 10 { // longer than a place lives that nobody keeps
			time.Sleep(keepPlace)
			for i := 1; i < many; i++ {
				switch {
				case second > 2 && (i == dies || i == leaves):
				case second == 2 && i == leaves:
					if err := all[i].Release(t.Context(), driver.End{}); err != nil {
						t.Errorf("who leaves: %v", err)
					}
				default:
					_, err := all[i].Try(t.Context())
					busy, ok := errors.AsType[*driver.Busy](err)
					if !ok || busy.Holder.Owner.Reveal() != "owner-0" || busy.Wake == nil || busy.Retry <= 0 || busy.Retry > keepPlace {
						t.Fatalf("second %d, waiter %d: %v, %+v", second, i, err, busy)
					}
				}
			}
		}
		state, err := d.Inspect(t.Context(), "crowd")
		if err != nil || len(state.Waiters) != many-3 {
			t.Errorf("%d waiters, %v; want %d", len(state.Waiters), err, many-3)
		}
		last := uint64(0)
		for i := 1; i < many; i++ {
			if i == dies || i == leaves {
				continue
			}
			before := i - 1
			for before == dies || before == leaves {
				before--
			}
			if _, err := all[i].Try(t.Context()); err == nil {
				t.Fatalf("%d is granted beside %d", i, before)
			}
			if err := all[before].Release(t.Context(), driver.End{}); err != nil {
				t.Fatalf("release %d: %v", before, err)
			}
			g, err := all[i].Try(t.Context())
			if err != nil || g.Fence <= last {
				t.Fatalf("the turn of %d: %+v, %v", i, g, err)
			}
			last = g.Fence
		}
	})
}

// BenchmarkCrowd is one of 5,000 waiters for one name, which keeps its place.
func BenchmarkCrowd(b *testing.B) {
	d := New()
	defer d.Close()
	var all []driver.Claim
	for i := range 5001 {
		c := claimtest.New(b, d, driver.Request{Resource: "crowd", Owner: fmt.Sprintf("an-owner-of-twenty-%06d", i), TTL: time.Hour, Queue: true})
		all = append(all, c)
		if _, err := c.Try(context.Background()); err != nil && !errors.Is(err, driver.ErrBusy) {
			b.Fatal(err)
		}
	}
	for i := 0; b.Loop(); i++ {
		if _, err := all[1+i%5000].Try(context.Background()); !errors.Is(err, driver.ErrBusy) {
			b.Fatal(err)
		}
	}
}
