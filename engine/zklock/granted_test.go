package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// unasked waits until busy wakes, and returns the grant that came with it, if one did.
func unasked(t testing.TB, busy *driver.Busy) (g driver.Grant, ok bool) {
	t.Helper()
	select {
	case <-busy.Wake:
	case <-time.After(20 * time.Second):
		t.Fatal("the waiter was never woken")
	}
	select {
	case g = <-busy.Granted:
		return g, true
	default:
		return g, false
	}
}

// nextIsGranted: the first of the queue has the lease without another question.
func nextIsGranted(t *testing.T, z *servers.ZooKeeper) {
	holder, next := claimOn(t, driverOn(t, nil, z.Addr()), "next"), claimOn(t, driverOn(t, nil, z.Addr()), "next")
	g := claimtest.Granted(t, holder)
	busy := claimtest.Refused(t, next)
	claimtest.Released(t, holder)
	got, ok := unasked(t, busy)
	if !ok || got.Fence <= g.Fence || got.TTL <= 0 {
		t.Fatalf("with the wake-up came %+v, %v, after fence %d", got, ok, g.Fence)
	}
	if again := claimtest.Granted(t, next); again.Fence != got.Fence {
		t.Errorf("fence %d of the same lease, was %d", again.Fence, got.Fence)
	}
	if err := next.Release(t.Context(), driver.End{}); err != nil {
		t.Error(err)
	}
}

// wokenWithoutAGrant: whoever is woken by something else than the end of the last claim
// ahead has to look.
func wokenWithoutAGrant(t *testing.T, z *servers.ZooKeeper) {
	d, other := driverOn(t, nil, z.Addr()), driverOn(t, nil, z.Addr())
	holder, second, third := claimOn(t, d, "look"), claimOn(t, other, "look"), claimOn(t, d, "look")
	claimtest.Granted(t, holder)
	noted, behind := claimtest.Refused(t, second), claimtest.Refused(t, third)
	if err := holder.Note(t.Context(), "changed"); err != nil {
		t.Fatal(err)
	}
	if g, ok := unasked(t, noted); ok {
		t.Errorf("granted beside the holder, who only changed its note: %+v", g)
	}
	claimtest.Refused(t, second)
	if err := second.Release(t.Context(), driver.End{}); err != nil { // it gives up
		t.Fatal(err)
	}
	if g, ok := unasked(t, behind); ok {
		t.Errorf("granted beside the holder, because another gave up: %+v", g)
	}
}

// nextOfTheSameSession: both nodes could have ended with their session, in any order.
func nextOfTheSameSession(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, nil, z.Addr())
	holder, next := claimOn(t, d, "one-session"), claimOn(t, d, "one-session")
	claimtest.Granted(t, holder)
	busy := claimtest.Refused(t, next)
	claimtest.Released(t, holder)
	if g, ok := unasked(t, busy); ok {
		t.Errorf("granted after a claim of the same session: %+v", g)
	}
	claimtest.Granted(t, next)
}

// nextWasDeleted: an operator deletes the node of the first of the queue, before the holder
// goes. It holds nothing then, and the second of the queue does.
func nextWasDeleted(t *testing.T, z *servers.ZooKeeper) {
	const rounds = 20
	conn := client(t, z.Addr())
	holders, waiters := driverOn(t, nil, z.Addr()), driverOn(t, nil, z.Addr())
	for range rounds {
		holder, next := claimOn(t, holders, "next-deleted"), claimOn(t, waiters, "next-deleted")
		claimtest.Granted(t, holder)
		first := onlyNode(t, conn, "next-deleted")
		busy := claimtest.Refused(t, next)
		nodes, _, err := conn.Children(zklock.DefaultPrefix + "/next-deleted")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if path := zklock.DefaultPrefix + "/next-deleted/" + n; path != first {
				if err := conn.Delete(path, -1); err != nil {
					t.Fatal(err)
				}
			}
		}
		claimtest.Released(t, holder)
		if g, ok := unasked(t, busy); ok {
			t.Fatalf("granted without a node: %+v", g)
		}
		claimtest.Granted(t, next) // in the queue again
		claimtest.Released(t, next)
	}
}

// wokenOverANewLink: what happened while the link was down comes in any order.
func wokenOverANewLink(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	holder, next := claimOn(t, driverOn(t, nil, z.Addr()), "new-link"), claimOn(t, driverOn(t, nil, p.Addr()), "new-link")
	claimtest.Granted(t, holder)
	busy := claimtest.Refused(t, next)
	p.Dark()
	p.Reset()
	claimtest.Released(t, holder)
	p.Pass()
	if g, ok := unasked(t, busy); ok {
		t.Errorf("granted by what was heard on another connection: %+v", g)
	}
	claimtest.Eventually(t, "the grant", func() bool { _, err := next.Try(t.Context()); return err == nil })
}

