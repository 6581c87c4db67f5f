package zklock_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestLimits shares one server among tests of operators' limits that cut only their own links. The suite has more.
func TestLimits(t *testing.T) {
	t.Parallel()
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{Config: []string{longSessions}})
	atOnce(t, 16, on(z, map[string]func(*testing.T, *servers.ZooKeeper){
		"StoppedWaiter":          stoppedWaiterUnderALowerLimit,
		"CutWaiter":              cutWaiterUnderALowerLimit,
		"HoldersBeyondTheLimit":  holdersBeyondTheLimit,
		"GrantedMeanwhile":       grantedWhileTheLimitIsSet,
		"LoweredBeforeTheList":   loweredBeforeTheList,
		"SharedClaimsPayNothing": sharedClaimsPayNothing,
		"Damaged":                damagedLimit,
		"ListFailsBesideDamage":  listFailsBesideDamage,
		"GivenUpList":            givenUpListChangesNothing,
		"Recalls":                recallsUnderALimit,
		"Weights":                otherClientsWaitForWeights,
	}))
}

// weighing is a shared claim that waits in the queue.
func weighing(t testing.TB, d driver.Driver, name string, weight int) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{
		Resource: name, Owner: fmt.Sprint(t.Name(), "/", time.Now().UnixNano()), TTL: d.Features().SessionTTL, Queue: true,
		Mode: driver.Shared, Weight: weight,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func setLimit(t testing.TB, d *zklock.Driver, name string, limit int) {
	t.Helper()
	claimtest.Eventually(t, fmt.Sprint("SetLimit of ", limit), func() bool { return answers(t, d.SetLimit(t.Context(), name, limit)) })
}

// whoHolds are the numbers of holders and waiters, as another sees them.
func whoHolds(t testing.TB, d *zklock.Driver, name string) (holders, waiters int) {
	t.Helper()
	claimtest.Eventually(t, "Inspect", func() bool {
		st, err := d.Inspect(t.Context(), name)
		holders, waiters = len(st.Holders), len(st.Waiters)
		return answers(t, err)
	})
	return holders, waiters
}

// answers reports whether a call that must succeed has. On a busy machine its connection may end, for want of answers.
func answers(t testing.TB, err error) bool {
	t.Helper()
	if err != nil && !errors.Is(err, zk.ErrConnectionClosed) {
		t.Fatal(err)
	}
	return err == nil
}

// stoppedWaiterUnderALowerLimit would hold by the next end. Its process is stopped while the limit is lowered, and that end
// comes.
func stoppedWaiterUnderALowerLimit(t *testing.T, z *servers.ZooKeeper) {
	const name = "stopped-waiter"
	d := lastingOn(t, nil, z.Addr())
	for _, lower := range []bool{false, true} {
		tries := 1
		for ; tries < 10 && !wakesStopped(t, z, d, name, lower); tries++ {
			t.Log("the waiter was stopped for so long that it has tried again")
		}
		if tries == 10 {
			t.Errorf("with the limit lowered: %v: no waiter was woken", lower)
		}
	}
}

// wakesStopped is one waiter. It reports whether the end has woken it.
func wakesStopped(t *testing.T, z *servers.ZooKeeper, d *zklock.Driver, name string, lower bool) bool {
	t.Helper()
	setLimit(t, d, name, 3)
	light, heavy := weighing(t, d, name, 1), weighing(t, d, name, 2)
	claimtest.Granted(t, light)
	claimtest.Granted(t, heavy)
	waiter := start(t, "waiter", "refused", z.Addr(), lasting.String(), name, "2")
	waiter.signal(syscall.SIGSTOP)
	if lower {
		setLimit(t, d, name, 2)
	}
	claimtest.Released(t, heavy)
	waiter.signal(syscall.SIGCONT)
	woken := wokenBy(waiter, lower)
	claimtest.Released(t, light)
	for line := woken; line != "granted"; {
		line = waiter.line("granted, since nobody holds it")
	}
	waiter.end()
	claimtest.Eventually(t, "the end of the waiter's session", func() bool {
		holders, _ := whoHolds(t, d, name)
		if holders > 0 {
			st, _ := d.Inspect(t.Context(), name)
			_ = d.Evict(t.Context(), name, st.Holders[0].Owner.Reveal(), "ended")
		}
		return holders == 0
	})
	return strings.HasPrefix(woken, "woken")
}

// wokenBy is what the waiter says of the end that came while it was stopped: that it was woken, unless
// it tried again before it heard of that.
func wokenBy(waiter *stoppable, lower bool) (line string) {
	waiter.t.Helper()
	for range 3 { // one may be of before, one of the timer
		switch line = waiter.line("woken"); {
		case lower && (line == "granted" || line == "woken with 1 grants"):
			waiter.t.Fatalf("beside another, with 3 of 2, it says %q", line)
		case !lower && line == "woken with 1 grants", lower && line == "woken with 0 grants", line == "granted":
			return line
		}
	}
	return line
}

// cutWaiterUnderALowerLimit hears of the limit and the end over another connection, in no order.
func cutWaiterUnderALowerLimit(t *testing.T, z *servers.ZooKeeper) {
	const name = "cut-waiter"
	p := servers.StartProxy(t, z.Addr())
	d, away := lastingOn(t, nil, z.Addr()), driverOn(t, &zklock.Options{SessionTimeout: 30 * time.Second}, p.Addr())
	setLimit(t, d, name, 3)
	light, heavy, waiter := weighing(t, d, name, 1), weighing(t, d, name, 2), weighing(t, away, name, 2)
	claimtest.Granted(t, light)
	claimtest.Granted(t, heavy)
	busy := claimtest.Refused(t, waiter)
	p.Dark()
	p.Reset()
	setLimit(t, d, name, 2)
	claimtest.Released(t, heavy)
	p.Pass()
	if g, ok := unasked(t, busy); ok {
		t.Errorf("granted beside another, with 3 of 2: %+v", g)
	}
	claimtest.Eventually(t, "an answer over the new connection", func() bool {
		_, err := waiter.Try(t.Context())
		if err == nil {
			t.Fatal("granted beside another, with 3 of 2")
		}
		return isBusy(err)
	})
	claimtest.Released(t, light)
	claimtest.Eventually(t, "a grant when nobody holds it", func() bool { _, err := waiter.Try(t.Context()); return err == nil })
}

// holdersBeyondTheLimit stay holders for all who look, but not their successors.
func holdersBeyondTheLimit(t *testing.T, z *servers.ZooKeeper) {
	const name = "beyond"
	d, operator := lastingOn(t, nil, z.Addr()), lastingOn(t, nil, z.Addr())
	var all []driver.Claim
	for range 4 {
		all = append(all, weighing(t, d, name, 1))
		claimtest.Granted(t, all[len(all)-1])
	}
	setLimit(t, operator, name, 2)
	next := weighing(t, d, name, 1)
	claimtest.Refused(t, next)
	sees(t, operator, name, next, 4, 1, "a limit of 2 beside four")
	setLimit(t, operator, name, 1)
	sees(t, operator, name, next, 4, 1, "lowered again")
	setLimit(t, operator, name, 3)
	sees(t, operator, name, next, 4, 1, "raised, to less than hold")
	for _, c := range all[:2] {
		claimtest.Released(t, c)
	}
	sees(t, operator, name, next, 3, 0, "two have gone")
	claimtest.Granted(t, next)
	for _, c := range append(all[2:], next) {
		claimtest.Released(t, c)
	}
	err := client(t, z.Addr()).Delete(zklock.DefaultPrefix+"/"+name, -1) // as the ensemble does in time
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	for range 3 {
		claimtest.Granted(t, weighing(t, d, name, 1))
	}
	next = weighing(t, d, name, 1)
	claimtest.Refused(t, next)
	sees(t, operator, name, next, 3, 1, "the numbers of the claims have begun anew")
}

// sees requires that operator finds so many holders and waiters. next is the one that waits, or has
// waited just now: on a machine that is too busy to try it in time its place ends.
func sees(t testing.TB, operator *zklock.Driver, name string, next driver.Claim, holders, waiters int, why string) {
	t.Helper()
	want, seen := [2]int{holders, waiters}, [2]int{}
	claimtest.Eventually(t, fmt.Sprintf("%s: %d hold and %d wait", why, holders, waiters), func() bool {
		before := seen
		seen[0], seen[1] = whoHolds(t, operator, name)
		if seen == want {
			return true
		}
		if seen != before {
			t.Logf("%s: %d hold and %d wait; want %d and %d", why, seen[0], seen[1], holders, waiters)
		}
		_, _ = next.Try(t.Context())
		return false
	})
}

// A hold keeps one request back.
type hold struct {
	kind  atomic.Uint32 // of the request, 0: none
	waits chan struct{} // gets a value when it was written
	goOn  chan struct{} // a value lets it go
}

func newHold() *hold { return &hold{waits: make(chan struct{}), goOn: make(chan struct{})} }

func (h *hold) dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, max(timeout, time.Minute))
	return &heldBack{conn, h}, err
}

