package zklock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestLinks shares one server among tests that cut only their own links.
func TestLinks(t *testing.T) {
	t.Parallel()
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{
		Config: []string{longSessions}, Java: []string{"-Dzookeeper.extendedTypesEnabled=true"},
	})
	atOnce(t, 16, on(z, map[string]func(*testing.T, *servers.ZooKeeper){
		"ShortCutKeepsTheLease":       shortCutKeepsTheLease,
		"ResetKeepsTheLease":          resetKeepsTheLease,
		"LongCutEndsTheLeaseInTime":   longCutEndsTheLeaseInTime,
		"LostReplyLeavesOneNode":      lostReplyLeavesOneNode,
		"GivenUpCallLeavesNothing":    givenUpCallLeavesNothing,
		"OperatorDeletesTheNode":      operatorDeletesTheNode,
		"OperatorDeletesAWaiter":      operatorDeletesAWaiter,
		"EvictionTellsTheReason":      evictionTellsTheReason,
		"OneOfManyLeasesIsDeleted":    oneOfManyLeasesIsDeleted,
		"CloseTellsHolders":           closeTellsHolders,
		"Storm":                       storm,
		"FenceIsTheCzxid":             fenceIsTheCzxid,
		"AbandonedPlaceAfterAnOutage": placeOutlivesAnOutage,
		"GrantsAreWhole":              grantsAreWhole,
		"CloseBesideTries":            closeBesideTries,
		"DeletedWhileAway":            deletedWhileAway,
		"NextIsGranted":               nextIsGranted,
		"WokenWithoutAGrant":          wokenWithoutAGrant,
		"NextOfTheSameSession":        nextOfTheSameSession,
		"NextWasDeleted":              nextWasDeleted,
		"WokenOverANewLink":           wokenOverANewLink,
		"LingersBeforeTheQueue":       lingersBeforeTheQueue,
		"WokenTooLateForAGrant":       wokenTooLateForAGrant,
		"GrantThatNobodyTakes":        grantThatNobodyTakes,
		"UntakenGrantIsLost":          untakenGrantIsLost,
		"WaiterIsAwayForAWhile":       waiterIsAwayForAWhile,
		"SlowTryKeepsThePlace":        slowTryKeepsThePlace,
		"PingBeforeTheIntroduction":   pingBeforeTheIntroduction,
		"ShorterSessionForAWhile":     shorterSessionForAWhile,
		"ListOvertakesTheCreation":    listOvertakesTheCreation,
		"LeaseAfterASleep":            leaseAfterASleep,
		"LingersAtTheSecondAttempt":   lingersAtTheSecondAttempt,
		"LingersAfterItsEviction":     lingersAfterItsEviction,
		"EvictedBetweenReleases":      evictedBetweenReleases,
	}))
}

// session is the length of a session, ttl that of its leases.
const session, ttl = 4500 * time.Millisecond, 3 * time.Second

// kept is the TTL of a lease that is to survive something: a busy machine has seconds for it.
const kept = 3 * ttl

// proxied is a Locker whose link can be cut.
func proxied(t testing.TB, z *servers.ZooKeeper, ttl time.Duration) (*leasehold.Locker, *servers.Proxy) {
	t.Helper()
	p := servers.StartProxy(t, z.Addr())
	d := driverOn(t, &zklock.Options{SessionTimeout: ttl * 3 / 2}, p.Addr())
	return lockerOn(t, d, leasehold.Options{}), p
}

// stays checks that the lease lives on, with the same token.
func stays(t testing.TB, lease *leasehold.Lease, token uint64, ttl time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), ttl*3/2)
	defer cancel()
	err := lease.Extend(ctx, ttl)
	// A call is bounded by half of what is left, which the client may just spend on its pause
	// after an attempt to connect that failed.
	for err != nil && ctx.Err() == nil && lease.Context().Err() == nil {
		err = lease.Extend(ctx, ttl)
	}
	if err != nil || lease.Context().Err() != nil {
		t.Errorf("the lease has ended: %v, %v", err, context.Cause(lease.Context()))
	}
	if lease.Token() != token {
		t.Errorf("token %d, was %d", lease.Token(), token)
	}
	if err := lease.Release(ctx); err != nil {
		t.Errorf("Release: %v", err)
	}
}

func shortCutKeepsTheLease(t *testing.T, z *servers.ZooKeeper) {
	survives(t, z, "short-cut", func(p *servers.Proxy, ttl time.Duration) {
		p.Dark()
		time.Sleep(ttl / 3)
		p.Pass()
	})
}

func resetKeepsTheLease(t *testing.T, z *servers.ZooKeeper) {
	survives(t, z, "reset", func(p *servers.Proxy, ttl time.Duration) {
		for range 5 {
			p.Reset()
			time.Sleep(ttl / 10)
		}
	})
}

