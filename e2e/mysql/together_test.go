package mysql

import (
	"testing"

	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/fence"
)

// Every replica of a first deployment makes the tables.
func TestMySQLReplicasMigrateTogether(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		databases.MigrateTogether(t, "mysql", fence.MySQL, sqllock.NewMySQL, func() string { return start(t).DSN() })
	})
}

func TestMySQLFormerVersion(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		databases.FormerVersion(t, "mysql.sql", func() (databases.Store, error) { return open(m.DSN(), nil) })
	})
}
