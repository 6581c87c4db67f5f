package locktest

import (
	"context"

	"github.com/leasehold-go/leasehold"
)

// On returns a Trace that calls do at one step, such as StepQueued when a call waits, or
// StepRenewed when a lease was renewed.
func On(step leasehold.Step, do func(e leasehold.Event)) leasehold.Trace {
	return func(_ context.Context, e leasehold.Event) {
		if e.Step == step {
			do(e)
		}
	}
}

// queues returns a Trace that sends for each caller that begins to wait.
func queues(to chan<- struct{}) leasehold.Trace {
	return On(leasehold.StepQueued, func(leasehold.Event) { to <- struct{}{} })
}
