package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A store that is away when the wait is over has some time to come back. The command pauses between
// its looks then, too.
func TestWaitThatIsOverPausesWhileTheStoreIsAway(t *testing.T) {
	for _, bound := range []time.Duration{0, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := locktest.NewFaulty(memory.New())
			locks, err := leasehold.New(store, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			ctx, cancel := context.WithTimeout(t.Context(), bound+quickBound)
			defer cancel()
			most := int((bound + quickBound) / lookSoonest)
			store.Always(locktest.OpInspect, func(ctx context.Context, apply func() error) error {
				if store.Calls(locktest.OpInspect) > most {
					cancel() // no time passes in a loop without pauses
				}
				return locktest.LoseRequest(ctx, apply)
			})
			err = waitFree(ctx, &app{}, locks, "job", bound)
			if looks := store.Calls(locktest.OpInspect); !errors.Is(err, context.DeadlineExceeded) || looks > most {
				t.Errorf("a wait of %v looks %d times, at most %d would do: %v", bound, looks, most, err)
			}
		})
	}
}
