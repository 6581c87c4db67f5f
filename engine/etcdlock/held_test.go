package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A tap stands in a client where single calls can be held: what a member that hangs, or a
// link, does to them by chance.
type tap struct {
	txn    atomic.Pointer[func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error]
	hangs  atomic.Bool  // the next transaction that writes, or question about a lease, has no answer
	silent atomic.Bool  // streams of keep-alives that are open now bring no more answers
	late   atomic.Int64 // how long answers to keep-alives take, a time.Duration
	kept   atomic.Int64 // keep-alives that were sent
}

func (p *tap) client(t testing.TB, members ...*servers.Etcd) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: servers.Endpoints(members...), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(p.unary), grpc.WithChainStreamInterceptor(p.stream)},
	})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func (p *tap) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	send := func(ctx context.Context) error { return invoke(ctx, method, req, reply, conn, opts...) }
	if p.hangs.Load() && mayHang(req) && p.hangs.CompareAndSwap(true, false) {
		<-ctx.Done()
		return ctx.Err()
	}
	txn, isTxn := req.(*pb.TxnRequest)
	if hold := p.txn.Load(); isTxn && hold != nil {
		return (*hold)(txn, ctx, send)
	}
	return send(ctx)
}

// mayHang reports whether req is a transaction that puts, or asks about a lease of etcd.
func mayHang(req any) bool {
	if txn, ok := req.(*pb.TxnRequest); ok {
		return slices.ContainsFunc(txn.Success, func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil })
	}
	_, ok := req.(*pb.LeaseTimeToLiveRequest)
	return ok
}

func (p *tap) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, opts...)
	if err != nil || !strings.HasSuffix(method, "/LeaseKeepAlive") {
		return s, err
	}
	p.silent.Store(false)
	return &tappedStream{s, p}, nil
}

type tappedStream struct {
	grpc.ClientStream
	tap *tap
}

func (s *tappedStream) SendMsg(m any) error {
	s.tap.kept.Add(1)
	return s.ClientStream.SendMsg(m)
}

