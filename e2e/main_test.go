package e2e

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/sqllock"
)

// TestMain also runs the child processes of the conformance suite.
func TestMain(m *testing.M) { locktest.Main(m, openAddress) }

// openAddress opens an engine for a child process: the address is ENGINE:WHERE.
func openAddress(address string) (driver.Driver, error) {
	engine, where, _ := strings.Cut(address, ":")
	switch engine {
	case "sqlite":
		db, err := sql.Open("sqlite", where)
		if err != nil {
			return nil, err
		}
		return sqllock.NewSQLite(db, nil)
	case "redis":
		return openRedisAddress(where)
	}
	return nil, fmt.Errorf("no engine %q", engine)
}
