package sqlite

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/e2e/together"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/sqllock"
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

// Every process makes the file, too.
func TestSQLiteProcessesMakeTheFileTogether(t *testing.T) {
	t.Parallel()
	folder := func() string { return filepath.Dir(lockFile(t)) }
	together.Check(t, databases.MigrationRounds, folder, func(t *testing.T, number int, folder string) together.Step {
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
