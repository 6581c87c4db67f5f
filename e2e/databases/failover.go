package databases

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/stores"
)

// A Failover is what FailsOver needs: two servers behind one name.
type Failover struct {
	URL   string                   // URL with the name
	Store func(t testing.TB) Store // opens a store with a pool of its own at the name, as users do
	// Demote makes the server behind the name read-only, after the other one has received all its
	// data. From then on it does not receive changes of the other.
	Demote func(t testing.TB)
	Next   func(t testing.TB) Store // opens a store at the other server
	// Move makes the name lead to the other server, which accepts writes.
	Move func(t testing.TB)
}

// byURL opens a store with package stores.
func byURL(t testing.TB, url string) driver.Driver {
	t.Helper()
	d, err := stores.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// failoverTTL is more than a failover takes on any machine.
const failoverTTL = time.Hour

// FailsOver checks that no client stays with the former primary, in pools of package stores and in
// those of users. No lease is lost, and there is a leader again.
func FailsOver(t *testing.T, f Failover) {
	callers := f.Store(t)
	const idle = 6 // the first few connections that are tried all lead to the former primary
	callers.DB.SetMaxIdleConns(idle)
	drivers := map[string]driver.Driver{"by URL": byURL(t, f.URL), "caller's pool": callers}
	claims, released := map[string]driver.Claim{}, map[string]driver.Claim{}
	for name, d := range drivers {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			claims[name+", "+mode.String()] = claimOf(t, d, driver.Request{Resource: "kept " + name + mode.String(), Mode: mode, TTL: failoverTTL})
			released[name+", "+mode.String()] = claimOf(t, d, driver.Request{Resource: "released " + name + mode.String(), Mode: mode, TTL: failoverTTL})
		}
	}
	for _, all := range []map[string]driver.Claim{claims, released} {
		for _, c := range all {
			mustTry(t, c)
		}
	}
	began, ended := leads(t, byURL(t, f.URL))
	until(t, "somebody leads", margin, func() bool { return began.Load() == 1 })
	kept := keeps(t, byURL(t, f.URL))

	demoted := time.Now()
	f.Demote(t)
	fillPool(t, callers.DB, idle)
	for name, c := range claims {
		until(t, name+": a server has said that it is read-only", margin, func() bool {
			_, err := c.Renew(t.Context(), failoverTTL)
			if err == nil || errors.Is(err, driver.ErrLost) {
				t.Fatalf("%s: Renew on a server that is read-only: %v", name, err)
			}
			return errors.Is(err, sqllock.ErrReadOnly)
		})
		if err := released[name].Release(t.Context(), driver.End{}); !errors.Is(err, sqllock.ErrReadOnly) {
			t.Errorf("%s: Release on a server that is read-only: %v; want ErrReadOnly", name, err)
		}
		if _, err := drivers["by URL"].(driver.Operator).Inspect(t.Context(), "kept"); err != nil {
			t.Errorf("Inspect on a server that is read-only: %v", err)
		}
	}
	refusesGuard(t, callers)
	// The former primary does not know of grants since then. It must not report them as lost.
	since := driver.Request{Resource: "since", Owner: "an owner of since", Mode: driver.Shared}
	mustTry(t, claimOf(t, f.Next(t), since))
	for name, d := range drivers {
		if err := claimOf(t, d, since).Release(t.Context(), driver.End{}); !errors.Is(err, sqllock.ErrReadOnly) {
			t.Errorf("%s: Release of what was granted since: %v; want ErrReadOnly", name, err)
		}
		if _, err := claimOf(t, d, since).Renew(t.Context(), time.Minute); !errors.Is(err, sqllock.ErrReadOnly) {
			t.Errorf("%s: Renew of what was granted since: %v; want ErrReadOnly", name, err)
		}
	}
	fillPool(t, callers.DB, idle)

	until(t, "the term of a leader is over, whose lease cannot be renewed", margin, func() bool { return ended.Load() == 1 })

	f.Move(t)
	moved := time.Now()
	for name, c := range claims {
		until(t, name+": renewed", margin, func() bool {
			_, err := c.Renew(t.Context(), failoverTTL)
			if errors.Is(err, driver.ErrLost) {
				t.Fatalf("%s: Renew after a failover: %v", name, err)
			}
			return err == nil
		})
		t.Logf("%s: renewed %v after the name has moved", name, time.Since(moved).Round(time.Millisecond))
		mustRelease(t, c)
		until(t, name+": released", margin, func() bool {
			err := released[name].Release(t.Context(), driver.End{})
			if errors.Is(err, driver.ErrLost) {
				t.Fatalf("%s: Release after a failover: %v", name, err)
			}
			return err == nil
		})
	}
	kept.outlive(t, time.Since(demoted), f.Next(t))
	until(t, "somebody leads again", margin, func() bool { return began.Load() > 1 })
	t.Logf("leads again %v after the name has moved", time.Since(moved).Round(time.Millisecond))
}

