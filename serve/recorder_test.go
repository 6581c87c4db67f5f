package serve

import (
	"testing"
	"testing/synctest"
	"time"

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
