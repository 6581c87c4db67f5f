package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
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
			err = waitFree(ctx, &app{}, locks, "job", time.Now(), bound)
			if looks := store.Calls(locktest.OpInspect); !errors.Is(err, context.DeadlineExceeded) || looks > most {
				t.Errorf("a wait of %v looks %d times, at most %d would do: %v", bound, looks, most, err)
			}
			if !errors.Is(err, locktest.ErrInjected) {
				t.Errorf("a wait of %v does not say why the store failed: %v", bound, err)
			}
		})
	}
}

// The time to connect is part of the wait: NAME that was held all the time is said to be held, and
// not the store to be away.
func TestWaitCountsTheTimeToConnect(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt) // starts the goroutine of os/signal outside of the bubble
	signal.Stop(signals)
	t.Setenv("LEASEHOLD_STORE", "sqlite:/nosuch")
	for _, c := range []struct{ bound, connect, took time.Duration }{
		{10 * time.Second, 5 * time.Second, 10 * time.Second},
		{10 * time.Second, 11 * time.Second, 11 * time.Second},
		{0, time.Second, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := memory.NewServer()
			locks, err := leasehold.New(server.Connect(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			if _, err := locks.TryAcquire(t.Context(), "job"); err != nil {
				t.Fatal(err)
			}
			a := &app{stderr: io.Discard}
			newRootCommand(a)
			began := time.Now()
			err = openAndWait(t.Context(), a, func(context.Context, string) (driver.Driver, error) {
				time.Sleep(c.connect)
				return server.Connect(), nil
			}, "job", c.bound)
			if took := time.Since(began); exitCode(err) != exitBusy || took != c.took {
				t.Errorf("a wait of %v with %v to connect: after %v: %v", c.bound, c.connect, took, err)
			}
		})
	}
}
