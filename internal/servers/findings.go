package servers

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// Found has d look at its server, and returns what it finds about one thing: the worst level, and
// a line for each finding of it. Fine and "": none.
func Found(t testing.TB, d driver.Checker, about string) (worst driver.Level, text string) {
	t.Helper()
	all, err := d.Check(t.Context())
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	var lines []string
	for _, f := range all {
		if f.About == about {
			worst = max(worst, f.Level)
			lines = append(lines, f.String())
		}
	}
	return worst, strings.Join(lines, "\n")
}
