package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

const barFor, barredTTL = time.Minute, 20 * time.Second

// onEach runs test on the oldest server and on the newest, with the driver of the claims and that of another process.
func onEach(t *testing.T, test func(t *testing.T, direct *clientv3.Client, d, other *etcdlock.Driver)) {
	t.Parallel()
	for _, version := range []string{servers.EtcdDebian, servers.EtcdCurrent} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			e := servers.StartEtcd(t, version)
			test(t, clientOf(t, e), driverOn(t, clientOf(t, e), nil), driverOn(t, clientOf(t, e), nil))
		})
	}
}

// A process that stands still after its key was put cannot give that up: who bars the owner does.
func TestBarredOwnerKeepsNoKey(t *testing.T) {
	onEach(t, func(t *testing.T, direct *clientv3.Client, d, other *etcdlock.Driver) {
		for name, how := range map[string]driver.End{
			"release": {Bar: barFor},
			"linger":  {Bar: barFor, Linger: 2 * time.Second},
		} {
			c := claimOf(t, d, driver.Request{Resource: name, Owner: "o", TTL: barredTTL})
			if err := within(t, barredTTL, tryOf(c)); err != nil {
				t.Fatal(err)
			}
			late, err := direct.Grant(t.Context(), 60)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := direct.Put(t.Context(), "leasehold/"+name+"/late", `{"owner":"o"}`, clientv3.WithLease(late.ID)); err != nil {
				t.Fatal(err)
			}
			if err := within(t, barredTTL, func(ctx context.Context) error { return c.Release(ctx, how) }); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			next := claimOf(t, other, driver.Request{Resource: name, Owner: "next", TTL: barredTTL})
			for end := time.Now().Add(barredTTL); ; time.Sleep(50 * time.Millisecond) {
				if err := within(t, barredTTL, tryOf(next)); err == nil {
					break
				} else if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
					t.Fatalf("Try of another owner after a %s: %v", name, err)
				}
			}
		}
	})
}

// What waits, and lingers, is given up: it would be granted later.
func TestBarredWaiterThatLingersLeavesNoPlace(t *testing.T) {
	onEach(t, func(t *testing.T, direct *clientv3.Client, d, other *etcdlock.Driver) {
		holder := claimOf(t, other, driver.Request{Resource: "a", Owner: "h", TTL: barredTTL})
		waiter := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: barredTTL, Queue: true})
		if err := within(t, barredTTL, tryOf(holder)); err != nil {
			t.Fatal(err)
		}
		if err := within(t, barredTTL, tryOf(waiter)); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try of what is held: %v; want busy", err)
		}
		err := within(t, barredTTL, func(ctx context.Context) error {
			return waiter.Release(ctx, driver.End{Bar: barFor, Linger: time.Second})
		})
		if !errors.Is(err, driver.ErrLost) {
			t.Errorf("Linger of what waits: %v; want ErrLost", err)
		}
		if keys, _ := keysOf(t, direct, "a"); len(keys) != 1 {
			t.Errorf("keys: %v; want the holder's", keys)
		}
		again := claimOf(t, other, driver.Request{Resource: "a", Owner: "o", TTL: barredTTL, Queue: true})
		if err := within(t, barredTTL, tryOf(again)); !errors.Is(err, driver.ErrBarred) {
			t.Errorf("Try that queues, of an owner that was given up: %v; want ErrBarred", err)
		}
		if keys, _ := keysOf(t, direct, "a"); len(keys) != 1 {
			t.Errorf("keys: %v; want the holder's", keys)
		}
	})
}