// lingersBeforeTheQueue: what lingers takes the place of the claim that the first of the queue
// waits for, whenever that asks.
func lingersBeforeTheQueue(t *testing.T, z *servers.ZooKeeper) {
	const rounds = 20
	holders := driverOn(t, withTTLNodes, z.Addr())
	for i, waiters := range []driver.Driver{driverOn(t, withTTLNodes, z.Addr()), driverOn(t, nil, z.Addr())} {
		for round := range rounds {
			name := fmt.Sprintf("lingers-%d-%d", i, round)
			holder, next := claimOn(t, holders, name), claimOn(t, waiters, name)
			claimtest.Granted(t, holder)
			busy := claimtest.Refused(t, next)
			lingers := make(chan error, 1)
			go func() { lingers <- holder.Release(t.Context(), driver.End{Linger: time.Minute}) }()
			if g, ok := unasked(t, busy); ok {
				t.Fatalf("granted what lingers: %+v", g)
			}
			busy = claimtest.Refused(t, next)
			if err := <-lingers; err != nil {
				t.Fatal(err)
			}
			claimtest.Refused(t, next) // it has heard of the deletion
			select {
			case g := <-busy.Granted:
				t.Fatalf("granted what lingers: %+v", g)
			default:
			}
			claimtest.Released(t, next)
		}
	}
}

// wokenTooLateForAGrant: most of a lease by the last question would be over. The waiter keeps its
// place and asks. On a busy machine its session may end before.
func wokenTooLateForAGrant(t *testing.T, z *servers.ZooKeeper) {
	const rounds = 5
	for round := range rounds {
		if wokenLate(t, z, fmt.Sprint("late-", round)) {
			return
		}
	}
	t.Errorf("the waiter was not granted in time, %d times", rounds)
}

// wokenLate reports whether the waiter was granted before its session, and then its place, could
// end.
func wokenLate(t *testing.T, z *servers.ZooKeeper, name string) (inTime bool) {
	const session = 3600 * time.Millisecond
	d, others := driverOn(t, &zklock.Options{SessionTimeout: session}, z.Addr()), lastingOn(t, nil, z.Addr())
	holder, next, last := claimOn(t, others, name), claimOn(t, d, name), claimOn(t, others, name)
	granted(t, holder)
	ends := time.Now().Add(session)
	busy := refused(t, next)
	refused(t, last)
	time.Sleep(d.Features().SessionTTL * 3 / 4)
	claimtest.Released(t, holder)
	select {
	case <-busy.Wake:
	case <-time.After(time.Until(ends)):
		return false
	}
	if len(busy.Granted) > 0 {
		t.Errorf("granted %+v by a question that is longer ago", <-busy.Granted)
	}
	for {
		_, err := next.Try(t.Context())
		switch {
		case time.Now().After(ends):
			return false
		case errors.Is(err, driver.ErrBusy):
			t.Fatal("it has lost its place")
		case err == nil:
			return true
		}
	}
}

// grantThatNobodyTakes lasts no longer than the place of one who does not come back.
func grantThatNobodyTakes(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, z.Addr())
	holder, gone, last := claimOn(t, driverOn(t, nil, z.Addr()), "untaken"), claimOn(t, d, "untaken"), claimOn(t, driverOn(t, nil, z.Addr()), "untaken")
	claimtest.Granted(t, holder)
	busy := claimtest.Refused(t, gone)
	claimtest.Refused(t, last)
	claimtest.Released(t, holder)
	<-busy.Wake
	if len(busy.Granted) == 0 {
		t.Fatal("no grant came, so that this test shows nothing")
	}
	claimtest.Eventually(t, "another's grant", func() bool { _, err := last.Try(t.Context()); return err == nil }) // of a lease of 40 s
	if _, ok := unasked(t, busy); ok {
		t.Error("the grant that was taken back is still to be had")
	}
}

// untakenGrantIsLost: who has not taken it did not hold it, and queues anew.
func untakenGrantIsLost(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, nil, z.Addr())
	holder := claimOn(t, driverOn(t, nil, z.Addr()), "untaken-lost")
	lost := make(chan error, 1)
	next, err := d.Claim(driver.Request{
		Resource: "untaken-lost", Owner: "next", TTL: d.Features().SessionTTL, Queue: true, Lost: func(cause error) { lost <- cause },
	})
	if err != nil {
		t.Fatal(err)
	}
	claimtest.Granted(t, holder)
	busy := claimtest.Refused(t, next)
	claimtest.Released(t, holder)
	<-busy.Wake
	if len(busy.Granted) == 0 {
		t.Fatal("no grant came, so that this test shows nothing")
	}
	conn := client(t, z.Addr())
	if err := conn.Delete(onlyNode(t, conn, "untaken-lost"), -1); err != nil {
		t.Fatal(err)
	}
	claimtest.Eventually(t, "the driver hears of it", func() bool { return len(busy.Granted) == 0 || len(lost) > 0 })
	claimtest.Granted(t, next)
	if len(lost) > 0 {
		t.Errorf("told of the loss of what it did not have: %v", <-lost)
	}
}

// waiterIsAwayForAWhile: its calls end before its place does, but that is no end of its
// context.
func waiterIsAwayForAWhile(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	holder, next := claimOn(t, driverOn(t, nil, z.Addr()), "away"), claimOn(t, driverOn(t, nil, p.Addr()), "away")
	claimtest.Granted(t, holder)
	claimtest.Refused(t, next)
	p.Dark()
	p.Reset()
	for range 3 {
		if _, err := next.Try(t.Context()); err == nil || errors.Is(err, driver.ErrBusy) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Try without a link: %v", err)
		}
	}
}
