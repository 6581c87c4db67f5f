package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// keysOf are the keys of a resource, in order.
func keysOf(t testing.TB, client *clientv3.Client, name string) (keys []string, leases []int64) {
	t.Helper()
	resp, err := client.Get(t.Context(), etcdlock.DefaultPrefix+"/"+name+"/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatalf("read the keys of %s: %v", name, err)
	}
	for _, kv := range resp.Kvs {
		keys, leases = append(keys, string(kv.Key)), append(leases, kv.Lease)
	}
	return keys, leases
}

// queueOf waits until so many keys are there.
func queueOf(t testing.TB, client *clientv3.Client, name string, n int) (leases []int64) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, leases = keysOf(t, client, name); len(leases) == n {
			return leases
		}
		if time.Now().After(end) {
			t.Fatalf("%d keys of %s, want %d", len(leases), name, n)
		}
	}
}

// ends waits for the end of a lease.
func ends(t testing.TB, lease *leasehold.Lease, within time.Duration) {
	t.Helper()
	select {
	case <-lease.Context().Done():
		if cause := context.Cause(lease.Context()); !errors.Is(cause, leasehold.ErrLost) {
			t.Errorf("the lease ended with %v; want ErrLost", cause)
		}
	case <-time.After(within):
		t.Fatalf("the lease has not ended within %v", within)
	}
}

// An operator revokes the lease of a holder: it learns at once. One of a waiter: it queues
// anew, and does not believe in a turn of the key that it had.
func TestRevoke(t *testing.T) {
	t.Parallel()
	for _, version := range []string{servers.EtcdDebian, servers.EtcdCurrent} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			e := servers.StartEtcd(t, version)
			client := clientOf(t, e)
			holder := lockerOn(t, driverOn(t, clientOf(t, e), nil), leasehold.Options{TTL: 30 * time.Second})
			waiter := lockerOn(t, driverOn(t, clientOf(t, e), nil), leasehold.Options{TTL: 10 * time.Second})
			lease, err := holder.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan *leasehold.Lease, 1)
			go func() {
				lease, err := waiter.Acquire(t.Context(), "a")
				if err != nil {
					t.Errorf("the waiter: %v", err)
				}
				got <- lease
			}()
			queued := queueOf(t, client, "a", 2)
			e.Etcdctl(t, "lease", "revoke", fmt.Sprintf("%x", queued[1]))
			again := queued
			for again[1] == queued[1] { // it comes back in another session
				again = queueOf(t, client, "a", 2)
			}
			if lease.Context().Err() != nil || len(got) > 0 {
				t.Fatal("the waiter's revocation concerns the holder, or lets the waiter in")
			}
			e.Etcdctl(t, "lease", "revoke", fmt.Sprintf("%x", queued[0]))
			ends(t, lease, 2*time.Second)
			next := <-got
			if next == nil || next.Token() <= lease.Token() {
				t.Fatalf("the waiter: %v; want a larger token", next)
			}
			if err := next.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
	}
}

