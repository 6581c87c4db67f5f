package several_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/several"
)

// Calls that hang do not delay the others for long. Apart from them, no more than the width run at
// once.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, hung, width = 100, 40, 8
		var running, most, quick atomic.Int32
		start := time.Now()
		several.Each(t.Context(), n, width, several.Slow, func(i int) {
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

// All calls begin in the first half of the available time, even if there are many and all hang.
func TestEachBeginsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, width, given = 3000, 8, time.Second
		ctx, cancel := context.WithTimeout(t.Context(), given)
		defer cancel()
		var last time.Time
		several.Each(ctx, n, width, several.Slow, func(i int) {
			if i == n-1 {
				last = time.Now()
			}
			<-ctx.Done()
		})
		end, _ := ctx.Deadline()
		if left := end.Sub(last); left < given/2 {
			t.Errorf("the last of %d calls that hang began %v before the end; want half of %v", n, left, given)
		}
	})
}

// A context that ends in hundreds of years is treated like one without an end.
func TestEachWithoutHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, width = 100, 8
		ctx, cancel := context.WithTimeout(t.Context(), math.MaxInt64)
		defer cancel()
		var running, most atomic.Int32
		several.Each(ctx, n, width, several.Slow, func(int) {
			if now := running.Add(1); now > most.Load() {
				most.Store(now)
			}
			time.Sleep(time.Millisecond)
			running.Add(-1)
		})
		if most.Load() > width {
			t.Errorf("%d at once", most.Load())
		}
	})
}

// However long calls take, no more than the width run at once. At the end all have returned.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, width = 20, 8
		odd := errors.New("odd")
		var running atomic.Int32
		errs := several.Errors(n, width, func(i int) error {
			if now := running.Add(1); now > width {
				t.Errorf("%d at once", now)
			}
			time.Sleep(time.Minute)
			running.Add(-1)
			return [...]error{nil, odd}[i%2]
		})
		if running.Load() != 0 || len(errs) != n {
			t.Errorf("%d errors while %d calls are made", len(errs), running.Load())
		}
		for i, err := range errs {
			if want := [...]error{nil, odd}[i%2]; err != want {
				t.Errorf("call %d came to %v, want %v", i, err, want)
			}
		}
		if errs := several.Errors(0, 0, func(int) error { return odd }); slices.Contains(errs, odd) {
			t.Error("a call of none was made")
		}
	})
}
