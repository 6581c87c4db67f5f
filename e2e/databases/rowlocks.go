package databases

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// begin begins a transaction that ends with the test, at the latest.
func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() }) // or it has ended
	return tx
}

// lockRow has tx lock the row of a resource.
func lockRow(t testing.TB, tx *sql.Tx, name string) {
	t.Helper()
	if _, err := tx.ExecContext(t.Context(), "UPDATE leasehold_locks SET note = 'x' WHERE name = '"+name+"'"); err != nil {
		t.Fatal(err)
	}
}

// HangRow is a locktest.Harness's Hang: somebody has the row of one resource locked, through a
// store of the harness's.
func HangRow(open func(t testing.TB) Store) func(t testing.TB, name string) (with func(string) bool, resume func()) {
	return func(t testing.TB, name string) (func(string) bool, func()) {
		tx := begin(t, open(t).DB)
		lockRow(t, tx, name)
		return nil, func() { _ = tx.Rollback() } // or it has ended
	}
}

// TimeLimits checks what an attempt ends with while somebody has locked the row, by what
// follows the address, and that the lock is free afterwards. within is much longer than
// the limits.
func TimeLimits(t *testing.T, s Server, limits map[string]error, within time.Duration) {
	d := s.migrated(t, s.Address)
	c := claimOf(t, d, driver.Request{Resource: "x"})
	mustTry(t, c) // makes the row
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

// PurgePassesOverLockedRows checks that a purge waits for no row that somebody has locked, and holds up nobody who asks
// for another of the idle ones; the next purge removes it. A statement about several rows that waited for one could also
// deadlock with a transaction of the caller's.
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