// leases are renewed by their Lockers. Those with shorter TTLs come first.
type leases []*leasehold.Lease

// The TTLs double. Half of the longest is more than a failover takes on any machine.
const shortestKept, longestKept = 8 * time.Second, 20 * time.Minute

func keeps(t testing.TB, d driver.Driver) (kept leases) {
	t.Helper()
	for ttl := shortestKept; ttl < longestKept; ttl *= 2 {
		lease, err := Locker(t, d, leasehold.Options{TTL: ttl}).Acquire(t.Context(), "kept for "+ttl.String())
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, lease)
	}
	return kept
}

// outlive checks the first lease of whose TTL the failover took no more than half. The lease must
// still be held, with its token, and be renewed at the new primary.
func (kept leases) outlive(t testing.TB, took time.Duration, next driver.Operator) {
	t.Helper()
	lease, ttl := kept[0], shortestKept
	for _, longer := range kept[1:] {
		if ttl < 2*took {
			lease, ttl = longer, 2*ttl
		}
	}
	if ttl < 2*took {
		t.Fatalf("the failover took %v: no lease is that long", took)
	}
	t.Logf("the failover took %v, a lease of %v is to outlive it", took.Round(time.Millisecond), ttl)
	before := lease.Deadline()
	until(t, "a Locker renews its lease at the new primary", ttl, func() bool {
		if lease.Context().Err() != nil {
			t.Fatalf("a lease of %v is lost: %v", ttl, context.Cause(lease.Context()))
		}
		return lease.Deadline().After(before)
	})
	state, err := next.Inspect(t.Context(), lease.Name())
	if err != nil || len(state.Holders) != 1 || state.Holders[0].Fence != lease.Token() {
		t.Errorf("after the failover the new primary has %+v, %v; want token %d", state.Holders, err, lease.Token())
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release after the failover: %v", err)
	}
}

// leads campaigns until the test ends, and counts terms. A term ends only with its lease.
func leads(t testing.TB, d driver.Driver) (began, ended *atomic.Int64) {
	t.Helper()
	l := Locker(t, d, leasehold.Options{TTL: 3 * time.Second})
	began, ended = new(atomic.Int64), new(atomic.Int64)
	over := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(over)
		err := l.Lead(ctx, "leader", func(ctx context.Context) error {
			began.Add(1)
			<-ctx.Done()
			ended.Add(1)
			return nil
		})
		if ctx.Err() == nil {
			t.Errorf("Lead: %v", err)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-over
	})
	return began, ended
}

// fillPool leaves n idle connections in the pool, as other users of it do.
func fillPool(t testing.TB, db *sql.DB, n int) {
	t.Helper()
	for range n {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
}

func refusesGuard(t testing.TB, s Store) {
	t.Helper()
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := s.CheckFence(t.Context(), tx, fence.LeaseOf("kept", 1<<50, "owner")); !errors.Is(err, sqllock.ErrReadOnly) {
		t.Errorf("Guard on a server that is read-only: %v; want ErrReadOnly", err)
	}
}
