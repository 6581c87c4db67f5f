package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

const limitTTL = 10 * time.Second

func sharing(owner string) driver.Request {
	return driver.Request{Resource: "a", Owner: owner, Mode: driver.Shared, TTL: limitTTL, Queue: true}
}

// threeOfThree are holders of all that an operator's limit of three allows.
func threeOfThree(t *testing.T, d *etcdlock.Driver) (holders []driver.Claim) {
	t.Helper()
	limitTo(t, d, 3)
	for _, owner := range []string{"first", "second", "third"} {
		holders = append(holders, claimOf(t, d, sharing(owner)))
		claimtest.Granted(t, holders[len(holders)-1])
	}
	return holders
}

func limitTo(t *testing.T, d *etcdlock.Driver, most int) {
	t.Helper()
	if err := within(t, limitTTL, func(ctx context.Context) error { return d.SetLimit(ctx, "a", most) }); err != nil {
		t.Fatalf("SetLimit(%d): %v", most, err)
	}
}

// showsOf checks how many hold and wait.
func showsOf(t *testing.T, d *etcdlock.Driver, holders, waiters int) {
	t.Helper()
	st, err := d.Inspect(t.Context(), "a")
	if err != nil || len(st.Holders) != holders || len(st.Waiters) != waiters {
		t.Errorf("Inspect shows %d holders and %d waiters, %v; want %d and %d", len(st.Holders), len(st.Waiters), err, holders, waiters)
	}
}

// served waits until the claim is granted, of which its watch may tell a moment late.
func served(t *testing.T, c driver.Claim) {
	t.Helper()
	for end := time.Now().Add(limitTTL); ; time.Sleep(20 * time.Millisecond) {
		err := within(t, limitTTL, tryOf(c))
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the waiter is not served: %v", err)
		}
	}
}

// arm returns when the claim waits, and its watch has told all for a while.
func arm(ctx context.Context, c driver.Claim) (*driver.Busy, error) {
	for {
		_, err := c.Try(ctx)
		busy, ok := errors.AsType[*driver.Busy](err)
		if !ok {
			return nil, fmt.Errorf("Try: %v; want busy", err)
		}
		select {
		case <-busy.Wake:
		case <-time.After(busy.Retry / 4):
			return busy, nil
		}
	}
}

// limitedEnv has the test binary wait for a lease at that address, as in TestStoppedWaiterHearsOfTheLimitFirst.
const limitedEnv = "ETCDLOCK_TEST_LIMITED"

// waitLimited says when it waits, what each later Try was refused with, and when it is granted.
func waitLimited(address string) error {
	d, err := openAddress(address)
	if err != nil {
		return err
	}
	defer d.Close()
	c, err := d.Claim(sharing("waiter"))
	if err != nil {
		return err
	}
	busy, err := arm(context.Background(), c)
	if err != nil {
		return err
	}
	fmt.Println("waits")
	for {
		select {
		case <-busy.Wake:
		case <-time.After(200 * time.Millisecond):
		}
		_, err := c.Try(context.Background())
		if err == nil {
			fmt.Println("granted")
			return c.Release(context.Background(), driver.End{})
		}
		var ok bool
		if busy, ok = errors.AsType[*driver.Busy](err); !ok {
			return err
		}
		fmt.Println("busy")
	}
}

// waiterProcess waits in a process of its own until the test ends; says waits until it says what.
func waiterProcess(t *testing.T, e *servers.Etcd) (cmd *exec.Cmd, says func(what string)) {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), binary, "-test.run=^$")
	cmd.Env = append(os.Environ(), limitedEnv+"="+servers.Endpoints(e)[0])
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	said := bufio.NewScanner(out)
	return cmd, func(what string) {
		t.Helper()
		for said.Scan() {
			if said.Text() == what {
				return
			}
			if said.Text() == "granted" {
				break
			}
		}
		t.Fatalf("the waiter says %q; want %q", said.Text(), what)
	}
}

