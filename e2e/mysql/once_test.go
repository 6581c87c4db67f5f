package mysql

import (
	"testing"

	"github.com/leasehold-go/leasehold/e2e/once"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/fence"
)

func TestOnceOnMariaDB(t *testing.T) {
	t.Parallel()
	once.Check(t, opened(t, servers.StartMariaDB(t).DSN()).DB, fence.MySQL)
}
