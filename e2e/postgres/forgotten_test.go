package postgres

import (
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
