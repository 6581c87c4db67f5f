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

// A Deadlock is how a server has them.
type Deadlock struct {
	Client  string // follows the address of the transaction that is not to be ended
	First   string // statement of that transaction; "": none
	Waiting string // query for how many wait for a row
	Ended   string // query for how many were ended
}

// DeadlockIsRepeated has Purge, the one statement that waits for several rows, and a
// transaction lock the same two in opposite orders, so that the database ends the
// statement, which is repeated.
func DeadlockIsRepeated(t *testing.T, s Server, kind Deadlock) {
	d, other := s.migrated(t, s.Address), s.open(t, s.Address+kind.Client, nil)
	cross := func(first, second string) {
		t.Helper()
		for _, name := range []string{"a", "b", "c"} {
			mustExec(t, d.DB, "INSERT INTO leasehold_locks (name, fence, owner, expires, since, note, rev, crowd, record) VALUES ('"+name+"', 1, '', 0, 0, '', 1, 0, '{\"v\":1}')")
		}
		tx := begin(t, other.DB)
		if kind.First != "" {
			if _, err := tx.Exec(kind.First); err != nil {
				t.Fatal(err)
			}
		}
		lockRow(t, tx, first)
		purged := make(chan error, 1)
		go func() { purged <- d.Purge(t.Context()) }()
		until(t, "the statement waits", margin, func() bool { return s.Must(t, kind.Waiting) != "0" })
		lockRow(t, tx, second)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-purged; err != nil {
			t.Errorf("Purge: %v", err)
		}
		if left := names(t, d.DB, "%"); left != "" {
			t.Errorf("left: %s", left)
		}
	}
	cross("a", "c")
	cross("c", "a") // one of them is not the order of the statement
	until(t, "there was a deadlock", 3*margin, func() bool { return s.Must(t, kind.Ended) != "0" })
}
