package etcdlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A key that moved to a session of others, of which the driver was not told, does not stay
// there when the session that it came from ends.
func TestMoveWithoutAnswerLeavesNoKey(t *testing.T) {
	t.Parallel()
	const ttl, longer, soon = 5 * time.Second, time.Minute, 5 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	var taps tap
	d := driverOn(t, taps.client(t, e), nil)
	claim := func(name string, ttl time.Duration) driver.Claim {
		return claimOf(t, d, driver.Request{Resource: name, Owner: name, TTL: ttl})
	}
	moves := claim("moves", ttl)
	for _, c := range []driver.Claim{claim("stays", longer), moves} {
		if err := within(t, soon, tryOf(c)); err != nil {
			t.Fatal(err)
		}
	}
	_, from := keysOf(t, direct, "moves")
	taps.loseAnswers("moves", func(context.Context) error { return status.Error(codes.Unavailable, "the answer is lost") })
	err := within(t, soon, func(ctx context.Context) error { _, err := moves.Renew(ctx, longer); return err })
	if err == nil {
		t.Fatal("Renew for longer knows its outcome")
	}
	taps.txn.Store(nil)
	if _, err := direct.Revoke(t.Context(), clientv3.LeaseID(from[0])); err != nil { // as its end does
		t.Fatal(err)
	}
	if err := within(t, soon, tryOf(claim("another", ttl))); err != nil { // finds that it is gone
		t.Fatal(err)
	}
	if err := within(t, soon, claimtest.Release(moves)); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v; want ErrLost", err)
	}
	for end := time.Now().Add(soon); ; time.Sleep(soon / 50) {
		keys, _ := keysOf(t, direct, "moves")
		if len(keys) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v after its holder has lost it, there is %s", soon, keys)
		}
	}
}

// loseAnswers serves the puts of keys of name, which then come to what answer says.
func (p *tap) loseAnswers(name string, answer func(context.Context) error) {
	lose := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		err := send(ctx)
		for _, op := range req.Success {
			if put := op.GetRequestPut(); put != nil && err == nil && strings.Contains(string(put.Key), "/"+name+"/") {
				return answer(ctx)
			}
		}
		return err
	}
	p.txn.Store(&lose)
}

// A Renew for less that has no answer, and is served after a later one for more, shortens nothing.
func TestRenewForLessThatComesLate(t *testing.T) {
	t.Parallel()
	const ttl, less, soon = 20 * time.Second, 5 * time.Second, 5 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	var taps tap
	d := driverOn(t, taps.client(t, e), nil)
	for name, renew := range map[string]func(ctx context.Context, c driver.Claim, ttl time.Duration) error{
		"alone": func(ctx context.Context, c driver.Claim, ttl time.Duration) error {
			_, err := c.Renew(ctx, ttl)
			return err
		},
		"together": func(ctx context.Context, c driver.Claim, ttl time.Duration) error {
			one := []driver.Renewal{{Claim: c, TTL: ttl}}
			d.RenewAll(ctx, one)
			return one[0].Err
		},
	} {
		c := claimOf(t, d, driver.Request{Resource: name, Owner: name, TTL: ttl})
		if err := within(t, soon, tryOf(c)); err != nil {
			t.Fatal(err)
		}
		pass, deliver := taps.holdPuts(t, name)
		if err := within(t, time.Second, func(ctx context.Context) error { return renew(ctx, c, less) }); err == nil {
			t.Fatalf("%s: Renew without an answer succeeds", name)
		}
		pass()
		if err := within(t, soon, func(ctx context.Context) error { return renew(ctx, c, ttl) }); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, was := keysOf(t, direct, name)
		deliver()
		if _, is := keysOf(t, direct, name); !slices.Equal(is, was) {
			t.Errorf("%s: the key went from the lease %x to %x, by a Renew for %v after one for %v", name, was, is, less, ttl)
		}
	}
}

// A waiter that has gone on at another process in between holds by a key in a session of the process that grants it. The
// key would otherwise end with what the other process keeps alive.
func TestWaiterThatReturnsHoldsByItsOwnSession(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	here, there := driverOn(t, clientOf(t, e), nil), driverOn(t, clientOf(t, e), nil)
	claims, busy := queuedBehind(t, e, here, ttl, false)
	keeper := claimOf(t, here, driver.Request{Resource: "keeper", Owner: "k", TTL: ttl})
	if err := within(t, ttl, tryOf(keeper)); err != nil {
		t.Fatal(err)
	}
	away := claimOf(t, there, driver.Request{Resource: "a", Owner: "second", TTL: ttl, Queue: true})
	_, was := keysOf(t, direct, "a")
	if err := within(t, ttl, tryOf(away)); !errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try at another process: %v; want busy", err)
	}
	if _, moved := keysOf(t, direct, "a"); len(moved) != 3 || moved[1] == was[1] {
		t.Fatalf("the keys went from the leases %x to %x; want the second one in a session of the other process", was, moved)
	}
	if err := released(t, claims[0], ttl); err != nil {
		t.Fatal(err)
	}
	<-busy.Wake
	renew := func(ctx context.Context) error { _, err := keeper.Renew(ctx, ttl); return err }
	if err := within(t, ttl, renew); err != nil { // so the session of this process is known to live
		t.Fatal(err)
	}
	if err := within(t, ttl, tryOf(claims[1])); err != nil {
		t.Fatal(err)
	}
	if _, is := keysOf(t, direct, "a"); is[0] != was[1] {
		t.Errorf("it holds by a key in the lease %x; want %x, which its process keeps alive", is[0], was[1])
	}
}

// A waiter that has gone on at another process in between is refused once its key is in a session of this process again.
func TestWaiterThatReturnsWaitsInItsOwnSession(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	ahead := driverOn(t, clientOf(t, e), nil)
	for i, owner := range []string{"first", "second", "third"} {
		c := claimOf(t, ahead, driver.Request{Resource: "a", Owner: owner, TTL: time.Minute, Queue: true})
		if err := within(t, ttl, tryOf(c)); i == 0 && err != nil || i > 0 && !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try of the %s: %v", owner, err)
		}
	}
	req := driver.Request{Resource: "a", Owner: "o", TTL: ttl, Queue: true}
	here, there := claimOf(t, driverOn(t, clientOf(t, e), nil), req), claimOf(t, driverOn(t, clientOf(t, e), nil), req)
	var sessions []int64
	for i, c := range []driver.Claim{here, there, here} { // the watch was not live before, so this reads
		if err := within(t, ttl, tryOf(c)); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try %d: %v; want busy", i, err)
		}
		_, leases := keysOf(t, direct, "a")
		sessions = append(sessions, leases[3])
	}
	if sessions[1] == sessions[0] || sessions[2] != sessions[0] {
		t.Errorf("the key was in the leases %x; want the first one at last", sessions)
	}
}
