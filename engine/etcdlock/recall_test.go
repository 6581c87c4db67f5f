package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

const (
	recallTTL = 30 * time.Second
	// recallSoon bounds what is told by itself. No test renews a lease by the way.
	recallSoon = 10 * time.Second
)

// recalls counts the calls of a claim's Wanted.
type recalls struct{ n atomic.Int64 }

// holding returns a claim that holds name, and asks.
func (r *recalls) holding(t testing.TB, d driver.Driver, name string) driver.Claim {
	t.Helper()
	c := claimOf(t, d, r.in(driver.Request{Resource: name, Owner: "holder", TTL: recallTTL}))
	claimtest.Granted(t, c)
	return c
}

func (r *recalls) in(req driver.Request) driver.Request {
	req.Wanted = func() { r.n.Add(1) }
	return req
}

// come waits for a call, and forgets those that have come.
func (r *recalls) come(t testing.TB, why string) {
	t.Helper()
	for end := time.Now().Add(recallSoon); r.n.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("Wanted is not called: %s", why)
		}
	}
	r.n.Store(0)
}

// queues returns a claim that has a place behind the holder of name.
func queues(t testing.TB, d driver.Driver, name, owner string) driver.Claim {
	t.Helper()
	c := claimOf(t, d, driver.Request{Resource: name, Owner: owner, TTL: recallTTL, Queue: true})
	claimtest.Refused(t, c)
	return c
}

// listening is d when its watch of puts is live: what it then grants needs no read, which might tell of
// others at any moment.
func listening(t testing.TB, d, other *etcdlock.Driver) *etcdlock.Driver {
	t.Helper()
	var told recalls
	warm := told.holding(t, d, "warm")
	c := queues(t, other, "warm", "waiter")
	told.come(t, "the watch begins")
	claimtest.Released(t, c)
	claimtest.Released(t, warm)
	return d
}

// A place that comes while the watch is cut is told of when the client has connected again: the watch
// resumes after what it has told, or begins anew where that was compacted, and then reads.
func TestPlaceThatCameWhileTheWatchWasCut(t *testing.T) {
	t.Parallel()
	for what, compacts := range map[string]bool{"resumed": false, "compacted": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e := servers.StartEtcd(t, servers.EtcdCurrent)
			direct := clientOf(t, e)
			proxy := servers.StartProxy(t, e.Addr())
			other := driverOn(t, direct, nil)
			var told recalls
			told.holding(t, listening(t, driverOn(t, clientAt(t, "http://"+proxy.Addr()), nil), other), "a")
			first := queues(t, other, "a", "first")
			told.come(t, "a place came")
			proxy.Dark()
			proxy.Reset()
			claimtest.Released(t, first)
			queues(t, other, "a", "second")
			if compacts {
				resp, err := direct.Get(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := direct.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
					t.Fatal(err)
				}
			}
			if n := told.n.Load(); n > 0 {
				t.Fatalf("%d calls while nothing passes", n)
			}
			proxy.Pass()
			proxy.Reset()
			told.come(t, "a place came while the watch was cut")
		})
	}
}

// Whichever member dies: the holder hears of who comes meanwhile.
func TestRecallWhenAMemberDies(t *testing.T) {
	t.Parallel()
	members := servers.StartEtcdCluster(t, servers.EtcdCurrent, 3)
	other := driverOn(t, clientOf(t, members...), nil)
	var told recalls
	told.holding(t, driverOn(t, clientOf(t, members...), nil), "a")
	for i, m := range members {
		m.Kill()
		c := claimOf(t, other, driver.Request{Resource: "a", Owner: fmt.Sprint("waiter ", i), TTL: recallTTL, Queue: true})
		for end := time.Now().Add(recallSoon); ; {
			err := within(t, recallSoon, tryOf(c))
			if errors.Is(err, driver.ErrBusy) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("Try while a member is down: %v", err)
			}
		}
		told.come(t, fmt.Sprintf("a place came while member %d of 3 was down", i+1))
		if err := released(t, c, recallSoon); err != nil {
			t.Fatalf("Release while a member is down: %v", err)
		}
		m.Begin()
		m.Ready()
	}
}