// survives checks that a lease lives through what happens to its link. A machine that is busy for
// most of the TTL ends any lease, so longer ones are tried.
func survives(t *testing.T, z *servers.ZooKeeper, name string, happens func(p *servers.Proxy, ttl time.Duration)) {
	for ttl := kept; ; ttl *= 2 {
		l, p := proxied(t, z, ttl)
		lease := mustAcquire(t, l, fmt.Sprint(name, ttl))
		token := lease.Token()
		happens(p, ttl)
		claimtest.Eventually(t, "a renewal, or the end of the lease", func() bool {
			return time.Until(lease.Deadline()) > ttl*3/4 || lease.Context().Err() != nil
		})
		if lease.Context().Err() == nil || ttl == 4*kept {
			stays(t, lease, token, ttl)
			return
		}
	}
}

// longCutEndsTheLeaseInTime: cut off for twice the session's length. The holder's deadline
// comes before the ensemble removes the node, and a new session serves new leases without
// help.
func longCutEndsTheLeaseInTime(t *testing.T, z *servers.ZooKeeper) {
	l, p := proxied(t, z, ttl)
	lease := mustAcquire(t, l, "long-cut")
	token := lease.Token()
	removed := make(chan time.Time, 1)
	path := onlyNode(t, client(t, z.Addr()), "long-cut")
	conn := client(t, z.Addr())
	exists, _, gone, err := conn.ExistsW(path)
	if !exists || err != nil {
		t.Fatalf("%s: %v, %v", path, exists, err)
	}
	go func() {
		<-gone
		removed <- time.Now()
	}()
	p.Dark()
	cut := time.Now()
	<-lease.Context().Done()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, leasehold.ErrLost) {
		t.Errorf("cause: %v", cause)
	}
	select {
	case at := <-removed:
		if early := lease.Deadline().Sub(at); early > 0 {
			t.Errorf("the ensemble removed the node %v before the holder's deadline", early)
		}
	case <-time.After(3 * session):
		t.Fatal("the ensemble did not remove the node")
	}
	time.Sleep(time.Until(cut.Add(2 * session)))
	p.Pass()
	if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release: %v; want ErrLost", err)
	}
	var again *leasehold.Lease
	claimtest.Eventually(t, "a new session", func() (ok bool) {
		again, err = l.Acquire(t.Context(), "long-cut")
		return err == nil
	})
	if again.Token() <= token {
		t.Errorf("token %d after %d", again.Token(), token)
	}
	stays(t, again, again.Token(), ttl)
}

// onlyNode is the path of the one claim on a resource.
func onlyNode(t testing.TB, conn *zk.Conn, name string) string {
	t.Helper()
	parent := zklock.DefaultPrefix + "/" + name
	nodes, _, err := conn.Children(parent)
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%s has %q, %v; want one node", parent, nodes, err)
	}
	return parent + "/" + nodes[0]
}

// lostReplyLeavesOneNode: the answer to the creation is lost with the connection. The same
// Try, repeated, finds its node.
func lostReplyLeavesOneNode(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	d := driverOn(t, &zklock.Options{SessionTimeout: session}, p.Addr())
	c := claimOn(t, d, "lost-reply")
	granted(t, c) // connects, and makes the resource's node
	claimtest.Released(t, c)
	p.DropReplies()
	ctx, cancel := context.WithTimeout(t.Context(), session/6)
	defer cancel()
	if g, err := c.Try(ctx); err == nil || errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try without a reply: %+v, %v", g, err)
	}
	conn := client(t, z.Addr())
	claimtest.Eventually(t, "the node, whose creation was applied", func() bool {
		nodes, _, err := conn.Children(zklock.DefaultPrefix + "/lost-reply")
		return err == nil && len(nodes) == 1
	})
	p.Pass()
	var g driver.Grant
	claimtest.Eventually(t, "the grant", func() (ok bool) {
		ctx, cancel := context.WithTimeout(t.Context(), session)
		defer cancel()
		var err error
		g, err = c.Try(ctx)
		if errors.Is(err, driver.ErrBusy) {
			t.Fatal("busy because of itself")
		}
		return err == nil
	})
	_, stat, err := conn.Exists(onlyNode(t, conn, "lost-reply"))
	if err != nil || driver.FenceOf(stat.Czxid) != g.Fence {
		t.Errorf("fence %d, czxid %d, %v", g.Fence, stat.Czxid, err)
	}
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// givenUpCallLeavesNothing: the link stands still while claims are tried and given up.
// When it moves again nothing is left of them.
func givenUpCallLeavesNothing(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	d := driverOn(t, &zklock.Options{SessionTimeout: session}, p.Addr())
	l := lockerOn(t, d, leasehold.Options{})
	mustAcquire(t, l, "given-up").Release(t.Context())
	for range 5 {
		p.Dark()
		ctx, cancel := context.WithTimeout(t.Context(), session/10)
		if lease, err := l.Acquire(ctx, "given-up"); err == nil {
			t.Fatalf("granted by nobody: %d", lease.Token())
		}
		cancel()
		p.Pass()
		other := lockerOn(t, driverOn(t, &zklock.Options{SessionTimeout: session}, z.Addr()), leasehold.Options{})
		mustAcquire(t, other, "given-up", leasehold.Wait(3*session)).Release(t.Context())
	}
	conn := client(t, z.Addr())
	claimtest.Eventually(t, "no node", func() bool {
		nodes, _, err := conn.Children(zklock.DefaultPrefix + "/given-up")
		return errors.Is(err, zk.ErrNoNode) || err == nil && len(nodes) == 0
	})
}

