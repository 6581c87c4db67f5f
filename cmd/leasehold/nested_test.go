//go:build unix

package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
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