// A waiter's process is stopped while the limit is lowered and a holder leaves, which would have let it in
// by the former limit. When it goes on, it hears of both in this order.
func TestStoppedWaiterHearsOfTheLimitFirst(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, clientOf(t, e), nil)
	holders := threeOfThree(t, d)
	cmd, says := waiterProcess(t, e)
	says("waits")
	resume := locktest.PauseProcess(t, cmd.Process)
	defer resume()
	limitTo(t, d, 2)
	claimtest.Released(t, holders[0])
	resume()
	for range 10 {
		says("busy")
	}
	showsOf(t, d, 2, 1)
	claimtest.Released(t, holders[1])
	says("granted")
}

// A waiter's process is stopped while a holder leaves, and then the limit is lowered: it has come to hold before it
// knows, and goes on holding.
func TestStoppedWaiterHoldsBeyondALaterLimit(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, clientOf(t, e), nil)
	holders := threeOfThree(t, d)
	cmd, says := waiterProcess(t, e)
	says("waits")
	resume := locktest.PauseProcess(t, cmd.Process)
	defer resume()
	claimtest.Released(t, holders[0])
	limitTo(t, d, 1)
	showsOf(t, d, 3, 0)
	resume()
	says("granted")
}

// A waiter's connections are silent, or cut, while the limit is lowered and a holder leaves.
func TestWaiterWhoseWatchIsCutHearsOfTheLimitFirst(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		e := servers.StartEtcd(t, servers.EtcdCurrent)
		link, err := proxy.Listen(e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(link.Close)
		d := driverOn(t, clientOf(t, e), nil)
		holders := threeOfThree(t, d)
		waiter := claimOf(t, driverOn(t, clientAt(t, link.Addr()), nil), sharing("waiter"))
		if _, err := arm(t.Context(), waiter); err != nil {
			t.Fatal(err)
		}
		link.Dark()
		limitTo(t, d, 2)
		claimtest.Released(t, holders[0])
		if cut {
			link.Reset()
		}
		link.Pass()
		end := time.Now().Add(3 * limitTTL)
		for refused := 0; refused < 10; time.Sleep(50 * time.Millisecond) { // for a grant that should not come
			err := within(t, limitTTL, tryOf(waiter))
			if err == nil || time.Now().After(end) { // connecting again takes a while
				t.Fatalf("cut: %t: Try: %v; want busy", cut, err)
			}
			if errors.Is(err, driver.ErrBusy) {
				refused++
			}
		}
		claimtest.Released(t, holders[1])
		served(t, waiter)
	}
}

// An operator's process ends while it lowers a limit: others find out who held then, unless the server has
// forgotten it. Then those who hold go on, and their places count.
func TestLimitThatWasHalfLowered(t *testing.T) {
	t.Parallel()
	for _, compacted := range []bool{false, true} {
		e := servers.StartEtcd(t, servers.EtcdCurrent)
		direct := clientOf(t, e)
		d, another := driverOn(t, direct, nil), driverOn(t, clientOf(t, e), nil)
		holders := threeOfThree(t, d)
		waiter := claimOf(t, another, sharing("waiter"))
		if _, err := arm(t.Context(), waiter); err != nil {
			t.Fatal(err)
		}
		old, err := direct.Get(t.Context(), "leasehold////a/", clientv3.WithPrefix())
		if err != nil || len(old.Kvs) != 1 {
			t.Fatalf("the limit: %v, %v; want one key", old, err)
		}
		half, err := direct.Txn(t.Context()).Then(clientv3.OpDelete(string(old.Kvs[0].Key)),
			clientv3.OpPut("leasehold////a/half", `{"limit":1,"was":{"limit":3}}`)).Commit()
		if err != nil {
			t.Fatal(err)
		}
		claimtest.Released(t, holders[0])
		shown := 2
		if compacted {
			if _, err := direct.Compact(t.Context(), half.Header.Revision+1); err != nil {
				t.Fatal(err)
			}
			shown = 1
		}
		showsOf(t, d, shown, 3-shown)
		claimtest.Refused(t, waiter)
		showsOf(t, d, shown, 3-shown)
		for _, c := range holders[1:] {
			claimtest.Granted(t, c)
			claimtest.Refused(t, waiter)
			claimtest.Released(t, c)
		}
		served(t, waiter)
		limitTo(t, d, 2)
		showsOf(t, d, 1, 0)
	}
}

