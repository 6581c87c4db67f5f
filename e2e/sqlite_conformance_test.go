package e2e

import (
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

func TestSQLiteConformance(t *testing.T) {
	path := lockFile(t)
	openSQLite(t, path)
	locktest.Run(t, locktest.Harness{
		Open:    func(t testing.TB) driver.Driver { return openSQLite(t, path) },
		Address: "sqlite:" + path,
		// No Pause: nothing stops reads, which must go unanswered there.
		FlushState: func(t testing.TB) {
			mustExec(t, openDB(t, path+"?_pragma=busy_timeout(5000)"), "DELETE FROM leasehold_claims", "DELETE FROM leasehold_locks")
		},
		NoLossNotice: true,
	})
}
