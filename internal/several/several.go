// Package several makes many calls concurrently.
package several

import (
	"context"
	"sync"
	"time"
)

// Slow is how long a call over a nearby network may take before it counts as hanging: far above
// a healthy engine's answer.
const Slow = 20 * time.Millisecond

// Each calls call for each of 0 to n-1, and returns when all have returned. At most width calls
// run at once, not counting those that have run longer than slow and may hang. All calls begin
// before half of ctx's time has passed.
func Each(ctx context.Context, n, width int, slow time.Duration, call func(i int)) {
	if n <= width {
		Bounded(n, width, call)
		return
	}
	hang := slow
	if end, bounded := ctx.Deadline(); bounded {
		hang = min(hang, time.Until(end)/2/time.Duration(n)*time.Duration(width)) // in this order: years times a width overflow
	}
	each(n, width, func(i int, leave func()) {
		hangs := time.AfterFunc(hang, leave)
		call(i)
		hangs.Stop()
	})
}

// Bounded calls call for each of 0 to n-1, at most width at once, and returns when all have
// returned.
func Bounded(n, width int, call func(i int)) {
	if n == 1 {
		call(0)
		return
	}
	each(n, width, func(i int, _ func()) { call(i) })
}

// Errors is Bounded for calls that may fail. It returns all their errors, in order.
func Errors(n, width int, call func(i int) error) []error {
	errs := make([]error, n)
	Bounded(n, width, func(i int) { errs[i] = call(i) })
	return errs
}

// each makes at most width calls at once that have neither returned nor called leave.
func each(n, width int, call func(i int, leave func())) {
	var done sync.WaitGroup
	room := make(chan struct{}, width)
	for i := range n {
		room <- struct{}{}
		done.Go(func() {
			leave := sync.OnceFunc(func() { <-room })
			defer leave()
			call(i, leave)
		})
	}
	done.Wait()
}
