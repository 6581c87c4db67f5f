package sqlite

import (
	"database/sql"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite.
func TestMain(m *testing.M) { locktest.Main(m, openFile) }

func openFile(path string) (driver.Driver, error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return nil, err
	}
	return sqllock.NewSQLite(db, nil)
}

func TestSQLiteConformance(t *testing.T) { apart.Run(t, conformance) }

func conformance(t *testing.T) {
	path := lockFile(t)
	openSQLite(t, path)
	locktest.Run(t, locktest.Harness{
		Open:    func(t testing.TB) driver.Driver { return openSQLite(t, path) },
		Address: path,
		// No Pause: nothing stops reads, which must go unanswered there.
		FlushState: func(t testing.TB) {
			mustExec(t, openDB(t, path+"?_pragma=busy_timeout(5000)"), "DELETE FROM leasehold_locks")
		},
		NoLossNotice: true,
		// The caller's, and those of database/sql and of the client that watch its context.
		CallGoroutines: 5,
	})
}

func TestSQLiteIsLinearizable(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	openSQLite(t, path)
	linear.Check(t, func(t testing.TB) driver.Driver { return openSQLite(t, path) })
}