// The leader is killed, or stopped for a while, while a lease is held and fifty wait: the
// holder holds, and then all are served, one after the other.
func TestLeaderFails(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func(*servers.Etcd) (back func()){
		"killed":  func(e *servers.Etcd) func() { e.Kill(); return e.Begin },
		"stopped": func(e *servers.Etcd) func() { return e.Pause() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			members := servers.StartEtcdCluster(t, servers.EtcdCurrent, 3)
			leader := servers.EtcdLeader(t, members)
			const waiters, clients = 50, 5
			renewed := make(chan struct{}, 1)
			opts := leasehold.Options{TTL: 20 * time.Second, Trace: func(_ context.Context, e leasehold.Event) {
				if e.Step == leasehold.StepRenewed {
					select {
					case renewed <- struct{}{}:
					default:
					}
				}
			}}
			var lockers []*leasehold.Locker
			for range clients {
				lockers = append(lockers, lockerOn(t, driverOn(t, clientOf(t, members...), nil), opts))
			}
			var history locktest.History
			lease, err := lockers[0].Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			done := history.Believe(lease)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // for what takes seconds where nothing else runs
			defer cancel()
			var all sync.WaitGroup
			for i := range waiters {
				all.Go(func() {
					lease, err := lockers[i%clients].Acquire(ctx, "a")
					if err != nil {
						t.Errorf("a waiter: %v", err)
						return
					}
					done := history.Believe(lease)
					time.Sleep(time.Millisecond)
					done()
					if err := lease.Release(context.Background()); errors.Is(err, leasehold.ErrLost) {
						t.Errorf("Release: %v", err)
					}
				})
			}
			queueOf(t, clientOf(t, members...), "a", clients) // the others wait in their processes
			back := fail(leader)
			for len(renewed) > 0 { // before
				<-renewed
			}
			select {
			case <-renewed: // by another leader: nobody else holds anything yet
			case <-lease.Context().Done():
				t.Errorf("the holder lost it: %v", context.Cause(lease.Context()))
			}
			back()
			done()
			if err := lease.Release(t.Context()); errors.Is(err, leasehold.ErrLost) {
				t.Errorf("Release: %v", err) // unknown it may be: the leader changes
			}
			all.Wait()
			if err := history.Check(); err != nil {
				t.Error(err)
			}
			if n := history.Len(); n != waiters+1 {
				t.Errorf("%d were served, want %d", n, waiters+1)
			}
		})
	}
}

// A client is cut off: for a third of its TTL, and still holds; for twice, and has learned
// before somebody else holds.
func TestCutOff(t *testing.T) {
	t.Parallel()
	const ttl, patience = 3 * time.Second, time.Minute // a busy disk holds a server up for seconds
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	proxy := servers.StartProxy(t, e.Addr())
	l := lockerOn(t, driverOn(t, clientAt(t, "http://"+proxy.Addr()), nil), leasehold.Options{TTL: ttl})
	other := lockerOn(t, driverOn(t, clientOf(t, e), nil), leasehold.Options{TTL: ttl})
	lease, err := l.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	token := lease.Token()
	proxy.Dark()
	time.Sleep(ttl / 3)
	proxy.Pass()
	time.Sleep(ttl / 2)
	if err := lease.Context().Err(); err != nil || lease.Token() != token {
		t.Fatalf("after a short cut: token %d, was %d, %v", lease.Token(), token, context.Cause(lease.Context()))
	}
	cut := time.Now()
	proxy.Dark()
	next, err := other.Acquire(t.Context(), "a", leasehold.Wait(patience))
	if err != nil {
		t.Fatalf("the successor: %v", err)
	}
	if lease.Context().Err() == nil {
		t.Errorf("a successor after %v, while the context of the one that was cut off lives", time.Since(cut))
	}
	if next.Token() <= token {
		t.Errorf("token %d after %d", next.Token(), token)
	}
	time.Sleep(time.Until(cut.Add(2 * ttl)))
	proxy.Pass()
	if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of the lost lease: %v; want ErrLost", err)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Errorf("Release of the successor: %v", err)
	}
	again, err := l.Acquire(t.Context(), "a", leasehold.Wait(patience))
	if err != nil {
		t.Fatalf("Acquire when the link is back: %v", err)
	}
	again.Release(t.Context())
}

// The put is served, its answer is lost: the next Try finds the key, and Release removes it.
func TestPutWithoutReply(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	proxy := servers.StartProxy(t, e.Addr())
	d := driverOn(t, clientAt(t, "http://"+proxy.Addr()), nil)
	try := func(c driver.Claim, limit time.Duration) (driver.Grant, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return c.Try(ctx)
	}
	warm, _ := d.Claim(driver.Request{Resource: "warm", Owner: "w", TTL: 10 * time.Second})
	// unanswered is a claim whose put was served without an answer. The proxy may cut the
	// connection before the put is sent: then another takes its place.
	unanswered := func() (driver.Claim, string) {
		for i := range 10 {
			name := fmt.Sprint("a", i)
			if _, err := try(warm, 5*time.Second); err != nil {
				t.Fatal(err)
			}
			c, _ := d.Claim(driver.Request{Resource: name, Owner: fmt.Sprint("o", i), TTL: 10 * time.Second, Queue: true})
			proxy.DropReplies()
			_, err := try(c, 2*time.Second)
			proxy.Pass()
			if err == nil || errors.Is(err, driver.ErrBusy) {
				t.Fatalf("Try without a reply: %v; want an unknown outcome", err)
			}
			if keys, _ := keysOf(t, direct, name); len(keys) == 1 {
				return c, name
			}
		}
		t.Fatal("no put was served without an answer")
		return nil, ""
	}
	release := func(c driver.Claim, name string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var err error
		for err = c.Release(ctx, driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) && ctx.Err() == nil; err = c.Release(ctx, driver.End{}) {
		}
		if err != nil && !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		queueOf(t, direct, name, 0)
	}
	c, name := unanswered()
	g, err := try(c, 5*time.Second)
	if err != nil {
		t.Fatalf("Try again: %v", err)
	}
	if resp, err := direct.Get(t.Context(), etcdlock.DefaultPrefix+"/"+name+"/", clientv3.WithPrefix()); err != nil || len(resp.Kvs) != 1 || driver.FenceOf(resp.Kvs[0].CreateRevision) != g.Fence {
		t.Errorf("keys after Try again: %v, %v; want the first one", resp, err)
	}
	release(c, name)
	release(unanswered())
}

