package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A cluster is N engines, to which any number of processes connect.
type cluster []*memory.Server

func newCluster(n int) cluster {
	c := make(cluster, n)
	for i := range c {
		c[i] = memory.NewServer()
	}
	return c
}

// connect is one process's view, with a link that can fail to each node.
func (c cluster) connect(t testing.TB, opts *quorum.Options) (*quorum.Driver, []*locktest.Faulty) {
	t.Helper()
	var links []*locktest.Faulty
	var nodes []driver.Driver
	for _, s := range c {
		f := locktest.NewFaulty(s.Connect())
		links, nodes = append(links, f), append(nodes, f)
	}
	d, err := quorum.New(nodes, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		for _, l := range links {
			l.Close()
		}
	})
	return d, links
}

func locker(t testing.TB, d driver.Driver) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestConformance(t *testing.T) {
	c := newCluster(3)
	locktest.Run(t, locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, _ := c.connect(t, &quorum.Options{NodeTimeout: time.Second})
			return d
		},
		NoHolderFence:  true,
		CallGoroutines: 12, // a node that takes no batch is asked for up to 64 renewals at once
	})
}

func TestNewRefusesWhatIsNoQuorum(t *testing.T) {
	m := func(n int) (all []driver.Driver) {
		for range n {
			all = append(all, memory.New())
		}
		return all
	}
	for _, n := range []int{0, 1, 2, 4, 6} {
		if _, err := quorum.New(m(n), nil); err == nil {
			t.Errorf("%d nodes were accepted", n)
		}
	}
	for _, none := range []driver.Driver{nil, (*memory.Driver)(nil)} {
		if _, err := quorum.New(append(m(2), none), nil); err == nil {
			t.Errorf("the node %#v was accepted", none)
		}
	}
	twice := m(3)
	twice[2] = twice[0]
	if _, err := quorum.New(twice, nil); !errors.Is(err, quorum.ErrSameNode) {
		t.Errorf("one driver given twice: %v", err)
	}
	unfenced := m(3)
	unfenced[1] = struct{ driver.Driver }{unfenced[1]} // hides RaiseFence
	if _, err := quorum.New(unfenced, nil); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a node that cannot raise its fence: %v", err)
	}
	d, err := quorum.New(unfenced, &quorum.Options{NoFencing: true})
	if err != nil || d.Features().Fencing {
		t.Errorf("NoFencing: %v, %v", d, err)
	}
}

// named is a node that tells which server it is.
type named struct {
	*memory.Driver
	id string
}

func (n named) Identify(context.Context) (string, error) { return n.id, nil }

