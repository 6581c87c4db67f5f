//go:build unix

package main

import (
	"context"
	"fmt"
	"strings"
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

// A run inside others may lock names that it may not look at, unless one of them holds it in the
// same store.
func TestNestedRunMayLockWhatItMayNotView(t *testing.T) {
	a := &app{storeURL: "memory:"}
	store := locktest.NewFaulty(memory.New())
	store.Always(locktest.OpInspect, func(context.Context, func() error) error { return driver.ErrDenied })
	locks, err := leasehold.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	for _, names := range [][]string{{"outer", "also"}, {"inner"}} { // a run in another
		leases, err := locks.AcquireAll(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		defer leases.Release(context.Background())
		c := newChild(a)
		c.name = names[0]
		each := []*leasehold.Lease{}
		for _, name := range names {
			each = append(each, leases.Lease(name))
		}
		for _, v := range c.environ(time.Now(), each) {
			if key, value, _ := strings.Cut(v, "="); strings.HasPrefix(key, "LEASEHOLD_") {
				t.Setenv(key, value)
			}
		}
	}
	for name, code := range map[string]int{"job": 0, "outer": exitUsage, "also": exitUsage, "inner": exitUsage} {
		if err := a.refuseNested(t.Context(), locks, name); exitCode(err) != code {
			t.Errorf("%s: %v, want exit code %d", name, err, code)
		}
	}
	other := &app{storeURL: "sqlite:/other"}
	if err := other.refuseNested(t.Context(), locks, "outer"); err != nil {
		t.Errorf("in another store: %v", err)
	}
}

// A variable of the environment has room for 128 KiB. The store of many names is written only once.
func TestEnvironmentOfManyNames(t *testing.T) {
	t.Setenv("LEASEHOLD_NAMES", "")
	a := &app{storeURL: "sqlite:/" + strings.Repeat("folder/", 30) + "locks.db"}
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("stock/", i))
	}
	leases, err := locks.AcquireAll(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Release(context.Background())
	var each []*leasehold.Lease
	for _, name := range names {
		each = append(each, leases.Lease(name))
	}
	c := newChild(a)
	c.name = names[0]
	for _, v := range c.environ(time.Now(), each) {
		if key, _, _ := strings.Cut(v, "="); strings.HasPrefix(key, "LEASEHOLD_") && len(v) >= 128<<10 {
			t.Errorf("%s has %d bytes", key, len(v))
		}
	}
}
