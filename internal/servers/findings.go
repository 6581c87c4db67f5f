package servers

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// Found lets d check its server. It returns the findings about one subject, one per line, and the
// worst level. Without findings it returns Fine and "".
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
