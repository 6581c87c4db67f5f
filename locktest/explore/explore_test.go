package explore_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest/explore"
	"github.com/leasehold-go/leasehold/memory"
)

func TestMemory(t *testing.T) {
	explore.Run(t, explore.Harness{
		Name: "memory", For: time.Second / 4,
		Known: []string{
			"resume; p2 Renew 1 answer = hold 1", // Resume gave a lease whose deadline had passed
			// The attempt of who has given up takes a place behind its release: no fault.
			"three; c3 calls Acquire 1 = cancel c2; p2 Try 1 = late",
		},
		New: func(w *explore.World) func(*explore.Process) driver.Driver {
			server := memory.NewServer()
			w.OnFlush(server.Flush)
			return func(p *explore.Process) driver.Driver { return p.Link("", server.Connect()) }
		},
	})
}

// TestBatches explores an engine that renews in batches.
func TestBatches(t *testing.T) {
	explore.Run(t, explore.Harness{Name: "memory, in batches", For: time.Second / 4, Scenarios: unlessLong("together"),
		New: func(w *explore.World) func(*explore.Process) driver.Driver {
			server := memory.NewServer()
			w.OnFlush(server.Flush)
			return func(p *explore.Process) driver.Driver { return p.Link("", batches{server.Connect()}) }
		}})
}

// batches renews claims in memory together.
type batches struct{ *memory.Driver }

func (batches) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		r := &renewals[i]
		r.Grant, r.Err = r.Claim.Renew(ctx, r.TTL)
	}
}
