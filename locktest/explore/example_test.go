package explore_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest/explore"
	"github.com/leasehold-go/leasehold/memory"
)

// This is all that a driver needs whose calls answer without a network of their own, here the
// one in memory: Link puts the explorer between each process and the engine.
func ExampleRun() {
	test := func(t *testing.T) {
		explore.Run(t, explore.Harness{
			Name: "mylock",
			New: func(w *explore.World) func(*explore.Process) driver.Driver {
				server := memory.NewServer() // one for each schedule
				w.OnFlush(server.Flush)      // if it can lose what it has
				return func(p *explore.Process) driver.Driver {
					return p.Link("", server.Connect())
				}
			},
		})
	}
	_ = test // go test calls it
	// Output:
}
