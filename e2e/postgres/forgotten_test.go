package postgres

import (
	"fmt"
	"testing"

	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestPostgresForgottenConnections(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	name := servers.StartProxy(t, p.Addr())
	databases.ForgottenConnections(t, "postgres://postgres@"+name.Addr()+"/postgres?sslmode=disable", name)
}

func TestPostgresReleaseAnswerLost(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	const form = "postgres://postgres@%s/postgres?sslmode=disable"
	name := servers.StartProxy(t, p.Addr())
	databases.ReleaseAnswerLost(t, fmt.Sprintf(form, name.Addr()), fmt.Sprintf(form, p.Addr()), name)
}

func TestPostgresPoolIsKept(t *testing.T) {
	t.Parallel()
	through := servers.StartProxy(t, servers.StartPostgres(t).Addr())
	databases.PoolIsKept(t, "postgres://postgres@"+through.Addr()+"/postgres?sslmode=disable", through)
}
