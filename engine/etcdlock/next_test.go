package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// queuedBehind returns three claims on one resource, in queue order. The second uses d, and each of the others its own
// driver. busy is the refusal of the second claim once its watch has begun. If fresh is set, nobody else knows the owners.
func queuedBehind(t *testing.T, e *servers.Etcd, d driver.Driver, ttl time.Duration, fresh bool) (claims [3]driver.Claim, busy *driver.Busy) {
	t.Helper()
	drivers := [3]driver.Driver{driverOn(t, clientOf(t, e), nil), d, driverOn(t, clientOf(t, e), nil)}
	for i, owner := range []string{"first", "second", "third"} {
		claims[i] = claimOf(t, drivers[i], driver.Request{Resource: "a", Owner: owner, TTL: ttl, Queue: true, Fresh: fresh})
		err := within(t, ttl, tryOf(claims[i]))
		if i == 0 && err != nil || i > 0 && !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try of the %s: %v", owner, err)
		}
	}
	return claims, heard(t, claims[1], ttl)
}

// heard is what c is refused with when the watch of its driver is live.
func heard(t *testing.T, c driver.Claim, ttl time.Duration) *driver.Busy {
	t.Helper()
	for {
		err := within(t, ttl, tryOf(c))
		busy, _ := errors.AsType[*driver.Busy](err)
		if busy == nil {
			t.Fatalf("Try of a waiter: %v; want busy", err)
		}
		select {
		case <-busy.Wake: // its watch has just begun
		case <-time.After(busy.Retry / 2):
			return busy
		}
	}
}

// soleHolder checks that the third holds and the second waits.
func soleHolder(t *testing.T, claims [3]driver.Claim, ttl time.Duration) {
	t.Helper()
	for end := time.Now().Add(2 * ttl); within(t, ttl, tryOf(claims[2])) != nil; time.Sleep(10 * time.Millisecond) {
		if err := within(t, ttl, tryOf(claims[1])); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try of the second, whose place is gone: %v; want busy", err)
		}
		if time.Now().After(end) {
			t.Fatal("the third is not served")
		}
	}
	if err := within(t, ttl, tryOf(claims[1])); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("Try of the second while the third holds: %v; want busy", err)
	}
}

// The watch tells a waiter that it is next. It does not hold when its own key goes with the
// one ahead, or has gone before.
func TestNextWhoseKeyIsGone(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	for _, together := range []bool{true, false} {
		claims, busy := queuedBehind(t, e, driverOn(t, clientOf(t, e), nil), ttl, true)
		keys, _ := keysOf(t, direct, "a")
		ops := []clientv3.Op{clientv3.OpDelete(keys[1])}
		if together {
			ops = append(ops, clientv3.OpDelete(keys[0]))
		}
		if _, err := direct.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
		if !together {
			if err := released(t, claims[0], ttl); err != nil {
				t.Fatal(err)
			}
		}
		<-busy.Wake
		soleHolder(t, claims, ttl)
		for _, c := range claims {
			_ = released(t, c, ttl)
		}
		queueOf(t, direct, "a", 0)
	}
}

// A lease that is granted seconds after the last keep-alive lasts for the whole TTL.
func TestNextGetsItsWholeTTL(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	claims, busy := queuedBehind(t, e, driverOn(t, clientOf(t, e), nil), ttl, true)
	_, leases := keysOf(t, direct, "a")
	session := clientv3.LeaseID(leases[1])
	left := func() time.Duration {
		resp, err := direct.TimeToLive(t.Context(), session)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(resp.TTL) * time.Second // less a fraction
	}
	for left() > ttl-2*time.Second { // no longer: claims[0] must hold until then
		time.Sleep(100 * time.Millisecond)
	}
	if err := released(t, claims[0], ttl); err != nil {
		t.Fatal(err)
	}
	<-busy.Wake
	start := time.Now()
	if err := within(t, ttl, tryOf(claims[1])); err != nil {
		t.Fatalf("Try of the next: %v", err)
	}
	if l, took := left(), time.Since(start); l < ttl-took-time.Second {
		t.Errorf("the session ends in %v, %v after a Try for %v was granted", l, took, ttl)
	}
	for _, c := range claims[1:] {
		_ = released(t, c, ttl)
	}
}

// A key that was deleted before its put was answered is not taken for one that is there: the
// watch has told it meanwhile.
func TestKeyDeletedBeforeItsPutIsAnswered(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	d := driverOn(t, taps.client(t, e), nil)
	claims, busy := queuedBehind(t, e, d, ttl, true) // whose watch hears from now on
	var once sync.Once
	hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		err := send(ctx)
		if err != nil || !strings.Contains(req.String(), "/deleted/") {
			return err
		}
		once.Do(func() {
			keys, _ := keysOf(t, direct, "deleted")
			if len(keys) != 1 {
				t.Errorf("%d keys after the put", len(keys))
				return
			}
			if _, err := direct.Delete(t.Context(), keys[0]); err != nil {
				t.Error(err)
			}
			if err := released(t, claims[0], ttl); err != nil {
				t.Error(err)
			}
			<-busy.Wake // so the watch has told of the deletion too
		})
		return err
	}
	taps.txn.Store(&hold)
	c := claimOf(t, d, driver.Request{Resource: "deleted", Owner: "o", TTL: ttl})
	if err := within(t, ttl, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	if keys, _ := keysOf(t, direct, "deleted"); len(keys) != 1 {
		t.Errorf("it holds by %d keys", len(keys))
	}
}