func TestSameServerTwiceIsRefused(t *testing.T) {
	server := memory.NewServer()
	d, err := quorum.New([]driver.Driver{
		named{server.Connect(), "a"}, named{memory.New(), "b"}, named{server.Connect(), "a"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Two of three answer: the third is not counted, whichever of the twins it is.
	locks := locker(t, d)
	lease, err := locks.TryAcquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	lease.Release(t.Context())

	d, err = quorum.New([]driver.Driver{
		named{server.Connect(), "a"}, named{server.Connect(), "a"}, named{server.Connect(), "a"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker(t, d).TryAcquire(t.Context(), "b"); !errors.Is(err, quorum.ErrSameNode) {
		t.Errorf("three times the same server: %v", err)
	}
}

// Every mask of nodes that are down or hung, when acquiring and when releasing: a
// majority works, and less is an error in bounded time that leaves nothing behind.
func TestAllMasksOfNodes(t *testing.T) {
	for _, fault := range []struct {
		name string
		f    locktest.Fault
	}{{"down", locktest.LoseRequest}, {"hung", locktest.HangRequest}, {"mute", locktest.LoseReply}, {"hung after", locktest.HangReply}} {
		for mask := range uint(1 << 5) {
			t.Run(fmt.Sprintf("%s %05b", fault.name, mask), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testMask(t, fault.f, mask) })
			})
		}
	}
}

func testMask(t *testing.T, fault locktest.Fault, mask uint) {
	c := newCluster(5)
	d, links := c.connect(t, nil)
	other, _ := c.connect(t, nil)
	set := func(f locktest.Fault, calls ...locktest.Op) {
		for i, l := range links {
			for _, op := range calls {
				if mask&(1<<i) != 0 {
					l.Always(op, f)
				}
			}
		}
	}
	works := bits.OnesCount(mask) <= 2
	set(fault, locktest.OpTry, locktest.OpRaiseFence, locktest.OpRelease)
	start := time.Now()
	lease, err := locker(t, d).TryAcquire(t.Context(), "a")
	if took := time.Since(start); took > 500*time.Millisecond {
		t.Errorf("acquire took %v", took)
	}
	if works != (err == nil) {
		t.Fatalf("acquire with %d nodes out: %v", bits.OnesCount(mask), err)
	}
	if err != nil {
		if report, ok := errors.AsType[*quorum.NodesError](err); !ok || len(report.Nodes) != 5 || errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("%v is no report of the nodes", err)
		}
		set(nil, locktest.OpTry, locktest.OpRaiseFence, locktest.OpRelease)
		// What could not be taken back ends with its TTL.
		free, err := locker(t, other).Acquire(t.Context(), "a", leasehold.Wait(11*time.Second))
		if err != nil {
			t.Fatalf("after the nodes came back: %v", err)
		}
		free.Release(t.Context())
		return
	}
	if _, err := locker(t, other).TryAcquire(t.Context(), "a"); !errors.Is(err, leasehold.ErrBusy) {
		t.Errorf("a second holder: %v", err)
	}
	start = time.Now()
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	if took := time.Since(start); took > 500*time.Millisecond {
		t.Errorf("release took %v", took)
	}
	next, err := locker(t, other).Acquire(t.Context(), "a", leasehold.Wait(11*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	next.Release(t.Context())
}

// One hung node costs nothing; the others decide.
func TestHungNodeDoesNotDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, links := newCluster(5).connect(t, nil)
		locks := locker(t, d)
		links[2].Sever()
		start := time.Now()
		for range 1000 {
			lease, err := locks.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(start); took > 1050*time.Millisecond {
			t.Errorf("1000 cycles of a millisecond beside a hung node took %v", took)
		}
		calls := links[2].Calls(locktest.OpTry) + links[2].Calls(locktest.OpRelease)
		if most := 64 + int(time.Since(start)/quorum.DefaultNodeTimeout); calls > most {
			t.Errorf("%d calls went to the hung node, want at most %d", calls, most)
		}
	})
}

// A node that answers after the claim was refused is released as well, although nobody
// gives the claim up: who waits tries again with it.
func TestLateYesIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		d, links := c.connect(t, nil)
		links[0].Next(locktest.OpTry, locktest.LoseRequest)
		links[1].Next(locktest.OpTry, locktest.LoseRequest)
		links[2].Next(locktest.OpTry, locktest.SlowReply(30*time.Millisecond))
		if _, err := newClaim(t, d, "mine").Try(t.Context()); err == nil {
			t.Fatal("granted by one of three")
		}
		time.Sleep(time.Second)
		for i, s := range c {
			st, err := s.Connect().Inspect(t.Context(), "a")
			if err != nil || len(st.Holders) > 0 {
				t.Errorf("node %d: %+v, %v", i+1, st.Holders, err)
			}
		}
	})
}

// Tokens grow although majorities change from grant to grant and the nodes' own fences
// are far apart.
func TestFenceGrowsOverChangingMajorities(t *testing.T) {
	c := newCluster(5)
	for i, s := range c { // as clocks that differ would make them
		s.Connect().RaiseFence(t.Context(), "a", driver.FenceOf(time.Now().UnixMicro()+int64(i)*1e9))
	}
	d, links := c.connect(t, &quorum.Options{NodeTimeout: 2 * time.Second})
	locks := locker(t, d)
	var last uint64
	for range 200 {
		var out []*locktest.Faulty
		for _, i := range rand.Perm(5)[:2] {
			links[i].Always(locktest.OpTry, locktest.LoseRequest)
			out = append(out, links[i])
		}
		lease, err := locks.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if lease.Token() <= last {
			t.Fatalf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, l := range out {
			l.Always(locktest.OpTry, nil)
		}
	}
}

func TestFenceThatReachesNoMajorityIsNotGivenOut(t *testing.T) {
	c := newCluster(3)
	c[0].Connect().RaiseFence(t.Context(), "a", driver.FenceOf(uint64(1<<51)))
	d, links := c.connect(t, nil)
	links[2].Always(locktest.OpTry, locktest.LoseRequest)
	links[1].Always(locktest.OpRaiseFence, locktest.LoseRequest)
	if _, err := locker(t, d).TryAcquire(t.Context(), "a"); !errors.Is(err, locktest.ErrInjected) {
		t.Fatalf("got %v, want the error of the node that did not take the fence", err)
	}
}

func TestRenewalNeedsTheMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		d, links := c.connect(t, nil)
		lease, err := locker(t, d).Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		links[0].Sever()
		time.Sleep(time.Minute)
		if lease.Context().Err() != nil {
			t.Fatal("lost with a majority up")
		}
		links[1].Sever()
		<-lease.Context().Done()
		other, _ := c.connect(t, nil)
		start := time.Now()
		next, err := locker(t, other).Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("free only after %v", took)
		}
		next.Release(t.Context())
		lease.Release(t.Context())
	})
}