func (s *tappedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && s.tap.silent.Load() {
		<-s.Context().Done()
		return s.Context().Err()
	}
	if err == nil {
		select {
		case <-time.After(time.Duration(s.tap.late.Load())):
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	return err
}

// holdPuts keeps back the puts of keys of name until the returned function is called,
// which returns when the server has answered them. Others pass from then on.
func (p *tap) holdPuts(t testing.TB, name string) (pass func(), deliver func()) {
	late, done := make(chan struct{}), make(chan error, 10)
	held := 0
	hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		puts := slices.ContainsFunc(req.Success, func(op *pb.RequestOp) bool {
			return strings.HasPrefix(string(op.GetRequestPut().GetKey()), etcdlock.DefaultPrefix+"/"+name+"/")
		})
		if !puts {
			return send(ctx)
		}
		held++
		go func() {
			<-late
			done <- send(context.WithoutCancel(ctx))
		}()
		<-ctx.Done()
		return ctx.Err()
	}
	p.txn.Store(&hold)
	return func() { p.txn.Store(nil) }, func() {
		if held == 0 {
			t.Error("no put was held")
		}
		close(late)
		for range held {
			<-done // the server's no is one answer
		}
	}
}

// within bounds a call.
func within(t testing.TB, limit time.Duration, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return call(ctx)
}

// released releases a claim, again as long as the outcome is unknown: on a busy machine
// every call may be one that nobody waits for any more. ErrLost: there was nothing to give
// up from the first.
func released(t testing.TB, c driver.Claim, limit time.Duration) error {
	t.Helper()
	err := within(t, limit, claimtest.Release(c))
	for end := time.Now().Add(3 * limit); err != nil && !errors.Is(err, driver.ErrLost) && time.Now().Before(end); {
		if err = within(t, limit, claimtest.Release(c)); errors.Is(err, driver.ErrLost) {
			return nil
		}
	}
	return err
}

func tryOf(c driver.Claim) func(context.Context) error {
	return func(ctx context.Context) error { _, err := c.Try(ctx); return err }
}

func claimOf(t testing.TB, d driver.Driver, req driver.Request) driver.Claim {
	t.Helper()
	c, err := d.Claim(req)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return c
}

// A deletion that comes late, when another attempt has ended the lease, leaves the key of the next holder alone.
func TestLateDeletion(t *testing.T) {
	t.Parallel()
	const ttl, limit = 30 * time.Second, 20 * time.Second
	var taps tap
	d := driverOn(t, taps.client(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	first := claimOf(t, d, driver.Request{Resource: "a", Owner: "first", TTL: ttl})
	next := claimOf(t, d, driver.Request{Resource: "a", Owner: "next", TTL: ttl})
	if err := within(t, limit, tryOf(first)); err != nil {
		t.Fatal(err)
	}
	late, served := make(chan struct{}), make(chan error, 1)
	var held atomic.Bool
	hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if req.Success[0].GetRequestDeleteRange() == nil || held.Swap(true) {
			return send(ctx)
		}
		go func() {
			<-late
			served <- send(context.WithoutCancel(ctx))
		}()
		<-ctx.Done()
		return ctx.Err()
	}
	taps.txn.Store(&hold)
	if err := released(t, first, limit); err != nil {
		t.Fatalf("Release: %v", err)
	}
	if err := within(t, limit, tryOf(next)); err != nil {
		t.Fatalf("Try of the next: %v", err)
	}
	close(late)
	if err := <-served; err != nil {
		t.Fatalf("the late deletion: %v", err)
	}
	if err := within(t, limit, func(ctx context.Context) error { _, err := next.Renew(ctx, ttl); return err }); err != nil {
		t.Errorf("Renew of the next: %v", err)
	}
}

// A claim gives up its key because it is too heavy, and another claim of its owner is released meanwhile. The deletion of
// one that comes late leaves the key of the next holder alone, although the other's was answered.
func TestLateDeletionOfTwo(t *testing.T) {
	t.Parallel()
	const ttl, limit = 30 * time.Second, 20 * time.Second
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d, direct := driverOn(t, taps.client(t, e), nil), clientOf(t, e)
	operator := driverOn(t, direct, nil)
	claim := func(owner string) driver.Claim { // their keys have one name, unless that is kept from being used again
		return claimOf(t, d, driver.Request{Resource: "a", Owner: owner, TTL: ttl, Mode: driver.Shared, Weight: 2})
	}
	limitTo := func(most int) {
		t.Helper()
		if err := within(t, limit, func(ctx context.Context) error { return operator.SetLimit(ctx, "a", most) }); err != nil {
			t.Fatal(err)
		}
	}
	limitTo(1)
	first, again, next := claim("o"), claim("o"), claim("next")
	var deletions atomic.Int64
	begun, second, free := make(chan struct{}), make(chan struct{}), make(chan struct{}) // the first has come; the second, or it will not; the next holds
	arrives := sync.OnceFunc(func() { close(second) })
	hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if req.Success[0].GetRequestDeleteRange() == nil {
			return send(ctx)
		}
		switch deletions.Add(1) {
		case 1:
			close(begun)
			<-second
		case 2:
			arrives()
			<-ctx.Done()
			return ctx.Err()
		case 3:
			<-free
		}
		return send(ctx)
	}
	taps.txn.Store(&hold)
	one, other := make(chan error, 1), make(chan error, 1)
	go func() { one <- within(t, limit, tryOf(first)) }()
	select {
	case <-begun:
	case err := <-one:
		t.Fatalf("Try: %v, without a deletion", err)
	}
	go func() { other <- within(t, limit, claimtest.Release(again)); arrives() }()
	if err := <-one; !errors.Is(err, driver.ErrTooHeavy) {
		t.Fatalf("Try: %v; want ErrTooHeavy", err)
	}
	if deletions.Load() < 2 {
		t.Fatalf("the other claim deletes nothing: %v", <-other)
	}
	limitTo(2)
	if err := within(t, limit, tryOf(next)); err != nil {
		t.Fatalf("Try of the next: %v", err)
	}
	close(free)
	if err := <-other; err != nil {
		t.Logf("Release of the other claim: %v", err)
	}
	if keys, _ := keysOf(t, direct, "a"); len(keys) != 1 {
		t.Errorf("the next holder's key is gone: %q", keys)
	}
	if err := within(t, limit, func(ctx context.Context) error { _, err := next.Renew(ctx, ttl); return err }); err != nil {
		t.Errorf("Renew of the next: %v", err)
	}
}

// A put that comes late stays out although the claim has moved on to another session, and
// although that one has ended: the first lives on, for another claim.
func TestPutOfAnEarlierSessionStaysOut(t *testing.T) {
	t.Parallel()
	const ttl, limit = 20 * time.Second, 10 * time.Second
	e := servers.StartEtcd(t, servers.EtcdDebian)
	for _, name := range []string{"released", "revoked"} {
		t.Run(name, func(t *testing.T) {
			var taps tap
			direct := clientOf(t, e)
			d, other := driverOn(t, taps.client(t, e), nil), driverOn(t, direct, nil)
			keeper := claimOf(t, d, driver.Request{Resource: "keeper-" + name, Owner: "k", TTL: ttl})
			rival := claimOf(t, other, driver.Request{Resource: name, Owner: "rival", TTL: ttl})
			c := claimOf(t, d, driver.Request{Resource: name, Owner: "owner", TTL: ttl, Queue: true})
			if err := within(t, limit, tryOf(keeper)); err != nil {
				t.Fatal(err)
			}
			pass, deliver := taps.holdPuts(t, name)
			if err := within(t, 500*time.Millisecond, tryOf(c)); err == nil || errors.Is(err, driver.ErrBusy) {
				t.Fatalf("Try while its put is held: %v; want an unknown outcome", err)
			}
			pass()
			if err := within(t, limit, tryOf(rival)); err != nil {
				t.Fatal(err)
			}
			if err := within(t, limit, tryOf(c)); !errors.Is(err, driver.ErrBusy) {
				t.Fatalf("Try: %v; want busy", err)
			}
			queued := clientv3.LeaseID(queueOf(t, direct, name, 2)[1])
			revoke := func() {
				if _, err := direct.Revoke(t.Context(), queued); err != nil {
					t.Fatal(err)
				}
			}
			if name == "revoked" {
				revoke()
			}
			if err := within(t, limit, claimtest.Release(c)); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Fatalf("Release: %v", err)
			}
			if name == "released" {
				revoke()
			}
			if err := within(t, limit, claimtest.Release(rival)); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) { // the driver may keep it out later
				resp, err := direct.Get(t.Context(), etcdlock.DefaultPrefix+"//"+name+"/", clientv3.WithPrefix())
				if err != nil {
					t.Fatal(err)
				}
				if len(resp.Kvs) > 0 {
					break
				}
				if time.Now().After(end) {
					t.Error("nothing keeps the put out")
					break
				}
			}
			deliver()
			if keys, _ := keysOf(t, direct, name); len(keys) > 0 {
				t.Errorf("left behind: %q", keys)
			}
			if err := within(t, limit, func(ctx context.Context) error { _, err := keeper.Renew(ctx, ttl); return err }); err != nil {
				t.Errorf("the other claim: %v", err)
			}
		})
	}
}