// taps whose watches are deaf: what they should tell is lost.
type deafTap struct {
	deaf    atomic.Bool
	watches atomic.Int64 // of puts below the root, that were asked for
}

func (p *deafTap) client(t testing.TB, members ...*servers.Etcd) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: servers.Endpoints(members...), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(p.stream)},
	})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func (p *deafTap) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, opts...)
	if err != nil || !strings.HasSuffix(method, "/Watch") {
		return s, err
	}
	return &deafStream{s, p}, nil
}

type deafStream struct {
	grpc.ClientStream
	tap *deafTap
}

func (s *deafStream) SendMsg(m any) error {
	if c := m.(*pb.WatchRequest).GetCreateRequest(); c != nil && len(c.RangeEnd) > 0 && !slices.Contains(c.Filters, pb.WatchCreateRequest_NOPUT) {
		s.tap.watches.Add(1)
	}
	return s.ClientStream.SendMsg(m)
}

func (s *deafStream) RecvMsg(m any) error {
	for {
		err := s.ClientStream.RecvMsg(m)
		if err != nil || !s.tap.deaf.Load() {
			return err
		}
	}
}

// What a watch has not told, the next renewal does, alone or in a batch.
func TestRenewalTellsWhatTheWatchDoesNot(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var tap deafTap
	other := driverOn(t, clientOf(t, e), nil)
	d := listening(t, driverOn(t, tap.client(t, e), nil), other)
	tap.deaf.Store(true)
	var told recalls
	holder := told.holding(t, d, "a")
	renew := func(ttl time.Duration) error { _, err := holder.Renew(t.Context(), ttl); return err }
	for _, c := range []struct {
		what   string
		renew  func() error
		before bool // also while nobody waits
	}{
		{"alone", func() error { return renew(recallTTL) }, true},
		{"in a batch", func() error {
			one := []driver.Renewal{{Claim: holder, TTL: recallTTL}}
			d.RenewAll(t.Context(), one)
			return one[0].Err
		}, true},
		{"for longer, which moves the key", func() error { return renew(2 * recallTTL) }, false},
	} {
		if c.before {
			if err := c.renew(); err != nil {
				t.Fatalf("renewed %s: %v", c.what, err)
			}
		}
		waiter := queues(t, other, "a", c.what)
		if n := told.n.Load(); n > 0 {
			t.Fatalf("%d calls before it is renewed %s", n, c.what)
		}
		if err := c.renew(); err != nil {
			t.Fatalf("renewed %s: %v", c.what, err)
		}
		told.come(t, "it was renewed "+c.what)
		claimtest.Released(t, waiter)
	}
}

// A place that comes before the answer that grants: the holder is told of it when it is granted.
func TestRecallBeforeTheAnswerThatGrants(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	for what, heard := range map[string]bool{"by the watch": true, "before the watch": false} {
		var taps tap
		d, other := driverOn(t, taps.client(t, e), nil), driverOn(t, clientOf(t, e), nil)
		name := strings.ReplaceAll(what, " ", "-")
		var told recalls
		if heard {
			listening(t, d, other)
		}
		late := make(chan struct{})
		served := make(chan struct{}, 1)
		hold := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
			err := send(ctx)
			for _, op := range req.Success {
				if strings.Contains(string(op.GetRequestPut().GetKey()), "/"+name+"/") {
					served <- struct{}{}
					<-late
				}
			}
			return err
		}
		taps.txn.Store(&hold)
		c := claimOf(t, d, told.in(driver.Request{Resource: name, Owner: "holder", TTL: recallTTL}))
		granted := make(chan error, 1)
		go func() { granted <- tryOf(c)(t.Context()) }()
		<-served
		queues(t, other, name, "waiter")
		if n := told.n.Load(); n > 0 {
			t.Errorf("%s: %d calls of a claim that nothing was granted", what, n)
		}
		close(late)
		if err := <-granted; err != nil {
			t.Fatalf("%s: Try: %v", what, err)
		}
		told.come(t, "a place came before the answer, "+what)
	}
}

