package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

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
		for end = time.Now().Add(limitTTL); within(t, limitTTL, tryOf(waiter)) != nil; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("cut: %t: the waiter is not served", cut)
			}
		}
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
		claimtest.Granted(t, waiter)
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
				if err := within(t, limitTTL, tryOf(c)); !errors.Is(err, driver.ErrTooHeavy) {
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
					if err := within(t, limitTTL, tryOf(waits)); !errors.Is(err, driver.ErrTooHeavy) {
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

// Limits and weights cost no request: each cycle is one transaction to acquire and one to release.
func TestWeightsAndLimitsCostNoRequest(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	d := driverOn(t, taps.client(t, e), nil)
	var sent atomic.Int64
	count := func(_ *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		sent.Add(1)
		return send(ctx)
	}
	taps.txn.Store(&count)
	for _, most := range []int{0, 3} {
		limitTo(t, d, most)
		for _, req := range []driver.Request{{}, {Mode: driver.Shared}, {Mode: driver.Shared, Weight: 3}} {
			for _, queue := range []bool{false, true} {
				req.Resource, req.Owner, req.TTL, req.Queue = "a", "owner", limitTTL, queue
				sent.Store(0)
				c := claimOf(t, d, req)
				claimtest.Granted(t, c)
				claimtest.Released(t, c)
				if n := sent.Load(); n != 2 {
					t.Errorf("%+v with a limit of %d: %d requests; want 2", req, most, n)
				}
			}
		}
	}
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
	lower := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if !lowered && len(req.Success) > 0 && req.Success[0].GetRequestPut() != nil && len(req.Compare) > 3 { // the second put, that compares what was read
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
}