// A server that was stopped serves what waits in its sockets in any order. Whatever it
// makes of a Try and a Release that nobody waits for any more, nothing is left of a claim
// that was released, however long its driver's session lives.
func TestNothingComesLate(t *testing.T) {
	t.Parallel()
	for _, version := range []string{servers.EtcdDebian, servers.EtcdCurrent} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			e := servers.StartEtcd(t, version)
			direct := clientOf(t, e)
			d := driverOn(t, clientOf(t, e), nil)
			call := func(limit time.Duration, f func(context.Context) error) error {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				return f(ctx)
			}
			for i := range 12 {
				c, _ := d.Claim(driver.Request{Resource: "late", Owner: fmt.Sprint("o", i), TTL: 10 * time.Second, Queue: i%2 == 0})
				try := func(ctx context.Context) error { _, err := c.Try(ctx); return err }
				if i == 0 {
					call(5*time.Second, try) // the session is granted
				}
				resume := e.Pause()
				call(20*time.Millisecond, try)
				call(20*time.Millisecond, claimtest.Release(c))
				resume()
				if err := call(5*time.Second, claimtest.Release(c)); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Fatalf("Release: %v", err)
				}
				next, _ := d.Claim(driver.Request{Resource: "late", Owner: fmt.Sprint("n", i), TTL: 10 * time.Second})
				if err := call(5*time.Second, func(ctx context.Context) error { _, err := next.Try(ctx); return err }); err != nil {
					t.Fatalf("round %d: %v; want a grant: the claim before was released", i, err)
				}
				if err := call(5*time.Second, claimtest.Release(next)); err != nil {
					t.Fatalf("Release of the next: %v", err)
				}
				other, _ := d.Claim(driver.Request{Resource: fmt.Sprint("other", i), Owner: fmt.Sprint("n", i), TTL: 10 * time.Second, Queue: true})
				if err := call(5*time.Second, func(ctx context.Context) error { _, err := other.Try(ctx); return err }); err != nil {
					t.Fatalf("round %d: %v; want a grant of another name", i, err)
				}
			}
			time.Sleep(500 * time.Millisecond) // for what should not come
			if keys, _ := keysOf(t, direct, "late"); len(keys) > 0 {
				t.Errorf("left behind: %q", keys)
			}
		})
	}
}

// A compaction takes away the revisions that a watch, after its link was cut, would go on
// from: waiters are served all the same.
func TestCompactionIsSurvived(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdDebian)
	direct := clientOf(t, e)
	proxy := servers.StartProxy(t, e.Addr())
	holder := lockerOn(t, driverOn(t, direct, nil), leasehold.Options{})
	waiter := lockerOn(t, driverOn(t, clientAt(t, "http://"+proxy.Addr()), nil), leasehold.Options{})
	for range 2 {
		lease, err := holder.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			lease, err := waiter.Acquire(t.Context(), "a", leasehold.Wait(10*time.Second))
			if err == nil {
				err = lease.Release(context.Background())
			}
			got <- err
		}()
		queueOf(t, direct, "a", 2)
		proxy.Dark()
		proxy.Reset()
		var rev int64
		for range 20 {
			resp, err := direct.Put(t.Context(), "elsewhere", "x")
			if err != nil {
				t.Fatal(err)
			}
			rev = resp.Header.Revision
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := direct.Compact(t.Context(), rev); err != nil {
			t.Fatal(err)
		}
		proxy.Pass()
		if err := <-got; err != nil {
			t.Errorf("the waiter: %v", err)
		}
	}
}

