package postgres

import (
	"testing"

	"github.com/leasehold-go/leasehold/e2e/once"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestOnceOnPostgres(t *testing.T) {
	t.Parallel()
	once.Check(t, opened(t, servers.StartPostgres(t).URL(), "").DB, fence.Postgres)
}