// Who loses its session while it is wanted hears of that, and of nobody who waits from then on.
func TestSessionIsLostWhileWanted(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	other := driverOn(t, clientOf(t, e), nil)
	d := listening(t, driverOn(t, clientOf(t, e), nil), other)
	var told, control recalls
	lost := make(chan error, 1)
	req := told.in(driver.Request{Resource: "a", Owner: "holder", TTL: recallTTL, Lost: func(cause error) { lost <- cause }})
	holder := claimOf(t, d, req)
	claimtest.Granted(t, holder)
	// Of another TTL, and so in another session.
	claimtest.Granted(t, claimOf(t, d, control.in(driver.Request{Resource: "b", Owner: "holder", TTL: 2 * recallTTL})))
	first := queues(t, other, "a", "first")
	told.come(t, "a place came")
	_, leases := keysOf(t, direct, "a")
	if _, err := direct.Revoke(t.Context(), clientv3.LeaseID(leases[0])); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lost:
	case <-time.After(recallSoon):
		t.Fatal("Lost is not called")
	}
	told.n.Store(0)
	claimtest.Granted(t, first)
	queues(t, other, "a", "second")
	queues(t, other, "b", "second") // which is told of, after the other
	control.come(t, "a place came")
	if n := told.n.Load(); n > 0 {
		t.Errorf("%d calls after the session was lost", n)
	}
	if _, err := holder.Renew(t.Context(), recallTTL); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew: %v; want ErrLost", err)
	}
}

// A waiter that dies after it has recalled a holder is told of until its place ends, and then no more.
func TestWaiterDiesAfterRecalling(t *testing.T) {
	t.Parallel()
	const waiterTTL = 2 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	other, err := etcdlock.New(clientOf(t, e), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var told recalls
	holder := told.holding(t, listening(t, driverOn(t, clientOf(t, e), nil), other), "a")
	claimtest.Refused(t, claimOf(t, other, driver.Request{Resource: "a", Owner: "waiter", TTL: waiterTTL, Queue: true}))
	told.come(t, "a place came")
	other.Close() // nothing keeps its place from now on
	queueOf(t, direct, "a", 1)
	told.n.Store(0)
	for range 2 {
		if _, err := holder.Renew(t.Context(), recallTTL); err != nil {
			t.Fatalf("Renew: %v", err)
		}
	}
	if n := told.n.Load(); n > 0 {
		t.Errorf("%d calls when the only waiter's place has ended", n)
	}
}

// Keys of "etcdctl lock a/b" lie below those of a, and wait for nobody there. One of "etcdctl lock a" does.
func TestNestedLocksRecallNobody(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	client := clientOf(t, e)
	var tap deafTap
	tap.deaf.Store(true)
	d := driverOn(t, tap.client(t, e), &etcdlock.Options{NoPrefix: true})
	s, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/!/1", "a/!/2", "a/~/1"} { // before and behind other keys
		if _, err := client.Put(t.Context(), name, "", clientv3.WithLease(s.Lease())); err != nil {
			t.Fatal(err)
		}
	}
	var told recalls
	holder := told.holding(t, d, "a")
	renewed := func() {
		t.Helper()
		if _, err := holder.Renew(t.Context(), recallTTL); err != nil {
			t.Fatalf("Renew: %v", err)
		}
	}
	renewed()
	renewed()
	foreign, cancel := context.WithCancel(t.Context())
	defer cancel()
	if n := told.n.Load(); n > 0 {
		t.Errorf("%d calls while others use names below", n)
	}
	go concurrency.NewMutex(s, "a").Lock(foreign)
	for end := time.Now().Add(recallSoon); told.n.Load() == 0; renewed() {
		if time.Now().After(end) {
			t.Fatal("Wanted is not called while another client waits")
		}
	}
}

