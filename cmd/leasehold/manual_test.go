//go:build linux

package main

import (
	"path/filepath"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// Neither of the programs that show manual pages finds fault with one.
func TestManualWithoutWarnings(t *testing.T) {
	t.Parallel()
	groff, mandoc := servers.Need(t, "manual", "groff"), servers.Need(t, "manual", "mandoc")
	c := newCLI(t)
	c.want(0, "man", "man1")
	pages, err := filepath.Glob(filepath.Join(c.dir, "man1", "*.1"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		for _, o := range []outcome{
			c.exec(groff, "-man", "-Tutf8", "-ww", "-rF0", "-z", page),
			c.exec(mandoc, "-Tlint", "-Wwarning", page),
		} {
			if o.code != 0 || o.stdout+o.stderr != "" {
				t.Errorf("%s: exit code %d: %s%s", filepath.Base(page), o.code, o.stdout, o.stderr)
			}
		}
	}
}
