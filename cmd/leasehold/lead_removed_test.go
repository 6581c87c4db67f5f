//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A candidate that was removed from the queue is no longer at the start: the store may fail and
// recover, as during every later campaign.
func TestRemovedCandidateOutlastsAFailureOfTheStore(t *testing.T) {
	if took := campaignAfterRemoval(t, 0, locktest.LoseRequest); took < firstAway {
		t.Errorf("it tried again at a failed store after %v", took)
	}
}

// The pause after a command that crashes is for others to lead. A candidate that was removed has not
// led: it campaigns again soon.
func TestRemovedCandidateDoesNotPauseForACrash(t *testing.T) {
	if took := campaignAfterRemoval(t, lastAway); took < firstAway || took >= lastAway {
		t.Errorf("it campaigned again after %v", took)
	}
}

// campaignAfterRemoval removes a candidate from the queue, makes its next Tries fail, and ends the
// campaign with the one after them. away is the pause that a crash would cause. It returns how long the
// campaign took.
func campaignAfterRemoval(t *testing.T, away time.Duration, fails ...locktest.Fault) (took time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.NewFaulty(memory.New())
		locks, err := leasehold.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		ctx, end := context.WithCancelCause(t.Context())
		over := errors.New("over")
		store.Next(locktest.OpTry, func(context.Context, func() error) error {
			return fmt.Errorf("%w: %w", driver.ErrBarred, driver.Evicted("test"))
		})
		store.Next(locktest.OpTry, fails...)
		store.Next(locktest.OpTry, func(context.Context, func() error) error {
			end(over)
			return locktest.ErrInjected
		})
		l := &lead{child: newChild(&app{stderr: io.Discard}), lastTerm: lastTerm{leave: func() {}}, away: away}
		l.name = "sched"
		began := time.Now()
		if err := l.campaign(ctx, locks); !errors.Is(err, over) {
			t.Errorf("after %d attempts: %v", store.Calls(locktest.OpTry), err)
		}
		took = time.Since(began)
	})
	return took
}