// operatorDeletesTheNode: the lease ends at once. Writing to the node does not end it.
func operatorDeletesTheNode(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, z.Addr())
	l := lockerOn(t, d, leasehold.Options{})
	lease := mustAcquire(t, l, "deleted")
	conn := client(t, z.Addr())
	path := onlyNode(t, conn, "deleted")
	for range 3 {
		if _, err := conn.Set(path, []byte("somebody was here"), -1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := lease.Extend(t.Context(), 40*time.Second); err != nil {
			t.Fatalf("Extend after somebody wrote to the node: %v", err)
		}
	}
	if err := conn.Delete(path, -1); err != nil {
		t.Fatal(err)
	}
	endsWith(t, lease, "deleted")
	if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release: %v; want ErrLost", err)
	}
}

// soon is long before the renewal of a lease of 40 s.
const soon = 2 * locktest.Margin

// endsWith checks that a lease ends soon, long before a renewal, with a cause that says text.
func endsWith(t testing.TB, lease *leasehold.Lease, text string) {
	t.Helper()
	select {
	case <-lease.Context().Done():
	case <-time.After(soon):
		t.Fatalf("not ended within %v", soon)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, leasehold.ErrLost) || !contains(cause.Error(), text) {
		t.Errorf("cause: %v; want ErrLost and %q", cause, text)
	}
}

// operatorDeletesAWaiter: it queues anew, at the end.
func operatorDeletesAWaiter(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, z.Addr())
	holder, first, second := claimOn(t, d, "waiter"), claimOn(t, d, "waiter"), claimOn(t, d, "waiter")
	g := claimtest.Granted(t, holder)
	refused(t, first)
	conn := client(t, z.Addr())
	parent := zklock.DefaultPrefix + "/waiter"
	nodes, _, err := conn.Children(parent)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if _, stat, err := conn.Get(parent + "/" + n); err == nil && driver.FenceOf(stat.Czxid) != g.Fence {
			if err := conn.Delete(parent+"/"+n, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	refused(t, second)
	refused(t, first)
	claimtest.Released(t, holder)
	refused(t, first)
	granted(t, second)
	claimtest.Released(t, second)
	granted(t, first)
	claimtest.Released(t, first)
}

func evictionTellsTheReason(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, z.Addr())
	l := lockerOn(t, d, leasehold.Options{})
	operator := driverOn(t, nil, z.Addr())
	for _, opts := range [][]leasehold.Option{nil, {leasehold.Limit(2)}} {
		lease := mustAcquire(t, l, "evicted", opts...)
		if err := operator.Evict(t.Context(), "evicted", lease.Owner(), "maintenance: a b é"); err != nil {
			t.Fatal(err)
		}
		endsWith(t, lease, "evicted: maintenance: a b é")
		_ = lease.Release(t.Context()) // it was lost
	}
}

// oneOfManyLeasesIsDeleted: renewals go together, and only the one that is gone ends.
func oneOfManyLeasesIsDeleted(t *testing.T, z *servers.ZooKeeper) {
	const leases = 100
	l := lockerOn(t, driverOn(t, &zklock.Options{SessionTimeout: kept * 3 / 2}, z.Addr()), leasehold.Options{})
	conn := client(t, z.Addr())
	all := make([]*leasehold.Lease, leases)
	for i := range all {
		all[i] = mustAcquire(t, l, many(i))
	}
	if err := conn.Delete(onlyNode(t, conn, many(7)), -1); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * kept)
	for i, lease := range all {
		err := lease.Release(t.Context())
		if (i == 7) != errors.Is(err, leasehold.ErrLost) || i != 7 && err != nil {
			t.Errorf("Release of lease %d: %v", i, err)
		}
	}
}

