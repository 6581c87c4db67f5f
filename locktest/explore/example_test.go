package explore_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest/explore"
	"github.com/leasehold-go/leasehold/memory"
)

// This is all that a driver needs whose calls answer without a network of their own, here the
// one in memory: Link puts the explorer between each process and the engine. In a module of its own the function is
// called TestExplored, and go test calls it.
func ExampleRun() {
	explored := func(t *testing.T) {
		explore.Run(t, explore.Harness{
			Name:      "mylock",
			Scenarios: []string{"try"},        // all that the engine has the features for, if left out
			For:       100 * time.Millisecond, // at random, after all schedules of one change
			New: func(w *explore.World) func(*explore.Process) driver.Driver {
				server := memory.NewServer() // one for each schedule
				w.OnFlush(server.Flush)      // if it can lose what it has
				return func(p *explore.Process) driver.Driver {
					return p.Link("", server.Connect())
				}
			},
		})
	}
	fmt.Println("keeps its promises:", passes(explored))
	// Output: keeps its promises: true
}

// passes runs a test as go test does without flags.
func passes(test func(t *testing.T)) bool {
	for name, plain := range map[string]string{
		"test.v": "false", "explore.for": "0s", "explore.changes": "0", "explore.replay": "", "explore.scenario": "", "explore.figures": "",
	} {
		value := flag.Lookup(name).Value
		before := value.String()
		defer func() { _ = value.Set(before) }() // it was set to that before
		_ = value.Set(plain)                     // which it can be
	}
	all := func(string, string) (bool, error) { return true, nil }
	return testing.RunTests(all, []testing.InternalTest{{Name: "TestExplored", F: test}})
}