// Several processes contend while nodes come and go.
func TestNoTwoHoldersWhileNodesComeAndGo(t *testing.T) {
	c := newCluster(5)
	var history locktest.History
	stop := make(chan struct{})
	var work sync.WaitGroup
	for range 4 {
		d, links := c.connect(t, &quorum.Options{NodeTimeout: 10 * time.Millisecond})
		locks := locker(t, d)
		work.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				i := rand.N(len(links))
				links[i].Next(locktest.Op(rand.N(3)), locktest.LoseReply, locktest.LoseRequest, locktest.HangReply)
				ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
				lease, err := locks.Acquire(ctx, "a", leasehold.TTL(100*time.Millisecond))
				cancel()
				if err != nil {
					continue
				}
				done := history.Believe(lease)
				time.Sleep(rand.N(2 * time.Millisecond))
				done()
				lease.Release(context.Background())
			}
		})
	}
	const enough = 50
	for start := time.Now(); time.Since(start) < 3*time.Second || history.Len() < enough && time.Since(start) < 3*time.Minute; {
		time.Sleep(10 * time.Millisecond)
	}
	close(stop)
	work.Wait()
	if err := history.Check(); err != nil {
		t.Error(err)
	}
	if history.Len() < enough {
		t.Errorf("only %d leases", history.Len())
	}
}

func newClaim(t *testing.T, d driver.Driver, owner string) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: "a", Owner: owner, TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The roll-back of a Try must not take what the next one was granted. On one processor
// the newest goroutine often runs first.
func TestRollBackDoesNotOvertake(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for round := range 50 {
		c, patient := newCluster(3), &quorum.Options{NodeTimeout: time.Second}
		d, links := c.connect(t, patient)
		other, _ := c.connect(t, patient)
		links[0].Always(locktest.OpTry, locktest.LoseRequest)
		links[1].Next(locktest.OpTry, locktest.LoseRequest)
		mine := newClaim(t, d, "mine")
		if _, err := mine.Try(t.Context()); err == nil {
			t.Fatal("granted by one of three")
		}
		if _, err := mine.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		if _, err := newClaim(t, other, "other").Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("round %d: a second holder: %v", round, err)
		}
	}
}

// A caller in a hurry says nothing about the nodes.
func TestImpatientCallerTakesNoNodeDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, links := newCluster(3).connect(t, nil)
		for _, l := range links {
			l.Always(locktest.OpTry, locktest.SlowReply(2*time.Millisecond))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		d.Inspect(ctx, "a")
		locks := locker(t, d)
		var wg sync.WaitGroup
		for i := range 2000 { // many more than a node may have in flight
			wg.Go(func() {
				lease, err := locks.TryAcquire(t.Context(), fmt.Sprint(i))
				if err != nil {
					t.Errorf("all nodes are up: %v", err)
					return
				}
				lease.Release(t.Context())
			})
		}
		wg.Wait()
	})
}

func TestHungNodeCostsOneTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		d, links := c.connect(t, nil)
		if _, err := newClaim(t, c[1].Connect(), "foreign").Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		links[2].Sever()
		mine := newClaim(t, d, "mine") // one yes, one no: the hung node would decide
		for range 4 {
			start := time.Now()
			if _, err := mine.Try(t.Context()); err == nil {
				t.Fatal("granted by one of three")
			}
			if took := time.Since(start); took > quorum.DefaultNodeTimeout {
				t.Errorf("a try took %v", took)
			}
		}
	})
}

