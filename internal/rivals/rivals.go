// Package rivals lets clients of several kinds contend for one lock, and checks that they exclude
// each other.
package rivals

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// A Section must have one exclusive holder, or several that share.
type Section struct {
	inside, sharers atomic.Int32
	count           int // without synchronization by the lock, the race detector reports it
}

// stay is how long a holder stays in the section.
const stay = 200 * time.Microsecond

// Alone enters the section for an exclusive holder.
func (s *Section) Alone(context.Context) error {
	if n, m := s.inside.Add(1), s.sharers.Load(); n != 1 || m != 0 {
		return fmt.Errorf("%d exclusive holders and %d sharers at once", n, m)
	}
	s.count++
	time.Sleep(stay)
	s.inside.Add(-1)
	return nil
}

// Shared enters the section for a shared holder.
func (s *Section) Shared(context.Context) error {
	s.sharers.Add(1)
	defer s.sharers.Add(-1)
	if n := s.inside.Load(); n != 0 {
		return fmt.Errorf("a sharer beside %d exclusive holders", n)
	}
	time.Sleep(stay)
	return nil
}

// A Rival enters the section again and again.
type Rival struct {
	Enter  func() error
	Rounds int
	Shares bool
}

// Ours returns three rivals on two Lockers, of which plain does not hand over.
func (s *Section) Ours(ctx context.Context, name string, rounds int, handing, plain *leasehold.Locker) map[string]Rival {
	return map[string]Rival{
		"ours":                          {Enter: func() error { return handing.Do(ctx, name, s.Alone) }, Rounds: rounds},
		"ours, without local hand-over": {Enter: func() error { return plain.Do(ctx, name, s.Alone) }, Rounds: rounds},
		"ours, shared": {
			Enter: func() error { return plain.Do(ctx, name, s.Shared, leasehold.Shared()) }, Rounds: rounds, Shares: true,
		},
	}
}

// Contend makes all rivals enter at once, several of each kind.
func (s *Section) Contend(t *testing.T, several int, all map[string]Rival) {
	t.Helper()
	var running sync.WaitGroup
	want := 0
	for who, r := range all {
		if !r.Shares {
			want += several * r.Rounds
		}
		for range several {
			running.Go(func() {
				for range r.Rounds {
					if err := r.Enter(); err != nil {
						t.Errorf("%s: %v", who, err)
						return
					}
				}
			})
		}
	}
	running.Wait()
	if s.count != want {
		t.Errorf("%d sections were counted, want %d", s.count, want)
	}
}
