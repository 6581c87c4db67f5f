package mysql

import (
	"testing"

	"github.com/leasehold-go/leasehold/e2e/once"
	"github.com/leasehold-go/leasehold/fence"
)

func TestOnceOnMySQL(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) { once.Check(t, opened(t, start(t).DSN()).DB, fence.MySQL) })
}