// A renewal with a short context does not keep later ones from leaving a stream of
// keep-alives that brings no answers.
func TestShortRenewalsDoNotKeepASilentStream(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second // below that with spare time: each renewal is sent
	var taps tap
	d := driverOn(t, taps.client(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl})
	renew := func(ctx context.Context) error { _, err := c.Renew(ctx, ttl); return err }
	if err := within(t, ttl, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	taps.silent.Store(true)
	if err := within(t, 300*time.Millisecond, renew); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Renew on a silent stream: %v; want its context's end", err)
	}
	if err := within(t, ttl*3/4, renew); err != nil {
		t.Errorf("Renew after that: %v; want another stream to be used", err)
	}
}

// A member is heard whose every answer takes longer than one is waited for at first. Once that is known, a
// renewal costs one keep-alive.
func TestSlowMember(t *testing.T) {
	t.Parallel()
	const ttl, renewals, spare = 10 * time.Second, 6, 3 // spare is for a machine that makes them slower still
	var taps tap
	d := driverOn(t, taps.client(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl})
	if err := within(t, ttl, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	taps.late.Store(int64(1700 * time.Millisecond)) // who asked for each anew meanwhile would have none in time
	taps.kept.Store(0)
	time.Sleep(1100 * time.Millisecond) // until then the grant serves for a renewal, too
	for range renewals {
		if err := within(t, ttl/2, func(ctx context.Context) error { _, err := c.Renew(ctx, ttl); return err }); err != nil {
			t.Errorf("Renew: %v", err)
		}
	}
	n := taps.kept.Load()
	if t.Logf("%d keep-alives for %d renewals", n, renewals); n > renewals+spare {
		t.Errorf("want at most %d", renewals+spare)
	}
}

// A driver deletes what has expired there. Another process that resumes it between the
// reading and the deletion keeps it.
func TestReaperSparesWhatIsResumed(t *testing.T) {
	t.Parallel()
	const ttl, longer = 4 * time.Second, 20 * time.Second
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d, other := driverOn(t, taps.client(t, e), nil), driverOn(t, clientOf(t, e), nil)
	keeper := claimOf(t, d, driver.Request{Resource: "keeper", Owner: "k", TTL: ttl}) // of the session
	c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl})
	resumed := claimOf(t, other, driver.Request{Resource: "a", Owner: "o", TTL: longer})
	renew := func(ctx context.Context) error { _, err := resumed.Renew(ctx, longer); return err }
	if err := within(t, longer, tryOf(keeper)); err != nil {
		t.Fatal(err)
	}
	pass, deliver := taps.holdPuts(t, "a")
	_ = within(t, 200*time.Millisecond, tryOf(c)) // unknown: the reaper then reads each key
	pass()
	if err := within(t, longer, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	deliver()
	deleted := make(chan error, 1)
	hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if len(deleted) > 0 || !slices.ContainsFunc(req.Success, func(op *pb.RequestOp) bool { return op.GetRequestDeleteRange() != nil }) {
			return send(ctx)
		}
		err := renew(ctx)
		deleted <- errors.Join(err, send(ctx))
		return nil
	}
	taps.txn.Store(&hold)
	for end := time.Now().Add(longer); len(deleted) == 0; time.Sleep(ttl / 8) {
		if err := within(t, ttl, func(ctx context.Context) error { _, err := keeper.Renew(ctx, ttl); return err }); err != nil {
			t.Fatalf("keep the session alive: %v", err)
		}
		if time.Now().After(end) {
			t.Fatal("nothing was deleted")
		}
	}
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	if err := within(t, longer/2, renew); err != nil {
		t.Errorf("Renew of the resumed lease: %v; want it to be spared", err)
	}
}

