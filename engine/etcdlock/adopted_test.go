package etcdlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A lease that another claim of its owner has resumed and released is renewed no more, although
// the driver has the resource again and nothing is heard of the watch, which does not run.
func TestRenewAllOfWhatAnotherClaimReleased(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second
	d := driverOn(t, clientOf(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	claim := func(owner string) driver.Claim {
		return claimOf(t, d, driver.Request{Resource: "a", Owner: owner, TTL: ttl})
	}
	first, again, next := claim("owner"), claim("owner"), claim("next")
	if err := within(t, ttl, tryOf(first)); err != nil {
		t.Fatal(err)
	}
	if err := within(t, ttl, func(ctx context.Context) error { _, err := again.Renew(ctx, ttl); return err }); err != nil {
		t.Fatalf("Renew by another claim of the owner: %v", err)
	}
	if err := within(t, ttl, claimtest.Release(again)); err != nil {
		t.Fatal(err)
	}
	if err := within(t, ttl, tryOf(next)); err != nil {
		t.Fatal(err)
	}
	renewals := []driver.Renewal{{Claim: first, TTL: ttl}, {Claim: next, TTL: ttl}}
	_ = within(t, ttl, func(ctx context.Context) error { d.RenewAll(ctx, renewals); return nil })
	if err := renewals[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("RenewAll of what another claim has released: %v; want ErrLost", err)
	}
	if err := renewals[1].Err; err != nil {
		t.Errorf("RenewAll of the present holder: %v", err)
	}
}

// A claim that resumes a lease and releases it ends it for the one it was granted to, which learns at once.
func TestReleaseOfAResumedLeaseIsTold(t *testing.T) {
	t.Parallel()
	const ttl, atOnce = time.Minute, 10 * time.Second // long before the first renewal
	d := driverOn(t, clientOf(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	l, other := lockerOn(t, d, leasehold.Options{TTL: ttl}), lockerOn(t, d, leasehold.Options{TTL: ttl})
	first, err := l.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	heard, err := l.Acquire(t.Context(), "heard")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Evict(t.Context(), "heard", heard.Owner(), "test"); err != nil {
		t.Fatal(err)
	}
	ends(t, heard, atOnce) // from now on the watch hears
	again, err := l.Resume(t.Context(), "a", first.Owner())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	second, err := other.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ends(t, first, atOnce)
	if err := second.Extend(t.Context(), ttl); err != nil {
		t.Errorf("Extend by the present holder: %v", err)
	}
}

// A lease that is renewed does not end when another claim of its owner, which has resumed
// it too, is renewed no more; but when nobody renews it.
func TestLeaseOutlivesTheOtherClaimOfItsOwner(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second // which is renewed on a busy machine
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, clientOf(t, e), nil)
	claim := func(name, owner string) driver.Claim {
		return claimOf(t, d, driver.Request{Resource: name, Owner: owner, TTL: ttl})
	}
	renew := func(c driver.Claim) {
		t.Helper()
		if err := within(t, ttl, func(ctx context.Context) error { _, err := c.Renew(ctx, ttl); return err }); err != nil {
			t.Fatalf("Renew: %v", err)
		}
	}
	keeper, first := claim("keeper", "k"), claim("a", "owner") // the session outlives the first
	for _, c := range []driver.Claim{keeper, first} {
		if err := within(t, ttl, tryOf(c)); err != nil {
			t.Fatal(err)
		}
	}
	renew(claim("a", "owner"))
	for end := time.Now().Add(ttl * 3 / 2); time.Now().Before(end); time.Sleep(ttl / 8) {
		renew(keeper)
		renew(first)
	}
	direct := clientOf(t, e)
	for end := time.Now().Add(3 * ttl); ; time.Sleep(ttl / 8) {
		renew(keeper)
		if keys, _ := keysOf(t, direct, "a"); len(keys) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody renews it, and it has not ended")
		}
	}
}

// Nor does a claim with a shorter TTL, which has resumed it and is gone, shorten it.
func TestLeaseOutlivesAShorterClaimOfItsOwner(t *testing.T) {
	t.Parallel()
	const ttl, shorter = time.Minute, 4 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d, direct := driverOn(t, clientOf(t, e), nil), clientOf(t, e)
	first := claimOf(t, d, driver.Request{Resource: "a", Owner: "owner", TTL: ttl})
	if err := within(t, ttl, tryOf(first)); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]func(context.Context, driver.Claim) error{
		"Renew": func(ctx context.Context, c driver.Claim) error { _, err := c.Renew(ctx, shorter); return err },
		"Try":   func(ctx context.Context, c driver.Claim) error { _, err := c.Try(ctx); return err },
	} {
		again := claimOf(t, d, driver.Request{Resource: "a", Owner: "owner", TTL: shorter})
		if err := within(t, ttl, func(ctx context.Context) error { return call(ctx, again) }); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		again.(driver.Forgetter).Forget()
		_, leases := keysOf(t, direct, "a")
		if len(leases) != 1 {
			t.Fatalf("after %s: %d keys; want one", what, len(leases))
		}
		lives, err := direct.TimeToLive(t.Context(), clientv3.LeaseID(leases[0]))
		if err != nil {
			t.Fatal(err)
		}
		if lives.GrantedTTL < int64(ttl/time.Second) {
			t.Errorf("after %s with %v, the key is in a session of %d s; want %v", what, shorter, lives.GrantedTTL, ttl)
		}
	}
}

// A waiter whose key another claim of its owner has adopted and released has lost its place,
// and does not hold when it would have been next.
func TestNextWhoseKeyAnotherClaimReleased(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, clientOf(t, e), nil)
	claims, busy := queuedBehind(t, e, d, ttl, false)
	again := claimOf(t, d, driver.Request{Resource: "a", Owner: "second", TTL: ttl, Queue: true})
	if err := within(t, ttl, tryOf(again)); !errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try by another claim of the second: %v; want busy", err)
	}
	if err := within(t, ttl, claimtest.Release(again)); err != nil {
		t.Fatal(err)
	}
	if err := within(t, ttl, claimtest.Release(claims[0])); err != nil {
		t.Fatal(err)
	}
	<-busy.Wake
	soleHolder(t, claims, ttl)
}

