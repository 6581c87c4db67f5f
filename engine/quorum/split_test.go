package quorum_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
)

// slowNode takes up to slowest to hear of a call, and as long to answer.
type slowNode struct{ driver.Driver }

type slowClaim struct{ driver.Claim }

const slowest = 200 * time.Millisecond

func (n slowNode) Claim(req driver.Request) (driver.Claim, error) {
	c, err := n.Driver.Claim(req)
	return slowClaim{c}, err
}

func (c slowClaim) Try(ctx context.Context) (driver.Grant, error) {
	time.Sleep(rand.N(slowest))
	defer func() { time.Sleep(rand.N(slowest)) }()
	return c.Claim.Try(ctx)
}

func (c slowClaim) Release(ctx context.Context, how driver.End) error {
	time.Sleep(rand.N(slowest))
	return c.Claim.Release(ctx, how)
}

// Of twenty who try at once one is granted, also where a round takes longer than the pauses that are
// for quick ones.
func TestOneWinsWhereRoundsAreSlow(t *testing.T) {
	const rounds, contenders = 10, 20
	won := 0
	for range rounds {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(5)
			var wins atomic.Int32
			var all sync.WaitGroup
			for i := range contenders {
				var nodes []driver.Driver
				for _, s := range c {
					nodes = append(nodes, slowNode{s.Connect()})
				}
				d, err := quorum.New(nodes, &quorum.Options{NodeTimeout: 2 * time.Second, NoFencing: true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { d.Close() })
				claim, err := d.Claim(driver.Request{Resource: "a", Owner: fmt.Sprint(i), TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				all.Go(func() {
					if _, err := claim.Try(t.Context()); err == nil {
						wins.Add(1)
					}
				})
			}
			all.Wait()
			if n := wins.Load(); n > 1 {
				t.Fatalf("%d were granted", n)
			}
			won += int(wins.Load())
		})
	}
	if won != rounds {
		t.Errorf("in %d of %d rounds one of %d was granted", won, rounds, contenders)
	}
}