// Whoever is refused as too heavy leaves no key, be it alone, behind others, or after it has waited.
func TestTooHeavyLeavesNoKey(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	d := driverOn(t, direct, nil)
	limitTo(t, d, 2)
	for _, ttl := range []time.Duration{limitTTL, time.Minute} {
		for _, queue := range []bool{false, true} {
			req := sharing(fmt.Sprint("heavy ", ttl, queue))
			req.Weight, req.TTL, req.Queue = 3, ttl, queue
			for _, others := range []int{0, 1} {
				light := claimOf(t, d, sharing("light"))
				if others > 0 {
					claimtest.Granted(t, light)
				}
				c := claimOf(t, d, req)
				err := within(t, limitTTL, tryOf(c))
				if !errors.Is(err, driver.ErrTooHeavy) {
					t.Errorf("%+v beside %d: %v; want ErrTooHeavy", req, others, err)
				}
				if keys, _ := keysOf(t, direct, "a"); len(keys) != others {
					t.Errorf("%+v beside %d has left %v", req, others, keys)
				}
				if others > 0 {
					limitTo(t, d, 3)
					req.Weight = 3
					waits := claimOf(t, d, req)
					if err := within(t, limitTTL, tryOf(waits)); !errors.Is(err, driver.ErrBusy) {
						t.Errorf("%+v beside %d of 3: %v; want busy", req, others, err)
					}
					limitTo(t, d, 2)
					claimtest.Eventually(t, "an answer, once its watch has told of the lowered limit", func() bool {
						err = within(t, limitTTL, tryOf(waits))
						return !errors.Is(err, driver.ErrBusy)
					})
					if !errors.Is(err, driver.ErrTooHeavy) {
						t.Errorf("%+v, whose limit was lowered: %v; want ErrTooHeavy", req, err)
					}
					if keys, _ := keysOf(t, direct, "a"); len(keys) != others {
						t.Errorf("%+v has left %v", req, keys)
					}
					claimtest.Released(t, light)
				}
			}
		}
	}
}

// Limits and weights cost no request: each cycle is one transaction to acquire and one deletion. They cost an
// exclusive claim no comparison and no operation either: whoever uses neither sends what it would without them.
func TestWeightsAndLimitsCostNoRequest(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	d := driverOn(t, taps.client(t, e), nil)
	const release = ", 2 compare delete"
	for _, c := range []struct {
		req  driver.Request
		want string
	}{
		{driver.Request{}, "3 compare put else count keys" + release},
		{driver.Request{Queue: true}, "3 compare put keys" + release},
		{driver.Request{Mode: driver.Shared}, "3 compare limit put else count limit keys" + release},
		{driver.Request{Mode: driver.Shared, Queue: true}, "3 compare limit put keys" + release},
		{driver.Request{Mode: driver.Shared, Weight: 3}, "3 compare limit put else count limit keys" + release},
		{driver.Request{Mode: driver.Shared, Weight: 3, Queue: true}, "3 compare limit put keys" + release},
	} {
		for _, most := range []int{0, 3} {
			limitTo(t, d, most)
			c.req.Resource, c.req.Owner, c.req.TTL = "a", "owner", limitTTL
			sent := taps.sent()
			one := claimOf(t, d, c.req)
			claimtest.Granted(t, one)
			claimtest.Released(t, one)
			if got := sent(); got != c.want {
				t.Errorf("%+v with a limit of %d sends %q; want %q", c.req, most, got, c.want)
			}
		}
	}
}

// Whoever waits for an exclusive lock reads no limit.
func TestExclusiveWaitersReadNoLimit(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	holders, d := driverOn(t, clientOf(t, e), nil), driverOn(t, taps.client(t, e), nil)
	req := driver.Request{Resource: "a", Owner: "holder", TTL: limitTTL}
	holder := claimOf(t, holders, req)
	claimtest.Granted(t, holder)
	sent := taps.sent()
	req.Owner, req.Queue = "waiter", true
	waiter := claimOf(t, d, req)
	if _, err := arm(t.Context(), waiter); err != nil {
		t.Fatal(err)
	}
	if got := sent(); strings.Contains(got, "limit") || !strings.Contains(got, "keys") {
		t.Errorf("a waiter sends %q; want no read of a limit", got)
	}
	shares := claimOf(t, d, sharing("shares"))
	sent = taps.sent()
	claimtest.Refused(t, shares)
	if got := sent(); !strings.Contains(got, "limit") {
		t.Errorf("a shared claim sends %q; want a read of the limit", got)
	}
	claimtest.Released(t, holder)
	served(t, waiter)
	claimtest.Released(t, waiter)
	served(t, shares)
}