// A key that waits in one session, and was adopted by a claim for another, is deleted when
// neither claim tries again, although the session that it is in lives on.
func TestAdoptedKeyIsDeletedWhereItIs(t *testing.T) {
	t.Parallel()
	const ttl, short, longer = time.Minute, 2 * time.Second, 4 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	d := driverOn(t, clientOf(t, e), nil)
	first := claimOf(t, driverOn(t, clientOf(t, e), nil), driver.Request{Resource: "a", Owner: "first", TTL: ttl})
	keeper := claimOf(t, d, driver.Request{Resource: "keeper", Owner: "k", TTL: short})
	for _, c := range []driver.Claim{first, keeper} {
		if err := within(t, ttl, tryOf(c)); err != nil { // the first calls to a server that has just begun
			t.Fatal(err)
		}
	}
	for _, wait := range []time.Duration{short, longer} {
		c := claimOf(t, d, driver.Request{Resource: "a", Owner: "waiter", TTL: wait, Queue: true})
		if err := within(t, short, tryOf(c)); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try: %v; want busy", err)
		}
	}
	for end := time.Now().Add(2 * longer); ; time.Sleep(short / 8) {
		if err := within(t, short, func(ctx context.Context) error { _, err := keeper.Renew(ctx, short); return err }); err != nil {
			t.Fatalf("Renew: %v", err)
		}
		if keys, _ := keysOf(t, direct, "a"); len(keys) == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("nobody waits with it, and it is still there")
		}
	}
}

// A key that another process has used again, for another owner, is not deleted by a driver that had
// adopted it for the former one, and has that key too.
func TestKeyThatIsUsedAgainIsNotSwept(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second // which is renewed on a busy machine
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	names, adopts, front := driverOn(t, clientOf(t, e), nil), driverOn(t, taps.client(t, e), nil), driverOn(t, clientOf(t, e), nil)
	claim := func(d driver.Driver, owner string) driver.Claim {
		return claimOf(t, d, driver.Request{Resource: "a", Owner: owner, TTL: ttl, Queue: true})
	}
	waits := func(c driver.Claim) {
		t.Helper()
		if err := within(t, ttl, tryOf(c)); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try: %v; want busy", err)
		}
	}
	first, former, next := claim(front, "first"), claim(names, "former"), claim(adopts, "next")
	if err := within(t, ttl, tryOf(first)); err != nil {
		t.Fatal(err)
	}
	waits(former)
	puts := 0 // its key first, and then the move of the one that it adopts
	taps.loseAnswers("a", func(context.Context) error {
		if puts++; puts == 1 {
			return nil
		}
		return status.Error(codes.Unavailable, "the answer is lost")
	})
	if err := within(t, ttl, tryOf(claim(adopts, "former"))); err == nil || errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try without an answer to its move: %v", err)
	}
	taps.txn.Store(nil)
	begun := time.Now()
	if err := released(t, former, ttl); err != nil {
		t.Fatal(err)
	}
	waits(claim(names, "next")) // with the key of the former one
	waits(next)                 // adopts it
	if err := released(t, first, ttl); err != nil {
		t.Fatal(err)
	}
	if err := within(t, ttl, tryOf(next)); err != nil {
		t.Fatal(err)
	}
	for ; time.Since(begun) < ttl*3/2; time.Sleep(ttl / 8) {
		if err := within(t, ttl, func(ctx context.Context) error { _, err := next.Renew(ctx, ttl); return err }); err != nil {
			t.Fatalf("Renew %v after the former one gave up: %v", time.Since(begun), err)
		}
	}
}

