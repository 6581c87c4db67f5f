package mysql

import (
	"path"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite.
func TestMain(m *testing.M) { databases.Main(m, openAddress) }

func openAddress(dsn string) (driver.Driver, error) { return open(dsn, nil) }

func open(dsn string, opts *sqllock.Options) (databases.Store, error) {
	return databases.Open("mysql", dsn, sqllock.NewMySQL, opts)
}

// opened is a driver of its own on tables that are there.
func opened(t testing.TB, dsn string) databases.Store {
	t.Helper()
	s, err := open(dsn, nil)
	return databases.Migrated(t, s, err)
}

// A starter starts a server of one kind, with settings of the form --name=value.
type starter func(t testing.TB, settings ...string) *servers.MySQL

var kinds = map[string]starter{"MariaDB": servers.StartMariaDB, "MySQL": servers.StartMySQL}

// onEach runs test on each kind of server, beside other tests; in the short lane on MariaDB.
func onEach(t *testing.T, test func(t *testing.T, start starter)) {
	onBoth(t, func(t *testing.T, start starter) {
		if path.Base(t.Name()) != "MariaDB" {
			servers.Long(t, "it runs on MariaDB")
		}
		test(t, start)
	})
}

// onBoth runs test on each kind of server in the short lane, too.
func onBoth(t *testing.T, test func(t *testing.T, start starter)) {
	t.Parallel()
	for kind, start := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, start)
		})
	}
}

func TestMySQLConformance(t *testing.T) {
	t.Run("MariaDB", conformanceOfMariaDB)
	t.Run("MySQL", func(t *testing.T) {
		servers.Long(t, "the suite runs on MariaDB")
		apart.Run(t, func(t *testing.T) { locktest.Run(t, harness(t, servers.StartMySQL)) })
	})
}

func conformanceOfMariaDB(t *testing.T) {
	apart.Run(t, func(t *testing.T) { locktest.Run(t, harness(t, servers.StartMariaDB)) })
}

func harness(t *testing.T, start starter) locktest.Harness {
	m := start(t)
	opened(t, m.DSN())
	return locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := openAddress(m.DSN())
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Address:      m.DSN(),
		Pause:        func(testing.TB) (resume func()) { return m.Pause() },
		Restart:      func(t testing.TB) { m.Kill(); m.Start(t) },
		FlushState:   func(t testing.TB) { m.Must(t, "DELETE FROM locks.leasehold_locks") },
		Hang:         databases.HangRow(func(t testing.TB) databases.Store { return opened(t, m.DSN()) }),
		NoLossNotice: true,
	}
}

func TestMySQLIsLinearizable(t *testing.T) {
	onBoth(t, func(t *testing.T, start starter) {
		m := start(t)
		opened(t, m.DSN())
		linear.Check(t, func(t testing.TB) driver.Driver { return opened(t, m.DSN()) })
	})
}
