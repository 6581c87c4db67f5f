package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// While nothing happens, the waiters of a process read the queue once for all of them; and each turn is a deletion.
func TestWaitersReadTogether(t *testing.T) {
	t.Parallel()
	const waiters, ttl, lasts = 60, 10 * time.Second, 8 * time.Second
	var taps tap
	var calls atomic.Int64
	count := func(_ *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		calls.Add(1)
		return send(ctx)
	}
	taps.txn.Store(&count)
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, taps.client(t, e), nil)
	holder := claimOf(t, driverOn(t, clientOf(t, e), nil), driver.Request{Resource: "r", Owner: "holder", TTL: time.Minute})
	if err := within(t, ttl, tryOf(holder)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wakes atomic.Int64
	var queued, all sync.WaitGroup
	queued.Add(waiters)
	for i := range waiters {
		all.Go(func() {
			w := &waiter{claim: claimOf(t, d, driver.Request{Resource: "r", Owner: fmt.Sprint(i), TTL: ttl, Queue: true})}
			err := w.try(ctx)
			queued.Done()
			if errors.Is(err, driver.ErrBusy) {
				err = w.wait(ctx, nil, &wakes)
			}
			if err != nil {
				t.Errorf("a waiter: %v", err)
			}
			if err := released(t, w.claim, ttl); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
	}
	queued.Wait()
	calls.Store(0)
	time.Sleep(lasts)
	// A few read when the watch hears, the next looks each second, and another after a third of the TTL.
	if n := calls.Load(); n > waiters {
		t.Errorf("%d waiters made %d calls in %v; want less than one each", waiters, n, lasts)
	}
	calls.Store(0)
	if err := released(t, holder, ttl); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if n := calls.Load(); n > 3*waiters {
		t.Errorf("%d turns took %d calls", waiters, n)
	}
}
