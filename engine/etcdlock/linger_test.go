package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

const lingerTTL, lingerWithin = 20 * time.Second, 6 * time.Second

// A member that does not answer one call, when others would, does not keep a lease from
// lingering.
func TestLingerBesideAMemberThatHangs(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	var armed atomic.Bool
	hang := func(ctx context.Context) error {
		if armed.CompareAndSwap(true, false) {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	grant := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if strings.HasSuffix(method, "/LeaseGrant") && hang(ctx) != nil {
			return ctx.Err()
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	slow, err := clientv3.New(clientv3.Config{Endpoints: servers.Endpoints(e), Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(grant)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slow.Close() })
	tapped := taps.client(t, e)
	for name, client := range map[string]*clientv3.Client{"grant": slow, "put": tapped} {
		c := claimOf(t, driverOn(t, client, nil), driver.Request{Resource: name, Owner: "first", TTL: lingerTTL})
		if err := within(t, lingerWithin, tryOf(c)); err != nil {
			t.Fatal(err)
		}
		taps.loseAnswers("put", hang)
		armed.Store(true)
		if err := lingers(t, c); err != nil || armed.Load() {
			t.Errorf("Linger when the %s hangs: %v", name, err)
		}
		next := claimOf(t, driverOn(t, clientOf(t, e), nil), driver.Request{Resource: name, Owner: "next", TTL: lingerTTL})
		if err := within(t, lingerWithin, tryOf(next)); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("Try while the lease lingers: %v; want busy", err)
		}
	}
}

// A lease that is gone after it may have lingered was not lost before, for all that is known.
func TestLingerThatMayHaveEnded(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	var taps tap
	c := claimOf(t, driverOn(t, taps.client(t, e), nil), driver.Request{Resource: "a", Owner: "o", TTL: lingerTTL})
	if err := within(t, lingerWithin, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	keys, _ := keysOf(t, direct, "a")
	taps.loseAnswers("a", func(ctx context.Context) error {
		if _, err := direct.Delete(ctx, keys[0]); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if err := lingers(t, c); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Linger: %v; want an unknown outcome", err)
	}
}

// Two claims of one owner share a lease. While one is released and leaves it lingering, the other,
// which has been notified, is released too. The lease must still linger.
func TestLingerBesideAnotherClaimsRelease(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	for _, name := range []string{"before", "after"} { // its release is served before the key lingers, or after
		var taps tap
		d := driverOn(t, taps.client(t, e), nil)
		first := claimOf(t, d, driver.Request{Resource: name, Owner: "o", TTL: lingerTTL})
		again := claimOf(t, d, driver.Request{Resource: name, Owner: "o", TTL: lingerTTL})
		renew := func(ctx context.Context) error { _, err := again.Renew(ctx, lingerTTL); return err }
		if err := errors.Join(within(t, lingerWithin, tryOf(first)), within(t, lingerWithin, renew)); err != nil {
			t.Fatal(err)
		}
		release := sync.OnceFunc(func() {
			if err := within(t, lingerWithin, claimtest.Release(again)); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: Release of the other claim: %v; want ErrLost", name, err)
			}
		})
		hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
			if req.Success[0].GetRequestPut() == nil {
				return send(ctx)
			}
			if name == "before" {
				release()
			}
			err := send(ctx)
			release()
			return err
		}
		taps.txn.Store(&hold)
		if err := lingers(t, first); err != nil {
			t.Errorf("%s: Linger: %v", name, err)
		}
		next := claimOf(t, driverOn(t, clientOf(t, e), nil), driver.Request{Resource: name, Owner: "next", TTL: lingerTTL})
		if err := within(t, lingerWithin, tryOf(next)); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("%s: Try while the lease lingers: %v; want busy", name, err)
		}
	}
}

// A lingering is a server, and a driver whose link to it is tapped.
type lingering struct {
	server *servers.Etcd
	taps   tap
	driver *etcdlock.Driver
}

func newLingering(t *testing.T) *lingering {
	l := &lingering{server: servers.StartEtcd(t, servers.EtcdCurrent)}
	l.driver = driverOn(t, l.taps.client(t, l.server), nil)
	return l
}

// claim returns a claim of the owner o.
func (l *lingering) claim(t *testing.T) driver.Claim {
	return claimOf(t, l.driver, driver.Request{Resource: "a", Owner: "o", TTL: lingerTTL})
}

// lingersWithoutAnswer releases c, whose lease lingers then, and loses the answer.
func (l *lingering) lingersWithoutAnswer(t *testing.T, c driver.Claim) {
	t.Helper()
	l.taps.loseAnswers("a", func(context.Context) error { return status.Error(codes.Internal, "the answer is lost") })
	if err := lingers(t, c); err == nil || errors.Is(err, driver.ErrLost) {
		t.Fatalf("Linger without an answer: %v; want an unknown outcome", err)
	}
	l.taps.txn.Store(nil)
}

// isBusy fails t unless the resource is busy for another process.
func (l *lingering) isBusy(t *testing.T) {
	t.Helper()
	next := claimOf(t, driverOn(t, clientOf(t, l.server), nil), driver.Request{Resource: "a", Owner: "next", TTL: lingerTTL})
	if err := within(t, lingerWithin, tryOf(next)); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("Try while the lease lingers: %v; want busy", err)
	}
}

