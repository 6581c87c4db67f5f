package databases

import (
	"flag"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// Main is locktest.Main with more tests at once than there are processors: they wait for
// leases to end and servers to start.
func Main(m *testing.M, open func(address string) (driver.Driver, error)) {
	const together = "5"
	if err := flag.Set("test.parallel", together); err != nil {
		panic(err) // the name is package testing's
	}
	locktest.Main(m, open)
}
