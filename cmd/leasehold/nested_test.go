//go:build unix

package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A run inside another one does not wait for a store that is silent.
func TestNestedRunGivesUpASilentStore(t *testing.T) {
	t.Setenv("LEASEHOLD_HELD", "another")
	synctest.Test(t, func(t *testing.T) {
		store := locktest.NewFaulty(memory.New())
		store.Always(locktest.OpInspect, locktest.HangRequest)
		locks, err := leasehold.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err = (&app{}).refuseNested(ctx, locks, "job")
		if took := time.Since(began); took > storeurl.FirstAnswer || exitCode(err) != exitUnavailable {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// A run inside another one may lock names that it may not look at. Only the name of the innermost
// run is then known to be held.
func TestNestedRunMayLockWhatItMayNotView(t *testing.T) {
	a := &app{storeURL: "memory:"}
	t.Setenv("LEASEHOLD_HELD", "another")
	t.Setenv("LEASEHOLD_NAME", "outer")
	t.Setenv("LEASEHOLD_STORE", a.storeURL)
	store := locktest.NewFaulty(memory.New())
	store.Always(locktest.OpInspect, func(context.Context, func() error) error { return driver.ErrDenied })
	locks, err := leasehold.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	for name, code := range map[string]int{"job": 0, "outer": exitUsage} {
		if err := a.refuseNested(t.Context(), locks, name); exitCode(err) != code {
			t.Errorf("%s: %v, want exit code %d", name, err, code)
		}
	}
}
