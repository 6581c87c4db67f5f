package databases

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// begin begins a transaction. It is rolled back when the test ends, if it has not ended before.
func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() }) // it may have ended
	return tx
}

// lockRow locks the row of a resource in tx.
func lockRow(t testing.TB, tx *sql.Tx, name string) {
	t.Helper()
	if _, err := tx.ExecContext(t.Context(), "UPDATE leasehold_locks SET note = 'x' WHERE name = '"+name+"'"); err != nil {
		t.Fatal(err)
	}
}

// HangRow returns the Hang of a locktest.Harness. It locks the row of one resource, through a store
// that open returns.
func HangRow(open func(t testing.TB) Store) func(t testing.TB, name string) (with func(string) bool, resume func()) {
	return func(t testing.TB, name string) (func(string) bool, func()) {
		tx := begin(t, open(t).DB)
		lockRow(t, tx, name)
		return nil, func() { _ = tx.Rollback() } // it may have ended
	}
}

// TimeLimits checks the error of an attempt while somebody has locked the row, for each text after
// the address. Afterwards the lock must be free. within is much longer than the limits.
func TimeLimits(t *testing.T, s Server, limits map[string]error, within time.Duration) {
	d := s.migrated(t, s.Address)
	c := claimOf(t, d, driver.Request{Resource: "x"})
	mustTry(t, c) // creates the row
	mustRelease(t, c)
	for setting, want := range limits {
		tx := begin(t, d.DB)
		lockRow(t, tx, "x")
		start := time.Now()
		if err := Try(t, s.open(t, s.Address+setting, nil), "x"); !errors.Is(err, want) {
			t.Errorf("Try with %s: %v; want %v", setting, err, want)
		}
		if took := time.Since(start); took > within {
			t.Errorf("Try with %s took %v", setting, took)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		next := claimOf(t, d, driver.Request{Resource: "x"})
		if _, err := next.Try(t.Context()); err != nil {
			t.Errorf("after %s: %v; want a grant", setting, err)
		}
		mustRelease(t, next)
	}
}

// PurgePassesOverLockedRows checks that a purge waits for no locked row, and delays nobody who uses
// another idle row. The next purge removes the row. A statement about several rows that waited for
// one could also deadlock with a caller's transaction.
func PurgePassesOverLockedRows(t *testing.T, s Server) {
	d, other := s.migrated(t, s.Address), s.open(t, s.Address, nil)
	for _, locked := range []string{"a", "b", "c"} {
		for _, name := range []string{"a", "b", "c"} {
			mustExec(t, d.DB, "INSERT INTO leasehold_locks (name, fence, owner, expires, since, note, rev, crowd, record) VALUES ('"+name+"', 1, '', 0, 0, '', 1, 0, '{\"v\":1}')")
		}
		tx := begin(t, other.DB)
		lockRow(t, tx, locked)
		ctx, cancel := context.WithTimeout(t.Context(), margin)
		if err := d.Purge(ctx); err != nil {
			t.Errorf("Purge beside a locked row: %v", err)
		}
		cancel()
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := d.Purge(t.Context()); err != nil {
			t.Errorf("Purge: %v", err)
		}
		if left := names(t, d.DB, "%"); left != "" {
			t.Errorf("left: %s", left)
		}
	}
}

// HeartbeatsPassOverLockedRows checks that heartbeats refuse newcomers for longer although somebody
// has locked the row of another name that they wait for.
func HeartbeatsPassOverLockedRows(t *testing.T, s Server) {
	holds, waits := s.migrated(t, s.Address), s.open(t, s.Address, nil)
	all := []string{"a", "b", "c"}
	var waiters []driver.Claim
	for _, name := range all {
		mustTry(t, claimOf(t, holds, driver.Request{Resource: name}))
		waiters = append(waiters, claimOf(t, waits, driver.Request{Resource: name, Queue: true}))
	}
	refuses := func(want int) {
		t.Helper()
		until(t, "newcomers are refused", margin, func() bool {
			for _, c := range waiters {
				if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) { // keeps the place, without a statement
					t.Fatal(err)
				}
			}
			var refused int
			if err := holds.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM leasehold_locks WHERE crowd > 0").Scan(&refused); err != nil {
				t.Fatal(err)
			}
			return refused == want
		})
	}
	refuses(len(all))
	mustExec(t, holds.DB, "UPDATE leasehold_locks SET crowd = 0")
	tx := begin(t, holds.DB)
	lockRow(t, tx, "b")
	refuses(len(all) - 1)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	refuses(len(all))
}
