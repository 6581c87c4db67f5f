package memory_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func TestConformance(t *testing.T) {
	server := memory.NewServer()
	locktest.Run(t, locktest.Harness{
		Open:       func(testing.TB) driver.Driver { return server.Connect() },
		FlushState: func(testing.TB) { server.Flush() },
	})
}