// An evicted holder learns the reason.
func TestEvictionTellsTheReason(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdDebian)
	d := driverOn(t, clientOf(t, e), nil)
	l := lockerOn(t, d, leasehold.Options{TTL: time.Minute})
	for _, opt := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		lease, err := l.Acquire(t.Context(), "a", opt...)
		if err != nil {
			t.Fatal(err)
		}
		if err := driverOn(t, clientOf(t, e), nil).Evict(t.Context(), "a", lease.Owner(), "maintenance: a:b é"); err != nil {
			t.Fatal(err)
		}
		ends(t, lease, 2*time.Second)
		if cause := context.Cause(lease.Context()); !strings.Contains(cause.Error(), "maintenance: a:b é") && !strings.Contains(cause.Error(), "deleted") {
			t.Errorf("cause: %v; want the reason", cause)
		}
	}
}

// A member that stands still for a moment has deleted the key by the first of the calls that it is sent.
func TestSlowReleaseIsNoUnknownOne(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, clientOf(t, e), nil)
	for round := range 5 {
		c := claimtest.New(t, d, driver.Request{Resource: "slow", Owner: fmt.Sprint("o", round), TTL: 20 * time.Second})
		claimtest.Granted(t, c)
		resume := e.Pause()
		time.AfterFunc(1300*time.Millisecond, resume)
		if err := c.Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
	}
}

// Nor is the answer to a deletion too slow for a claim that does not know the session of its key, or had no answer to its put.
func TestSlowReleaseOfAKeyThatIsReadFirst(t *testing.T) {
	t.Parallel()
	const ttl, limit = 30 * time.Second, 20 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	for name, try := range map[string]func(t *testing.T, taps *tap, c driver.Claim, req driver.Request) error{
		"another process's key": func(t *testing.T, _ *tap, _ driver.Claim, req driver.Request) error {
			return within(t, limit, tryOf(claimOf(t, driverOn(t, clientOf(t, e), nil), req)))
		},
		"a put without an answer": func(t *testing.T, taps *tap, c driver.Claim, req driver.Request) error {
			taps.loseAnswers(req.Resource, func(context.Context) error { return status.Error(codes.Internal, "the answer is lost") })
			if err := within(t, limit, tryOf(c)); err == nil || errors.Is(err, driver.ErrBusy) {
				t.Fatalf("Try without an answer: %v; want an unknown outcome", err)
			}
			taps.txn.Store(nil)
			return within(t, limit, tryOf(c))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var taps tap
			req := driver.Request{Resource: name, Owner: "o", TTL: ttl}
			c := claimOf(t, driverOn(t, taps.client(t, e), nil), req)
			if err := try(t, &taps, c, req); err != nil {
				t.Fatal(err)
			}
			slow := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
				err := send(ctx)
				if req.Success[0].GetRequestDeleteRange() == nil {
					return err
				}
				select {
				case <-time.After(1300 * time.Millisecond):
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			taps.txn.Store(&slow)
			if err := within(t, limit, claimtest.Release(c)); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
	}
}

// Who is evicted before the driver's watch begins is told the reason without asking.
func TestEvictedBeforeTheWatchBegins(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d, operator := driverOn(t, clientOf(t, e), nil), driverOn(t, clientOf(t, e), nil)
	told := make(chan error, 1)
	c := claimtest.New(t, d, driver.Request{Resource: "early", Owner: "o", TTL: time.Minute, Lost: func(err error) { told <- err }})
	claimtest.Granted(t, c)
	if err := operator.Evict(t.Context(), "early", "o", "tested"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-told:
		if !errors.Is(err, driver.ErrEvicted) || !strings.Contains(err.Error(), "tested") {
			t.Errorf("told %v; want the eviction", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the holder was not told")
	}
}