// What a node lost of a grant that was rolled back does not count for a later one.
func TestOldLossOfANodeDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		d, links := c.connect(t, nil)
		var told error
		mine, err := d.Claim(driver.Request{Resource: "a", Owner: "mine", TTL: 10 * time.Second, Lost: func(err error) { told = err }})
		if err != nil {
			t.Fatal(err)
		}
		links[1].Next(locktest.OpTry, locktest.LoseRequest)
		links[2].Next(locktest.OpTry, locktest.LoseRequest)
		links[0].Always(locktest.OpRelease, locktest.LoseRequest)
		mine.Try(t.Context())
		synctest.Wait()
		c[0].Flush()
		links[0].Always(locktest.OpRelease, nil)
		if _, err := mine.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c[1].Flush()
		if told != nil {
			t.Errorf("told %v, though two of three nodes hold it", told)
		}
		if _, err := mine.Renew(t.Context(), 10*time.Second); err != nil {
			t.Error(err)
		}
	})
}

// Waiters of a quorum have no places, so that its holders are told of none, nor of those at a node.
func TestHoldersAreNotToldOfWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(3)
		d, links := c.connect(t, nil)
		if f := d.Features(); f.Tells || f.Recalls || f.Keeps {
			t.Errorf("a quorum declares %+v", f)
		}
		told := 0
		mine, err := d.Claim(driver.Request{Resource: "a", Owner: "mine", TTL: 10 * time.Second, Wanted: func() { told++ }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mine.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, node := range links {
			waits, err := node.Claim(driver.Request{Resource: "a", Owner: "waits", TTL: 10 * time.Second, Queue: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := waits.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
				t.Fatal(err)
			}
		}
		if _, err := mine.Renew(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if synctest.Wait(); told > 0 {
			t.Errorf("told %d times", told)
		}
	})
}

// A call ends with its context, whatever nodes are hung: Release must not wait for a renewal.
func TestCallsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, links := newCluster(3).connect(t, nil)
		held := newClaim(t, d, "held")
		if _, err := held.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		calls := map[string]func(ctx context.Context) error{
			"Try":     func(ctx context.Context) error { _, err := newClaim(t, d, "other").Try(ctx); return err },
			"Renew":   func(ctx context.Context) error { _, err := held.Renew(ctx, time.Second); return err },
			"Release": func(ctx context.Context) error { return held.Release(ctx, driver.End{}) },
			"RenewAll": func(ctx context.Context) error {
				all := []driver.Renewal{{Claim: held, TTL: time.Second}}
				d.RenewAll(ctx, all)
				return all[0].Err
			},
		}
		for name, call := range calls {
			heal1, heal2 := links[1].Sever(), links[2].Sever()
			ctx, cancel := context.WithTimeout(t.Context(), quorum.DefaultNodeTimeout/5)
			start := time.Now()
			err := call(ctx)
			cancel()
			if took := time.Since(start); took > quorum.DefaultNodeTimeout/5 {
				t.Errorf("%s took %v beside hung nodes, want it to end with its context", name, took)
			}
			if err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrBusy) {
				t.Errorf("%s: %v, want that the outcome is unknown", name, err)
			}
			heal1()
			heal2()
			time.Sleep(2 * quorum.DefaultNodeTimeout) // until the nodes were given up
			held.Renew(t.Context(), time.Minute)
		}
	})
}

// A TTL that is too short is refused by the option that it comes from.
func TestLeastTTLNamesNodeTimeout(t *testing.T) {
	t.Parallel()
	d, _ := newCluster(3).connect(t, &quorum.Options{NodeTimeout: 200 * time.Millisecond})
	_, err := leasehold.New(d, &leasehold.Options{TTL: 300 * time.Millisecond})
	if !errors.Is(err, leasehold.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), "400ms, twice the NodeTimeout of 200ms") {
		t.Errorf("%v; want it to name NodeTimeout", err)
	}
	nodes := []driver.Driver{long{memory.New()}, long{memory.New()}, long{memory.New()}}
	if d, err = quorum.New(nodes, &quorum.Options{NodeTimeout: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if _, err := leasehold.New(d, &leasehold.Options{TTL: time.Second}); err == nil || strings.Contains(err.Error(), "NodeTimeout") {
		t.Errorf("%v; want what the nodes ask for", err)
	}
}

// long is a node with long leases.
type long struct{ *memory.Driver }

func (d long) Features() driver.Features {
	f := d.Driver.Features()
	f.MinTTL = time.Minute
	return f
}