// sent returns what describes the transactions since then, and ends it.
func (p *tap) sent() (end func() string) {
	var mu sync.Mutex
	var all []string
	note := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		mu.Lock()
		all = append(all, describe(req))
		mu.Unlock()
		return send(ctx)
	}
	p.txn.Store(&note)
	return func() string {
		p.txn.Store(nil)
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(all, ", ")
	}
}

func describe(req *pb.TxnRequest) string {
	var words []string
	if n := len(req.Compare); n > 0 {
		words = append(words, fmt.Sprint(n, " compare"))
	}
	words = append(words, operations(req.Success)...)
	if len(req.Failure) > 0 {
		words = append(append(words, "else"), operations(req.Failure)...)
	}
	return strings.Join(words, " ")
}

func operations(ops []*pb.RequestOp) (words []string) {
	for _, op := range ops {
		read := op.GetRequestRange()
		switch {
		case op.GetRequestPut() != nil:
			words = append(words, "put")
		case op.GetRequestDeleteRange() != nil:
			words = append(words, "delete")
		case read.CountOnly:
			words = append(words, "count")
		case strings.HasPrefix(string(read.Key), "leasehold////"):
			words = append(words, "limit")
		default:
			words = append(words, "keys")
		}
	}
	return words
}

// The limit is lowered after a claim that does not queue has read that there is room, and before its put: it is refused.
func TestLimitIsLoweredBeforeAPut(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	other := driverOn(t, clientOf(t, e), nil)
	limitTo(t, other, 2)
	holder := claimOf(t, other, sharing("holder"))
	claimtest.Granted(t, holder)
	var taps tap
	req := sharing("next")
	req.Queue = false
	next := claimOf(t, driverOn(t, taps.client(t, e), nil), req)
	lowered := false
	puts := func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil }
	lower := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if !lowered && slices.ContainsFunc(req.Success, puts) && len(req.Compare) > 3 { // the second put, that compares what was read
			lowered = true
			limitTo(t, other, 1)
		}
		return send(ctx)
	}
	taps.txn.Store(&lower)
	if err := within(t, limitTTL, tryOf(next)); !errors.Is(err, driver.ErrBusy) || !lowered {
		t.Errorf("Try: %v, lowered meanwhile: %t; want busy", err, lowered)
	}
}

// The answer to each call of SetLimit is lost once: it is made again, and has the same outcome.
func TestLimitWhoseAnswersAreLost(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, clientOf(t, e), nil)
	for lost, calls := 1, 1; lost <= calls; lost++ {
		limitTo(t, d, 0)
		holders := []driver.Claim{claimOf(t, d, sharing("first")), claimOf(t, d, sharing("second"))}
		for _, c := range holders {
			claimtest.Granted(t, c)
		}
		var taps tap
		operator := driverOn(t, taps.client(t, e), nil)
		calls = 0
		lose := func(_ *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
			err := send(ctx)
			if calls++; calls == lost {
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		}
		taps.txn.Store(&lose)
		limitTo(t, operator, 1)
		showsOf(t, d, 2, 0)
		if st, err := d.Inspect(t.Context(), "a"); err != nil || st.Limit != 1 {
			t.Errorf("the answer to call %d is lost: a limit of %d, %v; want 1", lost, st.Limit, err)
		}
		for _, c := range holders {
			claimtest.Granted(t, c)
			claimtest.Released(t, c)
		}
	}
}

