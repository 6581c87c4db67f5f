package leaseholdgocron

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// elected is an Elector that leads, and the link to its engine.
func elected(t *testing.T) (*Elector, *leasehold.Locker, *locktest.Faulty) {
	t.Helper()
	link := locktest.NewFaulty(memory.New())
	locks, err := leasehold.New(link, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := NewElector(locks, "schedulers")
	synctest.Wait()
	if err := e.IsLeader(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e, locks, link
}

func TestCloseTellsOfAnUnknownRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, locks, link := elected(t)
		defer locks.Close()
		link.Always(locktest.OpRelease, locktest.LoseRequest)
		if err := e.Close(); !errors.Is(err, locktest.ErrInjected) {
			t.Errorf("Close: %v, want that the outcome is unknown", err)
		}
	})
}

func TestCloseIsSilentWhenAllIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, locks, _ := elected(t)
		defer locks.Close()
		for range 2 {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A leader that is cut off leads no more when its lease is over, and its task is ended and fails.
func TestCutOffLeaderLeadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, locks, link := elected(t)
		defer locks.Close()
		heal := link.Sever()
		err := e.Task(func(ctx context.Context) error {
			<-ctx.Done()
			if err := e.IsLeader(ctx); !errors.Is(err, ErrNotLeader) {
				t.Errorf("cut off: %v, want ErrNotLeader", err)
			}
			return nil
		})(t.Context())
		if !errors.Is(err, leasehold.ErrLost) {
			t.Errorf("its task: %v, want ErrLost", err)
		}
		heal()
		e.Close() // whatever becomes of the next term
	})
}

// What ends the campaign is told by IsLeader.
func TestIsLeaderTellsWhatEndedTheCampaign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, locks, _ := elected(t)
		locks.Close()
		synctest.Wait()
		// The lease that it holds lives on until its deadline; then there is no other campaign.
		<-e.ended
		if err := e.IsLeader(t.Context()); !errors.Is(err, ErrNotLeader) || !errors.Is(err, leasehold.ErrClosed) {
			t.Errorf("%v, want ErrNotLeader and ErrClosed", err)
		}
		if err := e.Close(); !errors.Is(err, leasehold.ErrClosed) {
			t.Errorf("Close: %v, want ErrClosed", err)
		}
	})
}