// Two claims of one owner try at once. The put of one that comes late, after its release, leaves no key, although the
// other's was answered meanwhile.
func TestLatePutOfTwo(t *testing.T) {
	t.Parallel()
	const ttl, limit = 30 * time.Second, 20 * time.Second
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	d, theirs := driverOn(t, taps.client(t, e), nil), driverOn(t, direct, nil)
	holder := claimOf(t, theirs, driver.Request{Resource: "a", Owner: "x", TTL: ttl})
	first := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl})
	second := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl})
	other := claimOf(t, d, driver.Request{Resource: "b", Owner: "o", TTL: ttl}) // keeps the session alive
	if err := errors.Join(within(t, limit, tryOf(holder)), within(t, limit, tryOf(other))); err != nil {
		t.Fatal(err)
	}
	var puts atomic.Int64
	came, free, delivered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if len(req.Compare) == 0 || req.Success[0].GetRequestPut() == nil {
			return send(ctx)
		}
		switch puts.Add(1) {
		case 1:
			<-came
			return send(ctx)
		case 2:
			close(came)
			go func() {
				<-free
				send(context.WithoutCancel(ctx))
				close(delivered)
			}()
		}
		<-ctx.Done()
		return ctx.Err()
	}
	taps.txn.Store(&hold)
	refused := make(chan error, 1)
	go func() { refused <- within(t, limit, tryOf(first)) }()
	for puts.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := within(t, time.Second, tryOf(second)); err == nil || errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try without an answer: %v", err)
	}
	if err := <-refused; !errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try of the first: %v; want busy", err)
	}
	taps.txn.Store(nil)
	if err := within(t, limit, claimtest.Release(holder)); err != nil {
		t.Fatal(err)
	}
	if err := within(t, limit, claimtest.Release(second)); err != nil {
		t.Logf("Release of the second: %v", err)
	}
	close(free)
	<-delivered
	// The second's release leaves it to the driver, which may be about to send the tombstone.
	claimtest.Eventually(t, "no key to be left", func() bool {
		keys, _ := keysOf(t, direct, "a")
		return len(keys) == 0
	})
}

