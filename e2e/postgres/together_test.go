package postgres

import (
	"testing"

	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Every replica of a first deployment makes the tables.
func TestPostgresReplicasMigrateTogether(t *testing.T) {
	t.Parallel()
	for level, settings := range map[string][]string{"read committed": nil, "serializable": {"default_transaction_isolation=serializable"}} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			databases.MigrateTogether(t, "pgx", fence.Postgres, sqllock.NewPostgres, func() string {
				return servers.StartPostgres(t, settings...).URL()
			})
		})
	}
}

func TestPostgresFormerVersion(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	databases.FormerVersion(t, "postgres.sql", func() (databases.Store, error) { return open(p.URL(), "") })
}
