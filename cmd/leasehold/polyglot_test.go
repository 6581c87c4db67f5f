package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each of the three languages sells, and together no more than there is; without a lock they do.
func TestPolyglot(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = ""
	c.env = []string{"TMPDIR=" + c.dir}
	var r struct {
		Runs map[string]struct {
			Sold           map[string]int
			Left, Oversold int
			Broken         []string
		}
	}
	c.want(0, "demo", "polyglot", "--stock", "12", "--json").json(t, &r)
	under, without := r.Runs["lock"], r.Runs["none"]
	sold := 0
	for _, language := range []string{"go", "python", "shell"} {
		if under.Sold[language] == 0 {
			t.Errorf("nobody sold in %s: %v", language, under.Sold)
		}
		sold += under.Sold[language]
	}
	if sold != 12 || under.Left != 0 || len(under.Broken) > 0 {
		t.Errorf("under the lock: %+v", under)
	}
	if without.Oversold == 0 || len(without.Broken) == 0 {
		t.Errorf("without a lock: %+v, want it oversold", without)
	}
	c.wantNoFiles()
}

func TestPolyglotTable(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.env = []string{"TMPDIR=" + c.dir}
	contains(t, c.want(0, "demo", "polyglot", "--stock", "6").stdout, "6 pieces", "WITHOUT LOCK", "UNDER LOCK", "sold in python", "oversold", "total time")
	contains(t, c.want(64, "demo", "polyglot", "--stock", "2").stderr, "--stock 2", "See: leasehold demo polyglot --help")
}

func TestPolyglotTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{"python3", "curl"} {
		dir := t.TempDir()
		for _, name := range []string{"python3", "curl", "sh"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Fatalf("%v: scripts/install-tools installs it", err)
			}
			if name == missing {
				continue
			}
			if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		c := newCLI(t)
		c.env = []string{"PATH=" + dir}
		o := c.want(69, "demo", "polyglot")
		if contains(t, o.stderr, missing+" is not in PATH", "apt install "+missing); strings.Count(strings.TrimSpace(o.stderr), "\n") > 0 {
			t.Errorf("it says more than one line: %q", o.stderr)
		}
	}
}