// A Release that lingers says why the lease has ended, as others do.
func TestReleaseThatLingersTellsTheReason(t *testing.T) {
	t.Parallel()
	const limit = 20 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d, operator := driverOn(t, clientOf(t, e), nil), driverOn(t, clientOf(t, e), nil)
	lost := make(chan error, 1)
	c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: 30 * time.Second, Lost: func(cause error) { lost <- cause }})
	if err := within(t, limit, tryOf(c)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // only then does the watch begin
	if err := operator.Evict(t.Context(), "a", "o", "why"); err != nil {
		t.Fatal(err)
	}
	<-lost
	err := within(t, limit, func(ctx context.Context) error { return c.Release(ctx, driver.End{Linger: time.Minute}) })
	if !errors.Is(err, driver.ErrEvicted) || !strings.Contains(err.Error(), "why") {
		t.Errorf("Release of what was evicted: %v; want ErrEvicted with the reason", err)
	}
}

// Calls of a holder and of an operator go to another member when the first one does not answer.
func TestCallsGoOnWhenAnAnswerHangs(t *testing.T) {
	t.Parallel()
	const ttl, limit = 30 * time.Second, 20 * time.Second
	for name, call := range map[string]func(ctx context.Context, d *etcdlock.Driver, c driver.Claim) error{
		"Renew": func(ctx context.Context, _ *etcdlock.Driver, c driver.Claim) error {
			_, err := c.Renew(ctx, 2*ttl)
			return err
		},
		"Note": func(ctx context.Context, _ *etcdlock.Driver, c driver.Claim) error { return c.Note(ctx, "note") },
		"Evict": func(ctx context.Context, d *etcdlock.Driver, _ driver.Claim) error {
			return d.Evict(ctx, "a", "o", "why")
		},
		"Inspect": func(ctx context.Context, d *etcdlock.Driver, _ driver.Claim) error { return inspected(ctx, d, ttl) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var taps tap
			d := driverOn(t, taps.client(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
			c := claimOf(t, d, driver.Request{Resource: "a", Owner: "o", TTL: ttl})
			if err := within(t, limit, tryOf(c)); err != nil {
				t.Fatal(err)
			}
			taps.hangs.Store(true)
			start := time.Now()
			if err := within(t, limit, func(ctx context.Context) error { return call(ctx, d, c) }); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took > limit/2 {
				t.Errorf("took %v of %v", took, limit)
			}
			if taps.hangs.Load() {
				t.Error("no call hung")
			}
		})
	}
}

// inspected returns an error unless Inspect shows a holder of "a" with its TTL.
func inspected(ctx context.Context, d *etcdlock.Driver, ttl time.Duration) error {
	st, err := d.Inspect(ctx, "a")
	if err == nil && (len(st.Holders) != 1 || st.Holders[0].TTL < ttl) {
		err = fmt.Errorf("Inspect shows %+v", st)
	}
	return err
}
