package etcdlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// loseDeletion serves the next deletion, whose answer a broken connection loses. It counts the transactions that follow.
func (p *tap) loseDeletion() (following *atomic.Int64) {
	var isLost atomic.Bool
	following = new(atomic.Int64)
	lose := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if isLost.Load() {
			following.Add(1)
		}
		err := send(ctx)
		if err == nil && req.Success[0].GetRequestDeleteRange() != nil && isLost.CompareAndSwap(false, true) {
			err = status.Error(codes.Unavailable, "the answer is lost")
		}
		return err
	}
	p.txn.Store(&lose)
	return following
}

// A release that finds no key after a deletion without an answer does not know which of them ended the lease. It says so
// at once, because asking again tells nothing more.
func TestReleaseWithoutAnswerAsksNoMore(t *testing.T) {
	t.Parallel()
	const ttl, limit, few = 30 * time.Second, 20 * time.Second, 4
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	req := driver.Request{Resource: "a", Owner: "o", TTL: ttl}
	if err := within(t, limit, tryOf(claimOf(t, driverOn(t, clientOf(t, e), nil), req))); err != nil {
		t.Fatal(err)
	}
	elsewhere := claimOf(t, driverOn(t, taps.client(t, e), nil), req) // which does not know the session of the key
	following := taps.loseDeletion()
	if err := within(t, limit, claimtest.Release(elsewhere)); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Release without an answer: %v; want an unknown outcome", err)
	}
	if n := following.Load(); n == 0 || n > few {
		t.Errorf("%d transactions after the deletion; want 1 to %d", n, few)
	}
}

// A Try first deletes the key of a release that failed. It need not know which deletion did it.
func TestTryAfterADeletionWithoutAnswer(t *testing.T) {
	t.Parallel()
	const ttl, limit = 30 * time.Second, 20 * time.Second
	var taps tap
	d := driverOn(t, taps.client(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl})
	if err := within(t, limit, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	fail := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if req.Success[0].GetRequestDeleteRange() != nil {
			return status.Error(codes.Internal, "it is not served")
		}
		return send(ctx)
	}
	taps.txn.Store(&fail)
	if err := within(t, limit, claimtest.Release(c)); err == nil || errors.Is(err, driver.ErrLost) {
		t.Fatalf("Release without an answer: %v; want an unknown outcome", err)
	}
	following := taps.loseDeletion()
	if err := within(t, limit, tryOf(c)); err != nil || following.Load() == 0 {
		t.Errorf("Try: %v, %d transactions after the deletion; want a grant", err, following.Load())
	}
}

// A Try that gives up a key of its own, for the one that another process has made, need not know which deletion did it.
func TestWaiterGoesOnAfterADeletionWithoutAnswer(t *testing.T) {
	t.Parallel()
	const ttl, limit = 10 * time.Second, 20 * time.Second // a waiter with a longer TTL puts no key before it knows of the other
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	here, there := driverOn(t, clientOf(t, e), nil), driverOn(t, taps.client(t, e), nil)
	holder := claimOf(t, here, driver.Request{Resource: "a", Owner: "holder", TTL: ttl})
	if err := within(t, limit, tryOf(holder)); err != nil {
		t.Fatal(err)
	}
	following := new(atomic.Int64)
	for i, d := range []driver.Driver{here, there} {
		if i == 1 {
			following = taps.loseDeletion()
		}
		c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl, Queue: true})
		if err := within(t, limit, tryOf(c)); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("Try at process %d: %v; want busy", i, err)
		}
	}
	if following.Load() == 0 {
		t.Error("no deletion lost its answer")
	}
}

// A deletion that hangs leaves half of the time to another member, also when the read before it has hung.
func TestDeletionLeavesTimeAfterASlowRead(t *testing.T) {
	t.Parallel()
	const ttl, limit, call = 30 * time.Second, 20 * time.Second, 5 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	req := driver.Request{Resource: "a", Owner: "o", TTL: ttl}
	if err := within(t, limit, tryOf(claimOf(t, driverOn(t, clientOf(t, e), nil), req))); err != nil {
		t.Fatal(err)
	}
	elsewhere := claimOf(t, driverOn(t, taps.client(t, e), nil), req) // which reads the key before it deletes it
	var reads, deletions atomic.Int64
	hang := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		first := req.Success[0]
		isRead := first.GetRequestRange() != nil && len(first.GetRequestRange().RangeEnd) == 0
		if isRead && reads.Add(1) <= 2 || first.GetRequestDeleteRange() != nil && reads.Load() > 0 && deletions.Add(1) == 1 {
			<-ctx.Done() // after 1 and 2 s; the deletion after half of the remaining 2 s
			return ctx.Err()
		}
		return send(ctx)
	}
	taps.txn.Store(&hang)
	if err := within(t, call, claimtest.Release(elsewhere)); err != nil || deletions.Load() != 2 {
		t.Errorf("Release within %v: %v, %d deletions; want the second one served", call, err, deletions.Load())
	}
}
