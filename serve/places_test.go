package serve_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// placeless lists no waiters, as some engines do, or nothing at all.
type placeless struct {
	*memory.Driver
	fails atomic.Bool
}

func (d *placeless) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	for i := range states {
		states[i].Waiters = nil
	}
	if d.fails.Load() {
		err = errors.New("no answer")
	}
	return states, next, err
}

// A place that no look has seen ends some time after the last call of its caller. It is kept while
// the caller calls.
func TestPlacesThatNoLookSawEnd(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &placeless{Driver: memory.New()}
			d.fails.Store(fails)
			s := newBubble(t, d, nil)
			s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":600000}`)
			for _, owner := range []string{"b", "c", "d", "w"} {
				s.want(409, wire.Acquire, `{"name":"n","owner":%q,"ttl_ms":60000,"wait_ms":100}`, owner)
			}
			for range 10 {
				time.Sleep(10 * time.Second)
				s.want(409, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"wait_ms":100}`)
			}
			got := kinds(s.history("kind=waiting,left"))
			for _, want := range []string{"left b", "left c", "left d"} {
				if strings.Count(got, want) != 1 {
					t.Errorf("looks fail: %t: told %s, want %s once", fails, got, want)
				}
			}
			if strings.Count(got, "waiting") != 4 || strings.Count(got, "left") != 3 {
				t.Errorf("looks fail: %t: told %s", fails, got)
			}
			s.want(200, wire.Release, `{"name":"n","owner":"a"}`)
			s.want(200, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":600000,"queue":true}`)
			if all := s.history("kind=granted"); *all.Entries[0].Waited < 100_000 {
				t.Errorf("granted after %d ms", *all.Entries[0].Waited)
			}
		})
	}
}
