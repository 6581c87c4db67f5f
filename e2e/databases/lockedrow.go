package databases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// ManyTakeAndGiveBack makes many goroutines lock names of their own. They are more than may send
// statements of their own, so they share statements. Some rows are locked, again more than that
// number, and must delay no other goroutine. Then groups of goroutines contend for the same names.
func ManyTakeAndGiveBack(t *testing.T, s Server) {
	const many, locked = 64, 16
	times := 20
	if testing.Short() {
		times = 5
	}
	d := s.migrated(t, s.Address)
	cycle := func(l *leasehold.Locker, name string, last *uint64) error {
		lease, err := l.Acquire(t.Context(), name)
		if err != nil {
			return err
		}
		if lease.Token() <= *last {
			return fmt.Errorf("%s: the token %d came after %d", name, lease.Token(), *last)
		}
		*last = lease.Token()
		return lease.Release(t.Context())
	}
	l := Locker(t, d, leasehold.Options{TTL: time.Minute, HandOver: -1, Trace: func(_ context.Context, e leasehold.Event) {
		var row int
		if _, err := fmt.Sscanf(e.Name, "own/%d", &row); err == nil && row >= locked && e.Step == leasehold.StepRetrying {
			t.Errorf("%s: a call had no answer: %v", e.Name, e.Err)
		}
	}})
	var tokens [many]uint64
	for i := range many { // so that the rows exist
		if err := cycle(l, fmt.Sprint("own/", i), &tokens[i]); err != nil {
			t.Fatal(err)
		}
	}
	tx := begin(t, s.open(t, s.Address, nil).DB)
	stuck := make(chan error, locked)
	for i := range locked {
		lockRow(t, tx, fmt.Sprint("own/", i))
		go func() { stuck <- cycle(l, fmt.Sprint("own/", i), &tokens[i]) }()
	}
	var all sync.WaitGroup
	for i := locked; i < many; i++ {
		all.Go(func() {
			for range times {
				if err := cycle(l, fmt.Sprint("own/", i), &tokens[i]); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	select {
	case err := <-stuck:
		t.Errorf("a lock was taken whose row is locked: %v", err)
	default:
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	for range locked {
		if err := <-stuck; err != nil {
			t.Error(err)
		}
	}
	var sections [4]struct {
		inside atomic.Int32
		token  uint64
	}
	for i := range many {
		other := Locker(t, d, leasehold.Options{TTL: time.Minute, HandOver: -1})
		all.Go(func() {
			one := &sections[i%len(sections)]
			for range times {
				err := other.Do(t.Context(), fmt.Sprint("shared/", i%len(sections)), func(ctx context.Context) error {
					lease, _ := leasehold.FromContext(ctx)
					if one.inside.Add(1) != 1 || lease.Token() <= one.token {
						return fmt.Errorf("the token %d came after %d, or two hold at once", lease.Token(), one.token)
					}
					one.token = lease.Token()
					one.inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// LockedRowsHoldUpNoOthers locks the rows of two of many leases, one of them shared, until these
// have ended. The other leases must be renewed in time, over a pool of one connection. A statement
// that waited for a row would keep that connection.
func LockedRowsHoldUpNoOthers(t *testing.T, s Server) {
	const leases, ttl = 30, 20 * time.Second
	d := s.migrated(t, s.Address)
	d.DB.SetMaxOpenConns(1)
	l := Locker(t, d, leasehold.Options{TTL: ttl})
	var stuck, free []*leasehold.Lease
	for i := range leases {
		var opts []leasehold.Option
		if i%2 == 0 {
			opts = append(opts, leasehold.Shared())
		}
		var lease *leasehold.Lease
		until(t, "all rows are leased", 6*margin, func() bool { // again if a busy machine answers too late
			var err error
			lease, err = l.Acquire(t.Context(), fmt.Sprint("row/", i), opts...)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			return err == nil
		})
		if i < 2 {
			stuck = append(stuck, lease)
		} else {
			free = append(free, lease)
		}
	}
	tx := begin(t, s.open(t, s.Address, nil).DB)
	for _, lease := range stuck {
		lockRow(t, tx, lease.Name())
	}
	least := ttl
	for since := time.Now(); time.Since(since) < ttl*3/2; time.Sleep(ttl / 100) {
		for _, lease := range free {
			if err := context.Cause(lease.Context()); err != nil {
				t.Fatalf("the lease of %s ended although others' rows were locked: %v", lease.Name(), err)
			}
			least = min(least, time.Until(lease.Deadline()))
		}
	}
	t.Logf("at least %v of %v were left", least, ttl)
	if least < ttl/4 { // it is 2/3 if nothing is late
		t.Errorf("only %v of %v were left of some lease", least, ttl)
	}
	for _, lease := range stuck {
		if lease.Context().Err() == nil {
			t.Errorf("the lease of %s goes on, whose row is locked", lease.Name())
		}
	}
}
