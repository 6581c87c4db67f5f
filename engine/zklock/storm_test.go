package zklock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// storm: many wait at the ensemble, a third of them give up, and the holder dies. All others
// are served in turn, by at most two wake-ups a release, and nothing is left.
func storm(t *testing.T, z *servers.ZooKeeper) {
	const processes = 10
	waiters := 300
	if testing.Short() {
		waiters = 120
	}
	dead, p := proxied(t, z, kept)
	holder := mustAcquire(t, dead, "storm")
	opts := &zklock.Options{SessionTimeout: 20 * time.Second}
	var links []*locktest.Faulty
	for range processes {
		links = append(links, locktest.NewFaulty(driverOn(t, opts, z.Addr())))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	impatient, giveUp := context.WithCancel(ctx)
	queued := make(chan struct{}, 10*waiters)
	var history locktest.History
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	for i := range waiters {
		// A Locker each, so that each waits at the ensemble.
		l := lockerOn(t, links[i%processes], leasehold.Options{
			HandOver: -1, Trace: locktest.On(leasehold.StepQueued, func(leasehold.Event) { queued <- struct{}{} }),
		})
		all.Go(func() {
			wait := ctx
			if i%3 == 1 {
				wait = impatient
			}
			lease, err := l.Acquire(wait, "storm")
			switch {
			case err == nil:
				done := history.Believe(lease)
				time.Sleep(rand.N(time.Millisecond))
				done()
				err = lease.Release(ctx)
			case i%3 == 1 && errors.Is(err, context.Canceled):
				return
			}
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		})
	}
	for n := range waiters {
		select {
		case <-queued:
		case <-holder.Context().Done():
			t.Fatalf("the lease that all wait for has ended with %d of them in the queue: %v", n, context.Cause(holder.Context()))
		}
	}
	giveUp()
	conn := client(t, z.Addr())
	claimtest.Eventually(t, "those who gave up leave", func() bool {
		nodes, _, err := conn.Children(zklock.DefaultPrefix + "/storm")
		return err == nil && len(nodes) == waiters*2/3+1
	})
	before, start := tries(links), time.Now()
	p.Dark() // as if it were killed: nothing is heard of it any more
	all.Wait()
	took := time.Since(start)
	// Who still waits asks every 1.5 s in any case.
	calls, asked := tries(links)-before, int(took/time.Second+1)*waiters*2/3
	if calls > 2*waiters*2/3+asked {
		t.Errorf("%d tries in %v for %d releases", calls, took, waiters*2/3)
	}
	<-holder.Context().Done()
	if err := history.Check(); err != nil || history.Len() != waiters*2/3 {
		t.Errorf("%d of %d were served: %v", history.Len(), waiters*2/3, err)
	}
	nodes, _, err := conn.Children(zklock.DefaultPrefix + "/storm")
	if len(nodes) > 0 || err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Errorf("left over: %q, %v", nodes, err)
	}
}

func tries(links []*locktest.Faulty) (sum int) {
	for _, l := range links {
		sum += l.Calls(locktest.OpTry)
	}
	return sum
}
