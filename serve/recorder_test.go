package serve

import (
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// Clients add the age of a history to its beginning to know the present time of the service's
// clock, which may have been set back since.
func TestHistoryTellsThePresentTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(memory.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, ahead := range []time.Duration{0, time.Hour} {
			s.history.mu.Lock()
			s.history.since = time.Now().Add(ahead).Round(0)
			s.history.mu.Unlock()
			time.Sleep(time.Second)
			answer := s.history.answer(t.Context(), HistoryQuery{Prefixes: []string{""}, Limit: 1})
			begins, err := time.Parse(time.RFC3339, answer.Begins)
			if now := begins.Add(wire.Duration(answer.BeginsMS)); err != nil || !now.Equal(time.Now()) {
				t.Errorf("%v ahead: %s and %d ms, at %v", ahead, answer.Begins, answer.BeginsMS, time.Now())
			}
		}
	})
}

// A sleep of the machine is a gap in the history, and counts as time for which a lease was held.
// After a sleep the wall clock is ahead of the monotonic one.
func TestSleepIsAGapAndTimeHeld(t *testing.T) {
	boottime.Machine().Sleep(8 * time.Hour)
	before := time.Now()
	for _, slept := range []time.Duration{0, 8 * time.Hour} {
		after := before.Add(time.Second + slept)
		*(*int64)(unsafe.Add(unsafe.Pointer(&after), 8)) -= int64(slept) // the monotonic reading
		if d := after.Sub(before); d != time.Second {
			t.Fatalf("%v later, not a second: package time has changed", d)
		}
		if held := sinceOf(before, after); *held != wire.Millis(time.Second+slept) {
			t.Errorf("held for %d ms in a second with %v of sleep", *held, slept)
		}
		r := newRecorder(HistoryOptions{}, true, nil)
		r.watch.looked = before
		r.saw(after, 0, &sight{}, false, false, false)
		m := r.now()
		if gaps := m.gaps(time.Time{}); len(gaps) > 0 != (slept > 0) {
			t.Errorf("the gaps are %v after %v of sleep", gaps, slept)
		}
	}
}
