package explore_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest/explore"
	"github.com/leasehold-go/leasehold/memory"
)

func TestMemory(t *testing.T) {
	explore.Run(t, explore.Harness{
		Name: "memory", For: time.Second,
		Known: []string{
			"resume; p2 Renew 1 answer = hold 1", // Resume gave a lease whose deadline had passed
		},
		New: func(w *explore.World) func(*explore.Process) driver.Driver {
			server := memory.NewServer()
			w.OnFlush(server.Flush)
			return func(p *explore.Process) driver.Driver { return p.Link("", server.Connect()) }
		},
	})
}
