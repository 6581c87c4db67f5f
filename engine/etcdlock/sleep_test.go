package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// etcd counts a session on while this machine sleeps: a keep-alive of the moment before does not serve for a renewal,
// or another grant, after that.
func TestSessionIsKeptAliveAfterASleep(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	var taps tap
	var clock boottime.Clock
	d := driverOn(t, taps.client(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	etcdlock.SleepBy(d, &clock)
	c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl})
	if err := within(t, ttl, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		how   string
		renew func(ctx context.Context) error
	}{
		{"Renew", func(ctx context.Context) error { _, err := c.Renew(ctx, ttl); return err }},
		{"RenewAll", func(ctx context.Context) error {
			all := []driver.Renewal{{Claim: c, TTL: ttl}}
			d.RenewAll(ctx, all)
			return all[0].Err
		}},
		{"Try", tryOf(c)},
	} {
		before := taps.kept.Load()
		clock.Sleep(ttl / 2)
		if err := within(t, ttl, r.renew); err != nil {
			t.Errorf("%s after a sleep: %v", r.how, err)
		}
		if taps.kept.Load() == before {
			t.Errorf("%s after a sleep of half a TTL did not keep the session alive", r.how)
		}
	}
}

// A claim after a sleep joins no session that may have ended in it.
func TestClaimAfterASleepHasASessionOfItsOwn(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	var taps tap
	var clock boottime.Clock
	client := taps.client(t, servers.StartEtcd(t, servers.EtcdCurrent))
	d := driverOn(t, client, nil)
	etcdlock.SleepBy(d, &clock)
	leases := make(map[int64]bool)
	for _, name := range []string{"before", "after"} {
		if err := within(t, ttl, tryOf(claimOf(t, d, driver.Request{Resource: name, Owner: "o", TTL: ttl}))); err != nil {
			t.Fatal(err)
		}
		for _, lease := range queueOf(t, client, name, 1) {
			leases[lease] = true
		}
		clock.Sleep(ttl * 3 / 2)
	}
	if len(leases) != 2 {
		t.Errorf("the claims of before and after the sleep are in %d leases of etcd", len(leases))
	}
}