const kindOfCreation, kindOfMulti = 1, 14

type heldBack struct {
	net.Conn
	h *hold
}

func (c *heldBack) Write(b []byte) (int, error) {
	if kind := c.h.kind.Load(); kind != 0 && len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == kind && c.h.kind.CompareAndSwap(kind, 0) {
		c.h.waits <- struct{}{}
		<-c.h.goOn
	}
	return c.Conn.Write(b)
}

// grantedWhileTheLimitIsSet: a claim is granted after SetLimit has looked who holds, and before it lowers the limit. It is
// a holder for all who look. One that comes later is not.
func grantedWhileTheLimitIsSet(t *testing.T, z *servers.ZooKeeper) {
	const name = "meanwhile"
	held := newHold()
	alone := "/meanwhile" // limits that others change make SetLimit look again
	operator := lastingOn(t, &zklock.Options{Prefix: alone, Dial: held.dial}, z.Addr())
	d := lastingOn(t, &zklock.Options{Prefix: alone}, z.Addr())
	setLimit(t, operator, name, 3)
	first, second, third := weighing(t, d, name, 1), weighing(t, d, name, 1), weighing(t, d, name, 1)
	claimtest.Granted(t, first)
	held.kind.Store(kindOfMulti)
	lowered := make(chan error, 1)
	go func() { lowered <- operator.SetLimit(t.Context(), name, 1) }()
	<-held.waits
	claimtest.Granted(t, second)
	held.kind.Store(kindOfList)
	held.goOn <- struct{}{}
	select {
	case <-held.waits: // it has lowered the limit, and looks again
	case err := <-lowered:
		t.Fatalf("SetLimit does not look again: %v", err)
	}
	claimtest.Refused(t, third)
	held.goOn <- struct{}{}
	if err := <-lowered; err != nil {
		t.Fatal(err)
	}
	sees(t, operator, name, third, 2, 1, "one was granted meanwhile")
}