// A put that was held back until its owner was given up elsewhere leaves nothing.
func TestPutThatComesAfterItsOwnerWasBarred(t *testing.T) {
	t.Parallel()
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d, other := driverOn(t, taps.client(t, e), nil), driverOn(t, clientOf(t, e), nil)
	warm := claimOf(t, d, driver.Request{Resource: "warm", Owner: "w", TTL: barredTTL}) // which keeps the session
	if err := within(t, barredTTL, tryOf(warm)); err != nil {
		t.Fatal(err)
	}
	for _, queue := range []bool{false, true} {
		name := map[bool]string{false: "free", true: "queued"}[queue]
		sent, deliver := make(chan struct{}), make(chan struct{})
		var held atomic.Bool
		hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
			if reads := req.Success[0].GetRequestRange() != nil; !reads && held.CompareAndSwap(false, true) { // the watch, which begins now, reads
				close(sent)
				<-deliver
			}
			return send(context.WithoutCancel(ctx))
		}
		taps.txn.Store(&hold)
		c := claimOf(t, d, driver.Request{Resource: name, Owner: "o", TTL: barredTTL, Queue: queue})
		tried := make(chan error, 1)
		go func() { tried <- within(t, barredTTL, tryOf(c)) }()
		<-sent
		elsewhere := claimOf(t, other, driver.Request{Resource: name, Owner: "o", TTL: barredTTL})
		if err := within(t, barredTTL, func(ctx context.Context) error { return elsewhere.Release(ctx, driver.End{Bar: barFor}) }); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of what was not there yet: %v; want ErrLost", err)
		}
		close(deliver)
		if err := <-tried; !errors.Is(err, driver.ErrBarred) {
			t.Errorf("Try whose put comes late: %v; want ErrBarred", err)
		}
		taps.txn.Store(nil)
		if keys, _ := keysOf(t, clientOf(t, e), name); len(keys) > 0 {
			t.Errorf("keys: %v; want none", keys)
		}
	}
}

// A release that bars the owner leaves it no key, although another claim's release has begun and does not come through.
func TestBarredBesideAnotherClaimsRelease(t *testing.T) {
	t.Parallel()
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d, other := driverOn(t, taps.client(t, e), nil), driverOn(t, clientOf(t, e), nil)
	req := driver.Request{Resource: "a", Owner: "o", TTL: barredTTL}
	first, again := claimOf(t, d, req), claimOf(t, d, req)
	if err := within(t, barredTTL, tryOf(first)); err != nil {
		t.Fatal(err)
	}
	begun, pass := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if req.Success[0].GetRequestDeleteRange() != nil && !held.Swap(true) {
			close(begun)
			<-pass
		}
		return send(ctx)
	}
	taps.txn.Store(&hold)
	one := make(chan error, 1)
	go func() { one <- within(t, barredTTL, claimtest.Release(first)) }()
	select {
	case <-begun:
	case err := <-one:
		t.Fatalf("Release: %v, without a deletion", err)
	}
	if err := within(t, barredTTL, func(ctx context.Context) error { return again.Release(ctx, driver.End{Bar: barFor}) }); err != nil {
		t.Errorf("Release that bars the owner: %v", err)
	}
	next := claimOf(t, other, driver.Request{Resource: "a", Owner: "next", TTL: barredTTL})
	if err := within(t, barredTTL, tryOf(next)); err != nil {
		t.Errorf("Try of another owner: %v", err)
	}
	close(pass)
	if err := <-one; err == nil {
		t.Error("Release of the first claim: nil; what it was to end is gone")
	}
}

// A key that lingers is nobody's: a process that had resumed the lease can do nothing with it, and learns why.
func TestWhatLingersIsNotRenewed(t *testing.T) {
	onEach(t, func(t *testing.T, _ *clientv3.Client, d, other *etcdlock.Driver) {
		renew := func(c driver.Claim, ctx context.Context) error { _, err := c.Renew(ctx, barredTTL); return err }
		linger := func(c driver.Claim, ctx context.Context) error {
			return c.Release(ctx, driver.End{Linger: barredTTL})
		}
		for name, call := range map[string]func(driver.Claim, context.Context) error{
			"Renew":   renew,
			"Note":    func(c driver.Claim, ctx context.Context) error { return c.Note(ctx, "again") },
			"Release": func(c driver.Claim, ctx context.Context) error { return c.Release(ctx, driver.End{}) },
			"Linger":  linger,
		} {
			req := driver.Request{Resource: name, Owner: "o", TTL: barredTTL}
			c, resumed := claimOf(t, d, req), claimOf(t, other, req)
			if err := within(t, barredTTL, tryOf(c)); err != nil {
				t.Fatal(err)
			}
			if err := within(t, barredTTL, func(ctx context.Context) error { return renew(resumed, ctx) }); err != nil {
				t.Fatalf("Renew of what another process has: %v", err)
			}
			if err := within(t, barredTTL, func(ctx context.Context) error { return linger(c, ctx) }); err != nil {
				t.Fatalf("Linger: %v", err)
			}
			err := within(t, barredTTL, func(ctx context.Context) error { return call(resumed, ctx) })
			if !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "another process") {
				t.Errorf("%s of what lingers: %v; want ErrLost, because another process has released it", name, err)
			}
			if err := within(t, barredTTL, tryOf(resumed)); !errors.Is(err, driver.ErrBusy) {
				t.Errorf("Try while it lingers: %v; want busy", err)
			}
		}
	})
}