// A limit that is damaged stops shared claims, and nobody else.
func TestDamagedLimitStopsSharedClaims(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	d, another := driverOn(t, direct, nil), driverOn(t, clientOf(t, e), nil)
	if _, err := direct.Put(t.Context(), "leasehold////a/a", "?"); err != nil {
		t.Fatal(err)
	}
	shares := claimOf(t, d, sharing("shares"))
	if err := within(t, limitTTL, tryOf(shares)); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("Try: %v; want ErrCorrupt", err)
	}
	claimtest.Released(t, shares)
	req := driver.Request{Resource: "a", Owner: "exclusive", TTL: limitTTL, Queue: true}
	claimtest.Granted(t, claimOf(t, d, req))
	if st, err := d.Inspect(t.Context(), "a"); !errors.Is(err, driver.ErrCorrupt) || len(st.Holders) != 1 {
		t.Errorf("Inspect shows %d holders, %v; want one, and ErrCorrupt", len(st.Holders), err)
	}
	if all, _, err := d.List(t.Context(), "", "", 10); !errors.Is(err, driver.ErrCorrupt) || len(all) != 1 {
		t.Errorf("List shows %d resources, %v; want one, and ErrCorrupt", len(all), err)
	}
	claimtest.Released(t, claimOf(t, another, req)) // by its owner alone
	claimtest.Granted(t, claimOf(t, d, req))
	if err := another.Evict(t.Context(), "a", "exclusive", ""); err != nil {
		t.Errorf("Evict: %v", err)
	}
	for _, most := range []int{2, 0} {
		if _, err := direct.Put(t.Context(), "leasehold////a/a", "?"); err != nil {
			t.Fatal(err)
		}
		if err := d.SetLimit(t.Context(), "a", most); err != nil {
			t.Fatalf("SetLimit of %d: %v", most, err)
		}
		claimtest.Granted(t, shares)
		if st, err := another.Inspect(t.Context(), "a"); err != nil || st.Limit != most || len(st.Holders) != 1 {
			t.Errorf("Inspect shows a limit of %d and %d holders, %v; want %d and one", st.Limit, len(st.Holders), err, most)
		}
		claimtest.Released(t, shares)
		if _, err := direct.Delete(t.Context(), "leasehold////a/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
	}
}

// An operator changes the limit all the time, while many come and go by two drivers. Whoever is granted between two changes
// fits below the limit, with all who hold; and all are served.
func TestLimitsUnderLoad(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, clientOf(t, e), nil)
	lockers := []*leasehold.Locker{lockerOn(t, d, leasehold.Options{}), lockerOn(t, driverOn(t, clientOf(t, e), nil), leasehold.Options{})}
	var changes, limit, used, judged atomic.Int64 // changes is odd while the limit changes
	var work sync.WaitGroup
	over := make(chan struct{})
	for i := range 2 { // who reads no limits, and has the driver of others read them again
		work.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				lease, err := lockers[i].Acquire(t.Context(), "a", leasehold.TTL(limitTTL))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if now := used.Load(); now > 0 {
					t.Errorf("%d are used beside an exclusive lease", now)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	for i := range 10 {
		work.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				weight := int64(1 + rand.N(2))
				before, most := changes.Load(), limit.Load()
				lease, err := lockers[i%2].Acquire(t.Context(), "a", leasehold.Shared(), leasehold.Weight(int(weight)), leasehold.TTL(limitTTL))
				if errors.Is(err, leasehold.ErrTooHeavy) {
					time.Sleep(time.Millisecond)
					continue
				} else if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				now := used.Add(weight)
				if before%2 == 0 && changes.Load() == before && most > 0 {
					if judged.Add(1); now > most {
						t.Errorf("%d of %d are used", now, most)
					}
				}
				time.Sleep(time.Duration(rand.N(4)) * time.Millisecond)
				used.Add(-weight)
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	for end := time.Now().Add(2 * limitTTL); judged.Load() < 500 && time.Now().Before(end); {
		most := rand.N(8)
		changes.Add(1)
		limitTo(t, d, most)
		limit.Store(int64(most))
		changes.Add(1)
		for was := judged.Load(); most > 0 && judged.Load() < was+10 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	if judged.Load() == 0 {
		t.Error("no grant came between two changes")
	}
	changes.Add(1)
	limitTo(t, d, 0)
	close(over)
	work.Wait()
}