// loweredBeforeTheList: a claim knows the limit, and then it is lowered, before the claim lists who is there.
func loweredBeforeTheList(t *testing.T, z *servers.ZooKeeper) {
	const name = "lowered-before"
	held := newHold()
	alone := "/lowered-before" // limits that others change make the claim ask again
	d := lastingOn(t, &zklock.Options{Prefix: alone, Dial: held.dial}, z.Addr())
	operator := lastingOn(t, &zklock.Options{Prefix: alone}, z.Addr())
	setLimit(t, operator, name, 2)
	claimtest.Granted(t, weighing(t, d, name, 1))
	second := weighing(t, d, name, 1)
	claimtest.Granted(t, second)
	claimtest.Released(t, second)
	held.kind.Store(kindOfCreation)
	tried := make(chan error, 1)
	go func() { _, err := weighing(t, d, name, 1).Try(t.Context()); tried <- err }()
	<-held.waits
	setLimit(t, operator, name, 1)
	held.goOn <- struct{}{}
	if err := <-tried; !isBusy(err) {
		t.Errorf("Try under a limit that was lowered to 1: %v; want busy", err)
	}
}

func isBusy(err error) bool {
	_, busy := errors.AsType[*driver.Busy](err)
	return busy
}

// sharedClaimsPayNothing for limits while none changes, and for exclusive claims nobody asks.
func sharedClaimsPayNothing(t *testing.T, z *servers.ZooKeeper) {
	tr := &traffic{asked: make(map[int32]int32)}
	alone := "/pays" // limits that others change cost requests
	d := lastingOn(t, &zklock.Options{Prefix: alone, Dial: tr.dial}, z.Addr())
	requests := func(c driver.Claim) int {
		before, _, _, _ := tr.counts()
		claimtest.Granted(t, c)
		claimtest.Released(t, c)
		after, _, _, _ := tr.counts()
		return after - before
	}
	requests(claimOn(t, d, "pays")) // connects, and makes the resource's node
	exclusive := requests(claimOn(t, d, "pays"))
	for range 9 { // now and then a list goes before its creation, and another follows
		exclusive = min(exclusive, requests(claimOn(t, d, "pays")))
	}
	payNoMore := func(name, which string) {
		t.Helper()
		claimtest.Eventually(t, which+" costs as many requests as an exclusive claim", func() bool { return requests(weighing(t, d, name, 1)) == exclusive })
	}
	payNoMore("pays", "a shared claim")
	setLimit(t, lastingOn(t, &zklock.Options{Prefix: alone}, z.Addr()), "pays-limited", 5)
	claimtest.Granted(t, weighing(t, d, "pays-limited", 1)) // makes the node, and stays
	payNoMore("pays-limited", "a claim under a limit")
	payNoMore("pays", "a claim beside a limit")
}

