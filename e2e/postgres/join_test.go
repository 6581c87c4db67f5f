package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Who comes to wait gets a place beside others who write the row all the time, more often than it is read and written:
// what reads, decides and writes if nobody else did comes too late again and again.
func TestPostgresPlaceBesideManyWrites(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	near := opened(t, p.URL(), "")
	try := func(d driver.Driver, owner string, queue bool) error {
		c := claimtest.New(t, d, driver.Request{Resource: "hot", Owner: owner, TTL: time.Hour, Queue: queue})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := c.Try(ctx)
		return err
	}
	if err := try(near, "holder", false); err != nil {
		t.Fatal(err)
	}
	proxy := servers.StartProxy(t, p.Addr())
	proxy.Delay(20 * time.Millisecond)
	far := opened(t, strings.Replace(p.URL(), p.Addr(), proxy.Addr(), 1), "")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for range 2 {
		go func() {
			for ctx.Err() == nil {
				_, _ = near.DB.ExecContext(ctx, `UPDATE leasehold_locks SET rev = rev + 1 WHERE name = 'hot'`)
			}
		}()
	}
	var owners []string
	for _, owner := range []string{"first", "second", "third"} {
		owners = append(owners, owner)
		err := try(far, owner, true)
		busy, ok := errors.AsType[*driver.Busy](err)
		if !ok || busy.Wake == nil || busy.Holder.Owner.Reveal() != "holder" {
			t.Fatalf("%s: %v; want a place behind the holder", owner, err)
		}
	}
	stop()
	state, err := near.Inspect(t.Context(), "hot")
	if err != nil {
		t.Fatal(err)
	}
	var waiting []string
	for _, w := range state.Waiters {
		waiting = append(waiting, w.Owner.Reveal())
	}
	if !slices.Equal(waiting, owners) {
		t.Errorf("in the queue: %q; want %q", waiting, owners)
	}
}