// A lease that another process has renewed beyond what the first knows of is renewed and released by the first.
func TestRenewedElsewhereIsNotLostHere(t *testing.T) {
	t.Parallel()
	const ttl, longer, soon = 2 * time.Second, 30 * time.Second, 10 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	here, there := driverOn(t, clientOf(t, e), nil), driverOn(t, clientOf(t, e), nil)
	renew := func(c driver.Claim) error {
		return within(t, soon, func(ctx context.Context) error { _, err := c.Renew(ctx, longer); return err })
	}
	for name, call := range map[string]func(c driver.Claim) error{
		"released": func(c driver.Claim) error { return within(t, soon, claimtest.Release(c)) },
		"renewed":  renew,
	} {
		req := driver.Request{Resource: name, Owner: name, TTL: ttl}
		first, second := claimOf(t, here, req), claimOf(t, there, req)
		if err := within(t, soon, tryOf(first)); err != nil {
			t.Fatal(err)
		}
		if err := renew(second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * ttl)
		if err := call(first); err != nil {
			t.Errorf("%s by the first: %v", name, err)
		}
		if err := renew(second); (err == nil) != (name == "renewed") {
			t.Errorf("%s by the first, and renewed by the second: %v", name, err)
		}
	}
}

// Claims that are forgotten are kept no more, nor told of the end.
func TestForgottenClaimsAreNotTold(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	d := driverOn(t, clientOf(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	told := make(chan error, 10)
	var last driver.Claim
	for i := range cap(told) {
		c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl, Lost: func(err error) { told <- err }})
		err := within(t, ttl, func(ctx context.Context) (err error) {
			if i == 0 {
				_, err = c.Try(ctx)
			} else {
				_, err = c.Renew(ctx, ttl)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if last != nil {
			last.(driver.Forgetter).Forget()
		}
		last = c
	}
	if err := within(t, ttl, claimtest.Release(last)); err != nil {
		t.Fatal(err)
	}
	d.Close() // waits for what tells
	if len(told) > 0 {
		t.Errorf("%d forgotten claims are told of a release", len(told))
	}
}

// Two claims of one owner share a key. One is granted while an older read of the other, which finds a holder, has no answer
// yet. That answer ends no lease.
func TestOldReadBesideAnotherClaimsGrant(t *testing.T) {
	t.Parallel()
	const ttl, limit = 20 * time.Second, 10 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	for name, queues := range map[string]bool{"no key yet": false, "a key that waits": true} {
		var taps tap
		holder := claimOf(t, driverOn(t, clientOf(t, e), nil), driver.Request{Resource: name, Owner: "holder", TTL: ttl})
		if err := within(t, limit, tryOf(holder)); err != nil {
			t.Fatal(err)
		}
		d, lost := driverOn(t, taps.client(t, e), nil), make(chan error, 1)
		first := claimOf(t, d, driver.Request{Resource: name, Owner: "o", TTL: ttl, Queue: queues})
		again := claimOf(t, d, driver.Request{Resource: name, Owner: "o", TTL: ttl, Queue: queues, Lost: func(cause error) { lost <- cause }})
		if queues {
			busy, ok := errors.AsType[*driver.Busy](within(t, limit, tryOf(first)))
			if !ok {
				t.Fatal("the first is not refused")
			}
			<-busy.Wake // by the watch, which has begun: the next Try reads
		}
		read, granted := make(chan struct{}), make(chan struct{})
		var begun atomic.Bool
		hold := func(_ *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
			isFirst := begun.CompareAndSwap(false, true)
			err := send(ctx)
			if isFirst {
				close(read)
				<-granted
			}
			return err
		}
		taps.txn.Store(&hold)
		tried := make(chan error, 1)
		go func() { tried <- within(t, limit, tryOf(first)) }()
		<-read
		if err := errors.Join(within(t, limit, claimtest.Release(holder)), within(t, limit, tryOf(again))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		close(granted)
		if err := <-tried; err != nil {
			t.Errorf("%s: Try of the first: %v; want the grant of the other", name, err)
		}
		if err := within(t, limit, func(ctx context.Context) error { _, err := again.Renew(ctx, ttl); return err }); err != nil {
			t.Errorf("%s: Renew by the other: %v", name, err)
		}
		select {
		case cause := <-lost:
			t.Errorf("%s: the other is told %v", name, cause)
		default:
		}
	}
}