func many(i int) string { return "many-" + string(rune('A'+i%26)) + string(rune('a'+i/26)) }

// closeTellsHolders: the session ends with the driver, and whoever holds is told before.
func closeTellsHolders(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, nil, z.Addr())
	lease := mustAcquire(t, lockerOn(t, d, leasehold.Options{}), "closed")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, leasehold.ErrLost) {
		t.Errorf("the lease's context after Close: %v; want ErrLost", cause)
	}
	other := lockerOn(t, driverOn(t, nil, z.Addr()), leasehold.Options{})
	mustAcquire(t, other, "closed", leasehold.Wait(soon)).Release(t.Context())
}

func fenceIsTheCzxid(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, nil, z.Addr())
	conn := client(t, z.Addr())
	for range 10 {
		c := claimOn(t, d, "czxid")
		g := claimtest.Granted(t, c)
		_, stat, err := conn.Exists(onlyNode(t, conn, "czxid"))
		if err != nil || driver.FenceOf(stat.Czxid) != g.Fence {
			t.Errorf("fence %d, czxid %d, %v", g.Fence, stat.Czxid, err)
		}
		claimtest.Released(t, c)
	}
}

// placeOutlivesAnOutage: the link is dark for longer than a place lives without a Try, and
// shorter than the session. Those who kept trying keep their order.
func placeOutlivesAnOutage(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	opts := &zklock.Options{SessionTimeout: time.Minute} // nobody renews the holder's lease
	cut := driverOn(t, opts, p.Addr())
	holder, first, second := claimOn(t, driverOn(t, opts, z.Addr()), "outage"), claimOn(t, cut, "outage"), claimOn(t, cut, "outage")
	granted(t, holder)
	refused(t, first)
	refused(t, second)
	p.Dark()
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); {
		for _, c := range []driver.Claim{first, second} {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			_, _ = c.Try(ctx) // fails
			cancel()
		}
	}
	p.Pass()
	claimtest.Released(t, holder)
	refused(t, second)
	granted(t, first)
}

// slowTryKeepsThePlace: the answer to a Try takes longer than a place lives without one. Who
// waited for it has its place, and time for the next Try.
func slowTryKeepsThePlace(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	others := lastingOn(t, nil, z.Addr())
	holder, next, last := claimOn(t, others, "slow"), claimOn(t, driverOn(t, nil, p.Addr()), "slow"), claimOn(t, others, "slow")
	granted(t, holder)
	refused(t, next)
	refused(t, last)
	p.Dark()
	time.AfterFunc(4600*time.Millisecond, p.Pass)
	answered := make(chan error)
	go func() { // a busy machine may also take the servers for away, and waiters ask again
		end, err := time.Now().Add(time.Minute), error(nil)
		for {
			if _, err = next.Try(t.Context()); errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
				break
			}
		}
		answered <- err
	}()
	for waiting := true; waiting; {
		select {
		case err := <-answered:
			if !errors.Is(err, driver.ErrBusy) {
				t.Fatalf("the slow Try: %v, want ErrBusy", err)
			}
			waiting = false
		case <-time.After(time.Second):
			refused(t, last)
		}
	}
	time.Sleep(500 * time.Millisecond) // the next Try is due later
	claimtest.Released(t, holder)
	refused(t, last)
	granted(t, next)
}

// slowIntroduction writes what tells user and password late, when it is armed.
type slowIntroduction struct {
	net.Conn
	armed *atomic.Bool
}

func (c slowIntroduction) Write(b []byte) (int, error) {
	const kind = 100
	if len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == kind && c.armed.CompareAndSwap(true, false) {
		time.Sleep(800 * time.Millisecond)
	}
	return c.Conn.Write(b)
}

// pingBeforeTheIntroduction: on a new link the driver pings before the client tells user and
// password, and with that asks for its watches. That costs no more than the delay.
func pingBeforeTheIntroduction(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	var armed atomic.Bool
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		return slowIntroduction{conn, &armed}, err
	}
	d := driverOn(t, &zklock.Options{User: "u", Password: "p", Prefix: "/introduced", Dial: dial}, p.Addr())
	c := claimOn(t, d, "ping")
	granted(t, c)
	if _, err := c.Renew(t.Context(), d.Features().SessionTTL); err != nil { // watches the node
		t.Fatal(err)
	}
	armed.Store(true)
	p.Reset()
	claimtest.Eventually(t, "the late introduction", func() bool { return !armed.Load() })
	began := time.Now()
	_, err := c.Renew(t.Context(), d.Features().SessionTTL)
	if took := time.Since(began); err != nil || took > 3*time.Second {
		t.Errorf("Renew behind a pause of 0.8 s: %v, after %v", err, took)
	}
}