// The answer to a linger is lost, and another claim of the owner is released before the linger is repeated. The lease
// still lingers, and the repetition succeeds.
func TestLingerWithoutAnswerBesideAnotherClaimsRelease(t *testing.T) {
	t.Parallel()
	l := newLingering(t)
	first := l.claim(t)
	again := l.claim(t)
	renew := func(ctx context.Context) error { _, err := again.Renew(ctx, lingerTTL); return err }
	if err := errors.Join(within(t, lingerWithin, tryOf(first)), within(t, lingerWithin, renew)); err != nil {
		t.Fatal(err)
	}
	l.lingersWithoutAnswer(t, first)
	if err := within(t, lingerWithin, claimtest.Release(again)); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of the other claim: %v; want ErrLost", err)
	}
	l.isBusy(t)
	if err := lingers(t, first); err != nil {
		t.Errorf("Linger again: %v", err)
	}
}

// lingersForgotten calls Release with Linger, drops the answer, and then calls Forget.
func (l *lingering) lingersForgotten(t *testing.T) {
	t.Helper()
	first := l.claim(t)
	if err := within(t, lingerWithin, tryOf(first)); err != nil {
		t.Fatal(err)
	}
	l.lingersWithoutAnswer(t, first)
	first.(driver.Forgetter).Forget()
}

// The answer to a linger is lost, and its claim is forgotten. The owner's next claim can repeat the linger.
func TestLingerWithoutAnswerIsRepeatedByTheNextClaim(t *testing.T) {
	t.Parallel()
	l := newLingering(t)
	l.lingersForgotten(t)
	if err := lingers(t, l.claim(t)); err != nil {
		t.Errorf("Linger by the next claim: %v", err)
	}
	l.isBusy(t)
}