// Who does not ask to be told pays for no watch of puts, and who does for one.
func TestNoWatchOfPutsWithoutWanted(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var tap deafTap
	d := driverOn(t, tap.client(t, e), nil)
	c := claimOf(t, d, driver.Request{Resource: "a", Owner: "first", TTL: recallTTL})
	claimtest.Granted(t, c)
	second := queues(t, d, "a", "second")
	if _, err := c.Renew(t.Context(), recallTTL); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	claimtest.Released(t, c)
	for end := time.Now().Add(recallSoon); ; time.Sleep(time.Millisecond) { // its driver has yet to hear of the release
		if err := within(t, recallSoon, tryOf(second)); err == nil {
			break
		} else if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
			t.Fatalf("Try after the release: %v", err)
		}
	}
	if n := tap.watches.Load(); n > 0 {
		t.Errorf("%d watches of puts, for nobody", n)
	}
	var told recalls
	told.holding(t, d, "b")
	told.holding(t, d, "c")
	queues(t, d, "b", "waiter")
	told.come(t, "a place came")
	if n := tap.watches.Load(); n != 1 {
		t.Errorf("%d watches of puts for two holders; want 1", n)
	}
}

// Another claim of an owner that holds already asks: it is told of who waits, by its Try.
func TestAnotherClaimOfTheHolderAsks(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, clientOf(t, e), nil)
	listening(t, d, d)
	req := driver.Request{Resource: "a", Owner: "holder", TTL: recallTTL}
	claimtest.Granted(t, claimOf(t, d, req))
	queues(t, d, "a", "waiter")
	var told recalls
	claimtest.Granted(t, claimOf(t, d, told.in(req)))
	told.come(t, "another waits since before it asked")
}

// recalledEnv has the test binary hold a lease at that address, as in TestStoppedWhileWanted.
const recalledEnv = "ETCDLOCK_TEST_RECALLED"

const recalledTTL = 10 * time.Second // long enough for the other to ask on a busy machine

// holdRecalled holds a lease until its stdin says more: then it renews it.
func holdRecalled(address string) error {
	d, err := openAddress(address)
	if err != nil {
		return err
	}
	defer d.Close()
	c, err := d.Claim(driver.Request{Resource: "a", Owner: "holder", TTL: recalledTTL, Wanted: func() { fmt.Println("wanted") }})
	if err != nil {
		return err
	}
	if _, err := c.Try(context.Background()); err != nil {
		return err
	}
	fmt.Println("granted")
	if _, err := io.ReadAll(os.Stdin); err != nil {
		return err
	}
	_, err = c.Renew(context.Background(), recalledTTL)
	if errors.Is(err, driver.ErrLost) {
		fmt.Println("lost")
		return nil
	}
	return fmt.Errorf("Renew: %v; want ErrLost", err)
}

// A holder's process is stopped when it has heard that it is wanted: the waiter holds when its TTL has
// passed, and when the process goes on, it has lost the lease.
func TestStoppedWhileWanted(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^$")
	cmd.Env = append(os.Environ(), recalledEnv+"="+servers.Endpoints(e)[0])
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	says := func(what string) {
		t.Helper()
		for said.Scan() {
			if said.Text() == what {
				return
			}
		}
		t.Fatalf("the process does not say %q", what)
	}
	d := driverOn(t, clientOf(t, e), nil)
	says("granted")
	next := claimOf(t, d, driver.Request{Resource: "a", Owner: "next", TTL: recallTTL, Queue: true})
	claimtest.Refused(t, next)
	says("wanted")
	resume := locktest.PauseProcess(t, cmd.Process)
	defer resume()
	for end := time.Now().Add(recallTTL); ; time.Sleep(100 * time.Millisecond) {
		if err := within(t, recallSoon, tryOf(next)); err == nil {
			break
		} else if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
			t.Fatalf("Try while the holder is stopped: %v", err)
		}
	}
	resume()
	in.Close()
	says("lost")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
