package engines

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// A lease that nobody else wants costs no more allocations than docs/benchmarks/core.md allows, and a
// Trace adds none. The tests of this file are here because the core's own run with the race detector,
// which allocates.
func TestAllocationsOfALease(t *testing.T) {
	const most = 15
	counted := func(trace leasehold.Trace) (held, extended float64) {
		locks, err := leasehold.New(memory.New(), &leasehold.Options{Trace: trace})
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		section := func(extends bool) float64 {
			return testing.AllocsPerRun(500, func() {
				lease, err := locks.Acquire(t.Context(), "a")
				if err == nil && extends {
					err = lease.Extend(t.Context(), time.Minute)
				}
				if err == nil {
					err = lease.Release(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			})
		}
		return section(false), section(true)
	}
	told := 0
	held, extended := counted(nil)
	tracedHeld, tracedExtended := counted(func(context.Context, leasehold.Event) { told++ })
	if held > most {
		t.Errorf("%v allocations for Acquire and Release, want %d at most", held, most)
	}
	if tracedHeld != held || tracedExtended != extended || told < 500*(4+6) {
		t.Errorf("with a Trace %v and %v allocations, without %v and %v; told of %d events", tracedHeld, tracedExtended, held, extended, told)
	}
}

// A lease that is held costs no more memory than docs/benchmarks/core.md allows.
func TestMemoryOfALease(t *testing.T) {
	const leases, most = 10_000, 2048
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	held, before := make([]*leasehold.Lease, leases), heap()
	for i := range held {
		if held[i], err = locks.Acquire(t.Context(), fmt.Sprint("lease/", i)); err != nil {
			t.Fatal(err)
		}
	}
	each := (heap() - before) / leases
	t.Logf("%d bytes a lease", each)
	if each > most {
		t.Errorf("%d bytes a lease, want at most %d", each, most)
	}
	runtime.KeepAlive(held)
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // for what has a finalizer
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
