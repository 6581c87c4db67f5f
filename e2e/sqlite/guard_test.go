package sqlite

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/fence"
)

// The check of a token and the write that it guards are one transaction.
func TestSQLiteGuard(t *testing.T) {
	t.Parallel()
	db := openDB(t, lockFile(t))
	mustExec(t, db, "CREATE TABLE stock (pieces INTEGER)")
	d := newSQLite(t, db, &sqllock.Options{AllowForeign: true})
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	write := func(lease *leasehold.Lease, commit bool) error {
		tx, err := db.BeginTx(bounded(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() // does nothing after Commit
		if err := d.CheckFence(bounded(t), tx, lease); err != nil {
			return err
		}
		if _, err := tx.Exec("INSERT INTO stock VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		if commit {
			return tx.Commit()
		}
		return nil
	}
	var leases []*leasehold.Lease
	for range 2 {
		lease, err := locks.Acquire(bounded(t), "stock")
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
		if err := lease.Release(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct {
		lease  int
		commit bool
		want   error
	}{
		{0, true, nil},
		{1, false, nil}, // rolled back: nothing was seen
		{0, true, nil},
		{1, true, nil},
		{0, true, fence.ErrStale},
		{1, true, nil},
	} {
		if err := write(leases[step.lease], step.commit); !errors.Is(err, step.want) {
			t.Errorf("step %d: %v; want %v", i, err, step.want)
		}
	}
	var rows sql.NullInt64
	if err := db.QueryRow("SELECT count(*) FROM stock").Scan(&rows); err != nil || rows.Int64 != 4 {
		t.Errorf("%d rows, %v; want 4", rows.Int64, err)
	}
}
