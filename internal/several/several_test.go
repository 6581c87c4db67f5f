package several_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/several"
)

// Calls that hang keep none of the others waiting for long, and no more than the width are made at once.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, hung, width = 100, 40, 8
		var running, most, quick atomic.Int32
		start := time.Now()
		several.Each(n, width, func(i int) {
			if i < hung {
				time.Sleep(time.Minute)
				return
			}
			if now := running.Add(1); now > most.Load() {
				most.Store(now)
			}
			time.Sleep(time.Millisecond)
			running.Add(-1)
			if quick.Add(1) == n-hung && time.Since(start) > time.Second {
				t.Errorf("beside %d that hang, the others took %v", hung, time.Since(start))
			}
		})
		if quick.Load() != n-hung || most.Load() > width {
			t.Errorf("%d of %d made, %d at once", quick.Load(), n-hung, most.Load())
		}
		if took := time.Since(start); took < time.Minute {
			t.Errorf("returned after %v, before those that hang", took)
		}
	})
}
