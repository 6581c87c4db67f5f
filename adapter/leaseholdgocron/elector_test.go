package leaseholdgocron

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

// An engine that is away when the scheduler starts does not end the campaign.
func TestElectorLeadsWhenTheEngineComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := locktest.NewFaulty(memory.New())
		link.Always(locktest.OpTry, locktest.LoseRequest)
		locks, err := leasehold.New(link, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		e := NewElector(locks, "schedulers")
		time.Sleep(time.Minute)
		if err := e.IsLeader(t.Context()); !errors.Is(err, ErrNotLeader) || !errors.Is(err, locktest.ErrInjected) {
			t.Errorf("while the engine is away: %v, want ErrNotLeader and why", err)
		}
		link.Always(locktest.OpTry, nil)
		time.Sleep(5 * time.Second)
		if err := e.IsLeader(t.Context()); err != nil {
			t.Errorf("after it is back: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Another campaign cannot help against an option that no leader has, nor after Wait.
func TestNoFurtherCampaignAfterAFinalError(t *testing.T) {
	for name, c := range map[string]struct {
		opt  leasehold.Option
		want error
	}{
		"an option that no leader has": {leasehold.Shared(), leasehold.ErrInvalidOption},
		"Wait":                         {leasehold.Wait(time.Second), leasehold.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, locks, _ := elected(t)
				defer locks.Close()
				defer first.Close()
				second := NewElector(locks, "schedulers", c.opt)
				<-second.ended
				if err := second.IsLeader(t.Context()); !errors.Is(err, ErrNotLeader) || !errors.Is(err, c.want) {
					t.Errorf("%v, want ErrNotLeader and %v", err, c.want)
				}
			})
		})
	}
}
