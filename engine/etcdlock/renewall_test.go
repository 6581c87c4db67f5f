package etcdlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A lease whose renewal takes more than to keep its session alive, and does not come to an
// end, keeps no other from being renewed.
func TestRenewAllBesideOneThatHangs(t *testing.T) {
	t.Parallel()
	const ttl, longer = 60 * time.Second, 90 * time.Second // a busy machine has that for the three grants
	var taps tap
	d := driverOn(t, taps.client(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	var renewals []driver.Renewal
	for _, r := range []struct {
		name string
		ttl  time.Duration
	}{{"hangs", longer}, {"moves", longer}, {"stays", ttl}} {
		c := claimOf(t, d, driver.Request{Resource: r.name, Owner: "o", TTL: ttl})
		if err := within(t, ttl, tryOf(c)); err != nil {
			t.Fatal(err)
		}
		renewals = append(renewals, driver.Renewal{Claim: c, TTL: r.ttl})
	}
	hang := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if strings.Contains(req.String(), "/hangs/") {
			<-ctx.Done()
			return ctx.Err()
		}
		return send(ctx)
	}
	taps.txn.Store(&hang)
	renewAll(t, d, renewals, ttl/2)
	for i, fails := range []bool{true, false, false} {
		if err := renewals[i].Err; (err != nil) != fails {
			t.Errorf("renewal %d: %v; want an error: %v", i, err, fails)
		}
	}
}

// A server that takes fewer operations at once is asked for one lease after the other: to
// renew them, and to delete what nobody renewed.
func TestFewOperationsAtOnce(t *testing.T) {
	t.Parallel()
	const ttl, n = 12 * time.Second, 70
	e := servers.StartEtcd(t, servers.EtcdCurrent, "--max-txn-ops=64")
	direct := clientOf(t, e)
	d := driverOn(t, clientOf(t, e), nil)
	renewals := make([]driver.Renewal, n)
	var all sync.WaitGroup // all at once: one after the other takes longer than the TTL on a busy machine
	for i := range renewals {
		c := claimOf(t, d, driver.Request{Resource: fmt.Sprint(i), Owner: "o", TTL: ttl})
		renewals[i] = driver.Renewal{Claim: c, TTL: ttl}
		all.Go(func() {
			if err := within(t, ttl, tryOf(c)); err != nil {
				t.Errorf("Try: %v", err)
			}
		})
	}
	all.Wait()
	renewAll(t, d, renewals, ttl)
	for i, r := range renewals {
		if r.Err != nil {
			t.Fatalf("renewal %d of %d: %v", i, n, r.Err)
		}
	}
	for end := time.Now().Add(2 * ttl); ; time.Sleep(ttl / 8) { // the first keeps their session
		renewAll(t, d, renewals[:1], ttl)
		if err := renewals[0].Err; err != nil {
			t.Fatal(err)
		}
		if keys, _ := keysOf(t, direct, fmt.Sprint(n-1)); len(keys) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("nobody renews it, and it has not ended")
		}
	}
}

func renewAll(t *testing.T, d driver.BatchRenewer, renewals []driver.Renewal, limit time.Duration) {
	t.Helper()
	_ = within(t, limit, func(ctx context.Context) error { d.RenewAll(ctx, renewals); return nil })
}
