package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// What is reset is not called free if the next in line holds it already.
func TestResetTellsWhoComesNext(t *testing.T) {
	for want, next := range map[string]bool{"it is free": false, "the next holder has it": true} {
		synctest.Test(t, func(t *testing.T) {
			store := locktest.NewFaulty(memory.New())
			locks, err := leasehold.New(store, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			done, err := locks.TryAcquire(t.Context(), "job", leasehold.AtLeast(time.Hour))
			if err == nil {
				err = done.Release(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			store.Next(locktest.OpEvict, func(_ context.Context, apply func() error) error {
				err := apply()
				if next && err == nil {
					_, err = locks.TryAcquire(t.Context(), "job")
				}
				return err
			})
			v, err := endKept(t.Context(), &app{}, locks, "job")
			var out strings.Builder
			v.write(&out)
			if err != nil || !strings.Contains(out.String(), want) {
				t.Errorf("%v, it says %q; want %q", err, &out, want)
			}
		})
	}
}
