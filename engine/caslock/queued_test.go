package caslock_test

import (
	"context"
	"iter"
	"math"
	"strings"

	"github.com/leasehold-go/leasehold/engine/caslock"
)

// A queueing is a counting store that keeps places beside its names.
type queueing struct{ counting }

func (s *queueing) List(_ context.Context, prefix, after string, limit int) ([]caslock.Listed, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := func(yield func(string) bool) {
		for name := range s.values {
			if !strings.Contains(name, "\x00") && !yield(name) {
				return
			}
		}
	}
	items, next := page(names, prefix, after, limit, s.item)
	return items, next, nil
}

func (s *queueing) Beside(ctx context.Context, first string) iter.Seq2[caslock.Item, error] {
	travel()
	return func(yield func(caslock.Item, error) bool) {
		items, _, err := s.counting.List(ctx, first+"\x00", "", math.MaxInt)
		for _, i := range items {
			if !yield(i.Item, err) {
				return
			}
		}
	}
}
