package mysql

import (
	"database/sql"
	"errors"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/sqllock"
)

// TestMain also runs the child processes of the conformance suite.
func TestMain(m *testing.M) { databases.Main(m, openAddress) }

// store is a driver that closes its connections too.
type store struct {
	*sqllock.Driver
	db *sql.DB
}

func (s store) Close() error { return errors.Join(s.Driver.Close(), s.db.Close()) }

func openAddress(dsn string) (driver.Driver, error) { return open(dsn) }

func open(dsn string) (store, error) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return store{}, err
	}
	db.SetMaxIdleConns(8)
	d, err := sqllock.NewMySQL(db, nil)
	return store{d, db}, err
}

// opened is a driver of its own on tables that are there.
func opened(t testing.TB, dsn string) store {
	t.Helper()
	s, err := open(dsn)
	if err == nil {
		t.Cleanup(func() { s.Close() })
		err = s.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMySQLConformance(t *testing.T) {
	m := servers.StartMariaDB(t)
	opened(t, m.DSN())
	locktest.Run(t, locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := open(m.DSN())
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Address:      m.DSN(),
		Pause:        func(testing.TB) (resume func()) { return m.Pause() },
		Restart:      func(t testing.TB) { m.Kill(); m.Start(t) },
		FlushState:   func(t testing.TB) { m.Must(t, "DELETE FROM locks.leasehold_locks") },
		NoLossNotice: true,
	})
}

func TestMySQLIsLinearizable(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	opened(t, m.DSN())
	linear.Check(t, func(t testing.TB) driver.Driver { return opened(t, m.DSN()) })
}
