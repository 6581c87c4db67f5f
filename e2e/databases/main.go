package databases

import (
	"flag"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// Main is locktest.Main with more parallel tests than there are processors, because tests mostly
// wait for leases to end and servers to start.
func Main(m *testing.M, open func(address string) (driver.Driver, error)) {
	const together = "5"
	if err := flag.Set("test.parallel", together); err != nil {
		panic(err) // package testing defines the flag
	}
	locktest.Main(m, open)
}