// damagedLimit: nobody knows what it was, and so who holds, until it is set anew.
func damagedLimit(t *testing.T, z *servers.ZooKeeper) {
	const name = "damaged"
	d := lastingOn(t, nil, z.Addr())
	setLimit(t, d, name, 1)
	conn := client(t, z.Addr())
	path := zklock.DefaultPrefix + "/%limits/" + name
	if err := conn.Delete(path, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Create(path, []byte("many"), zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	claimtest.Granted(t, claimOn(t, d, name))
	if _, err := weighing(t, d, name+"-not", 1).Try(t.Context()); err != nil {
		t.Errorf("another name: %v", err)
	}
	if _, err := weighing(t, d, name, 1).Try(t.Context()); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("Try: %v; want ErrCorrupt", err)
	}
	if st, err := d.Inspect(t.Context(), name); !errors.Is(err, driver.ErrCorrupt) || len(st.Holders) != 1 {
		t.Errorf("Inspect: %+v, %v; want the holder and ErrCorrupt", st, err)
	}
	if states, _, err := d.List(t.Context(), name, "", 10); !errors.Is(err, driver.ErrCorrupt) || len(states) != 2 {
		t.Errorf("List: %+v, %v; want both and ErrCorrupt", states, err)
	}
	setLimit(t, d, name, 3)
	if st, err := d.Inspect(t.Context(), name); err != nil || st.Limit != 3 {
		t.Errorf("Inspect: %+v, %v; want the limit of 3", st, err)
	}
}

// recallsUnderALimit: whom only an operator's limit keeps waiting recalls holders, and a lower limit alone does not.
func recallsUnderALimit(t *testing.T, z *servers.ZooKeeper) {
	const name = "recalls-limited"
	d, others := lastingOn(t, nil, z.Addr()), lastingOn(t, nil, z.Addr())
	setLimit(t, d, name, 2)
	var told recall
	wanted, err := d.Claim(driver.Request{
		Resource: name, Owner: t.Name(), TTL: d.Features().SessionTTL, Queue: true, Mode: driver.Shared,
		Wanted: func() { told.calls.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	claimtest.Granted(t, wanted)
	claimtest.Granted(t, weighing(t, others, name, 1))
	setLimit(t, d, name, 1)
	for range 10 {
		renewed(t, d, wanted)
	}
	if n := told.calls.Load(); n > 0 {
		t.Errorf("Wanted was called %d times; nobody waits", n)
	}
	claimtest.Refused(t, weighing(t, others, name, 1))
	told.comes(t, "one waits for the operator's limit")
}

// otherClientsWaitForWeights: a client that knows no weights takes a claim with one for exclusive.
func otherClientsWaitForWeights(t *testing.T, z *servers.ZooKeeper) {
	const name = "weights-and-others"
	d := lastingOn(t, nil, z.Addr())
	holder := weighing(t, d, name, 3)
	claimtest.Granted(t, holder)
	other := zk.NewLock(client(t, z.Addr()), zklock.DefaultPrefix+"/"+name, zk.WorldACL(zk.PermAll))
	locked := make(chan error, 1)
	go func() { locked <- other.Lock() }()
	claimtest.Eventually(t, "the other client waits", func() bool { _, waiters := whoHolds(t, d, name); return waiters == 1 })
	select {
	case err := <-locked:
		t.Errorf("another client's Lock beside a weight of 3: %v", err)
	default:
	}
	claimtest.Released(t, holder)
	if err := <-locked; err != nil {
		t.Error(err)
	}
	claimtest.Refused(t, weighing(t, d, name, 3))
	if err := other.Unlock(); err != nil {
		t.Error(err)
	}
}
