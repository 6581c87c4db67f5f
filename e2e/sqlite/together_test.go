package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/e2e/together"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/fence"
)

// Every process of a first deployment makes the tables in a file that is there.
func TestSQLiteProcessesMigrateTogether(t *testing.T) {
	t.Parallel()
	foreign := func(db *sql.DB, o *sqllock.Options) (*sqllock.Driver, error) {
		o.AllowForeign = true // the guards' tables are not the locks'
		return sqllock.NewSQLite(db, o)
	}
	databases.MigrateTogether(t, "sqlite", fence.SQLite, foreign, func() string { return lockFile(t) })
}

// A guard's Migrate waits for another writer of the file, until its context ends.
func TestSQLiteGuardWaitsForAnotherWriter(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	db := openDB(t, path)
	guard, err := fence.NewSQL(fence.SQLite, "")
	if err != nil {
		t.Fatal(err)
	}
	open := keepFile(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := guard.Migrate(ctx, db); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another writes: %v; want DeadlineExceeded", err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- guard.Migrate(bounded(t), db) }()
	select {
	case err := <-migrated:
		t.Errorf("did not wait: %v", err)
	case <-time.After(time.Second):
	}
	open()
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}

// Every process makes the file, too.
func TestSQLiteProcessesMakeTheFileTogether(t *testing.T) {
	t.Parallel()
	folder := func() string { return filepath.Dir(lockFile(t)) }
	together.Check(t, databases.MigrationRounds(), folder, func(t *testing.T, number int, folder string) together.Step {
		return func(round int) error {
			db, err := sql.Open("sqlite", filepath.Join(folder, fmt.Sprint(round, ".db")))
			if err != nil {
				return err
			}
			defer db.Close()
			d, err := sqllock.NewSQLite(db, &sqllock.Options{AllowForeign: true})
			if err != nil {
				return err
			}
			return databases.MigrateAll(db, d, fence.SQLite, "leasehold_", number)
		}
	})
}

func TestSQLiteFormerVersion(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	databases.FormerVersion(t, "sqlite.sql", func() (databases.Store, error) {
		return databases.Open("sqlite", path, sqllock.NewSQLite, nil)
	})
}