// The answer to a linger is lost, and a renewal by another claim of the owner, which was sent before, finds that the lease
// lingers. The repeated linger still succeeds.
func TestLingerWithoutAnswerBesideAnotherClaimsRenewal(t *testing.T) {
	t.Parallel()
	l := newLingering(t)
	first := l.claim(t)
	again := l.claim(t)
	renew := func(ctx context.Context) error { _, err := again.Renew(ctx, lingerTTL); return err }
	if err := errors.Join(within(t, lingerWithin, tryOf(first)), within(t, lingerWithin, renew)); err != nil {
		t.Fatal(err)
	}
	asked, lingering := make(chan struct{}), make(chan struct{})
	var begun atomic.Bool
	hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if begun.CompareAndSwap(false, true) { // the renewal
			close(asked)
			<-lingering
		}
		err := send(ctx)
		if err == nil && req.Success[0].GetRequestPut() != nil {
			err = status.Error(codes.Internal, "the answer is lost")
		}
		return err
	}
	l.taps.txn.Store(&hold)
	renewed := make(chan error, 1)
	go func() { renewed <- within(t, lingerWithin, renew) }()
	<-asked
	if err := lingers(t, first); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Linger without an answer: %v; want an unknown outcome", err)
	}
	close(lingering)
	if err := <-renewed; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew by the other claim: %v; want ErrLost", err)
	}
	l.taps.txn.Store(nil)
	if err := lingers(t, first); err != nil {
		t.Errorf("Linger again: %v", err)
	}
}

// A put that comes late, when its lease lingered and has ended, stays out.
func TestLatePutAfterLinger(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	d, direct := driverOn(t, taps.client(t, e), nil), clientOf(t, e)
	keeper := claimOf(t, d, driver.Request{Resource: "keeper", Owner: "k", TTL: 10 * time.Second}) // of the session
	c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: 10 * time.Second, Queue: true})
	if err := within(t, lingerWithin, tryOf(keeper)); err != nil {
		t.Fatal(err)
	}
	pass, deliver := taps.holdPuts(t, "a")
	if err := within(t, 200*time.Millisecond, tryOf(c)); err == nil || errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try while its put is held: %v; want an unknown outcome", err)
	}
	pass()
	if err := within(t, lingerWithin, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	release := func(ctx context.Context) error { return c.Release(ctx, driver.End{Linger: 2 * time.Second}) }
	if err := within(t, lingerWithin, release); err != nil {
		t.Fatalf("Linger: %v", err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		renew := func(ctx context.Context) error { _, err := keeper.Renew(ctx, 10*time.Second); return err }
		if err := within(t, lingerWithin, renew); err != nil {
			t.Fatal(err)
		}
		if keys, _ := keysOf(t, direct, "a"); len(keys) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the key lingers still")
		}
	}
	deliver()
	if keys, _ := keysOf(t, direct, "a"); len(keys) > 0 {
		t.Errorf("left behind: %q", keys)
	}
}

func lingers(t *testing.T, c driver.Claim) error {
	t.Helper()
	return within(t, lingerWithin, func(ctx context.Context) error { return c.Release(ctx, driver.End{Linger: time.Minute}) })
}

// The answer to a linger is lost, and the owner's next claim releases plainly. The lease lingers still, and no other
// process is said to have done it.
func TestLingerWithoutAnswerIsOfThisProcess(t *testing.T) {
	t.Parallel()
	l := newLingering(t)
	l.lingersForgotten(t)
	err := within(t, lingerWithin, claimtest.Release(l.claim(t)))
	if !errors.Is(err, driver.ErrLost) || strings.Contains(err.Error(), "another process") {
		t.Errorf("Release by the next claim: %v; want ErrLost, not because of another process", err)
	}
	l.isBusy(t)
}

// A Release that lingers and finds that the lease was evicted says why, as one that does not linger.
func TestReleaseThatLingersFindsTheReason(t *testing.T) {
	t.Parallel()
	l := newLingering(t)
	operator := driverOn(t, clientOf(t, l.server), nil)
	c := l.claim(t)
	if err := within(t, lingerWithin, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	evict := sync.OnceFunc(func() {
		if err := operator.Evict(t.Context(), "a", "o", "why"); err != nil {
			t.Error(err)
		}
	})
	begun := func(_ *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		evict()
		return send(ctx)
	}
	l.taps.txn.Store(&begun)
	if err := lingers(t, c); !errors.Is(err, driver.ErrEvicted) || !strings.Contains(err.Error(), "why") {
		t.Errorf("Release of what was evicted: %v; want ErrEvicted with the reason", err)
	}
}
