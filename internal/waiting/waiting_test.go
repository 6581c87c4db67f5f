package waiting_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// rests lets a waiter rest after err, and returns for how long.
func rests(t *testing.T, p *waiting.Pace, err error) time.Duration {
	t.Helper()
	start := time.Now()
	if err := p.Rest(t.Context(), nil, err); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// within fails unless d is most, minus at most a quarter.
func within(t *testing.T, what string, d, most time.Duration) {
	t.Helper()
	if d > most || d < most*3/4 {
		t.Errorf("%s: a rest of %v, want three quarters of %v to the whole", what, d, most)
	}
}

var errAway = errors.New("the engine is away")

// The rests of polling waiters, and of waiters whose engine is away, grow to a limit.
func TestRestsGrow(t *testing.T) {
	for name, c := range map[string]struct {
		err         error
		first, last time.Duration
	}{
		"nobody wakes": {&driver.Busy{}, 5 * time.Millisecond, waiting.PollLast},
		"errors":       {errAway, 20 * time.Millisecond, 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p waiting.Pace
				for want := c.first; want < c.last; want *= 2 {
					within(t, "while it grows", rests(t, &p, c.err), want)
				}
				for range 100 {
					within(t, "at the end", rests(t, &p, c.err), c.last)
				}
			})
		})
	}
}

// Waiters that rest for the same reason do not return at the same instant.
func TestRestsDiffer(t *testing.T) {
	for name, err := range map[string]error{"nobody wakes": &driver.Busy{}, "errors": errAway} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := make(map[time.Duration]bool)
				for range 20 {
					seen[rests(t, &waiting.Pace{}, err)] = true
				}
				if len(seen) < 10 {
					t.Errorf("20 waiters rest for %d lengths of time", len(seen))
				}
			})
		})
	}
}

// A refusal after errors resets their count: the engine was back.
func TestRefusalEndsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p waiting.Pace
		for range 10 {
			rests(t, &p, errAway)
		}
		rests(t, &p, &driver.Busy{})
		within(t, "the first error", rests(t, &p, errAway), 20*time.Millisecond)
	})
}

// A waiter returns when it is woken, when the engine has said, or when a wake-up may have been
// lost.
func TestRestEnds(t *testing.T) {
	for name, c := range map[string]struct{ retry, want time.Duration }{
		"after what is left":                {time.Second, time.Second + time.Millisecond},
		"when a wake-up may be lost":        {0, 5 * time.Second},
		"before a lease that lasts is over": {time.Hour, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				never := make(chan struct{})
				if got := rests(t, &waiting.Pace{}, &driver.Busy{Wake: never, Retry: c.retry}); got != c.want {
					t.Errorf("a rest of %v, want %v", got, c.want)
				}
			})
		})
	}
	t.Run("when it is woken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			wake := make(chan struct{})
			time.AfterFunc(time.Second, func() { close(wake) })
			if got := rests(t, &waiting.Pace{}, &driver.Busy{Wake: wake}); got != time.Second {
				t.Errorf("a rest of %v, want a second", got)
			}
		})
	})
}

// An engine that always wakes at once makes no waiter spin. One wake-up that takes its time ends
// the pauses.
func TestEarlyWakeUps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := make(chan struct{})
		close(woken)
		var p waiting.Pace
		for range 3 {
			if d := rests(t, &p, &driver.Busy{Wake: woken}); d != 0 {
				t.Errorf("one of the first wake-ups: a rest of %v", d)
			}
		}
		start, tries := time.Now(), 0
		for ; time.Since(start) < 10*time.Second; tries++ {
			rests(t, &p, &driver.Busy{Wake: woken})
		}
		if tries > 1000 {
			t.Errorf("%d tries in 10 s", tries)
		}
		later := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(later) })
		rests(t, &p, &driver.Busy{Wake: later})
		if d := rests(t, &p, &driver.Busy{Wake: woken}); d != 0 {
			t.Errorf("a wake-up after one that took its time: a rest of %v", d)
		}
	})
}

// Rests end with the context and return its cause. They also end when the waiter is closed.
func TestRestIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("why")
		for name, err := range map[string]error{"refused": &driver.Busy{}, "error": errAway} {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(why)
			if err := new(waiting.Pace).Rest(ctx, nil, err); err != why {
				t.Errorf("%s, and the context ends: %v", name, err)
			}
			closing := make(chan struct{})
			close(closing)
			if err := new(waiting.Pace).Rest(t.Context(), closing, err); err != driver.ErrClosed {
				t.Errorf("%s, and closed: %v", name, err)
			}
		}
	})
}

// If the first try fails, so does the wait, unless the engine answers that it cannot decide yet.
// Later tries may fail, except for errors that trying again cannot help.
func TestGoesOn(t *testing.T) {
	busy := fmt.Errorf("quorum: %w", &driver.Busy{})
	for name, c := range map[string]struct {
		err         error
		first, then bool
	}{
		"busy":        {busy, true, true},
		"not yet":     {driver.ErrNotYet, true, true},
		"away":        {errAway, false, true},
		"denied":      {driver.ErrDenied, false, true},
		"read-only":   {driver.ErrReadOnly, false, true},
		"barred":      {driver.ErrBarred, false, false},
		"closed":      {driver.ErrClosed, false, false},
		"unsupported": {fmt.Errorf("wrapped: %w", driver.ErrUnsupported), false, false},
		"bad name":    {driver.ErrInvalidName, false, false},
		"corrupt":     {driver.ErrCorrupt, false, false},
	} {
		if got := new(waiting.Pace).GoesOn(c.err); got != c.first {
			t.Errorf("%s at first: %v", name, got)
		}
		if got := (&waiting.Pace{Queued: true}).GoesOn(c.err); got != c.then {
			t.Errorf("%s of one who waits: %v", name, got)
		}
	}
}
