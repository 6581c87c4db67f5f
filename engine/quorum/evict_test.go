package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// lifting is a node whose claims can lift the fence while they hold. before is called
// when one is about to.
type lifting struct {
	*memory.Driver
	before func()
}

func (l *lifting) Claim(req driver.Request) (driver.Claim, error) {
	c, err := l.Driver.Claim(req)
	return liftingClaim{c, l, req}, err
}

type liftingClaim struct {
	driver.Claim
	node *lifting
	req  driver.Request
}

func (c liftingClaim) LiftFence(ctx context.Context, fence uint64) error {
	c.node.before()
	st, err := c.node.Inspect(ctx, c.req.Resource)
	switch {
	case err != nil:
		return err
	case len(st.Holders) == 0 || st.Holders[0].Owner.Reveal() != c.req.Owner:
		return driver.ErrLost
	}
	return c.node.Driver.RaiseFence(ctx, c.req.Resource, fence)
}

// RaiseFence does not ask who holds.
func (l *lifting) RaiseFence(ctx context.Context, name string, fence uint64) error {
	l.before()
	return l.Driver.RaiseFence(ctx, name, fence)
}

// A grant is evicted at a node, and the next one given there, before its fence reaches
// that node: it must not count, or the next one's fence would be smaller.
func TestEvictionInTheMiddleOfAGrant(t *testing.T) {
	t.Parallel()
	servers := newCluster(3)
	ahead := driver.FenceOf(time.Now().Add(time.Hour).UnixMicro())
	servers[0].Connect().RaiseFence(t.Context(), "a", ahead)
	low := &lifting{Driver: servers[1].Connect()}
	out := locktest.NewFaulty(servers[2].Connect())
	out.Always(locktest.OpTry, locktest.LoseRequest)
	mine, err := quorum.New([]driver.Driver{servers[0].Connect(), low, out}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var second driver.Grant
	low.before = func() {
		for _, s := range servers[:2] {
			if err := s.Connect().Evict(t.Context(), "a", "first", "test"); err != nil {
				t.Error(err)
			}
		}
		// A majority that has not seen the high fence.
		low, err := quorum.New([]driver.Driver{
			memory.New(), servers[1].Connect(), servers[2].Connect(),
		}, nil)
		if err != nil {
			t.Error(err)
		}
		if second, err = newClaim(t, low, "second").Try(t.Context()); err != nil {
			t.Errorf("after the eviction: %v", err)
		}
	}
	first, err := newClaim(t, mine, "first").Try(t.Context())
	if err == nil && first.Fence >= second.Fence {
		t.Errorf("fence %d, and %d for the next one", first.Fence, second.Fence)
	}
	mine.Close()
}

// What one node alone cannot be healed of does not end a waiter: the majority may be back.
func TestOneDamagedNodeIsNotFinal(t *testing.T) {
	t.Parallel()
	damaged := fmt.Errorf("somebody's data: %w", driver.ErrCorrupt)
	e := &quorum.NodesError{Call: "try", Nodes: []error{damaged, quorum.ErrNodeDown, quorum.ErrNodeDown}}
	if errors.Is(e, driver.ErrCorrupt) || !errors.Is(e, quorum.ErrNodeDown) || !strings.Contains(e.Error(), "somebody's data") {
		t.Errorf("one of three: %v", e)
	}
	e.Nodes[1] = damaged
	if !errors.Is(e, driver.ErrCorrupt) {
		t.Errorf("two of three: %v", e)
	}

	servers := newCluster(3)
	holder, _ := servers.connect(t, nil)
	lease, err := locker(t, holder).Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	d, links := servers.connect(t, nil)
	granted := make(chan error, 1)
	waiting := make(chan struct{}, 1)
	locks, err := leasehold.New(d, &leasehold.Options{Trace: locktest.On(leasehold.StepQueued, func(leasehold.Event) { waiting <- struct{}{} })})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	go func() {
		lease, err := locks.Acquire(context.Background(), "a", leasehold.Wait(30*time.Second))
		if err == nil {
			err = lease.Release(context.Background())
		}
		granted <- err
	}()
	<-waiting
	links[0].Always(locktest.OpTry, func(context.Context, func() error) error { return damaged })
	links[1].Always(locktest.OpTry, locktest.LoseRequest)
	tries := links[0].Calls(locktest.OpTry)
	for links[0].Calls(locktest.OpTry) < tries+2 {
		time.Sleep(time.Millisecond)
	}
	links[1].Always(locktest.OpTry, nil)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Errorf("the waiter: %v", err)
	}
}
