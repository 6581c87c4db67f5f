// Package badday has the real command, and programs with the library, live through what docs/bad-day.md
// describes: holders are killed, servers hang, firewalls forget connections, rights are withdrawn and
// secrets replaced. It also looks for passwords wherever the command could leave them.
package badday

import (
	"os"
	"testing"

	"github.com/leasehold-go/leasehold/e2e/program"
)

// binary is the real command, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(program.Main(m, &binary))
}
