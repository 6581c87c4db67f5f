package contest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The program writes its part of a page, with the conditions, and leaves the rest alone.
func TestPageIsWritten(t *testing.T) {
	report = book{}
	t.Cleanup(func() { report = book{} })
	e := &Engine{Name: "Some Engine"}
	dir := t.TempDir()
	path := filepath.Join(dir, "some-engine.md")
	if err := e.writePage(dir, beginRun()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a run that measured nothing has written a page")
	}
	NewTable("Alone", "lock", "p50").Row("ours", 1.5)
	Server("engine 1.2")
	Server("engine 1.2")
	for _, before := range []string{"", "# By hand\n\n<!-- " + part + " -->\nold\n<!-- /run -->\nmore\n"} {
		if before != "" {
			if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.writePage(dir, beginRun()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"  ours  1.50", "servers: engine 1.2\n", "processors", "load of the machine", "UTC"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("the page has no %q:\n%s", want, text)
			}
		}
		if before != "" && (strings.Contains(string(text), "old") || !strings.HasPrefix(string(text), "# By hand\n") || !strings.HasSuffix(string(text), "\nmore\n")) {
			t.Errorf("what is around it has changed:\n%s", text)
		}
	}
	for _, rounds := range []string{"", "one round of each row"} {
		want := "; " + rounds + "\n"
		if rounds == "" {
			want = "; the median of several rounds, locks in turns\n"
		}
		if got := beginRun().conditions(nil, rounds); !testing.Short() && !strings.Contains(got, want) {
			t.Errorf("the conditions have no %q:\n%s", want, got)
		}
	}
	if err := os.WriteFile(path, []byte("# By hand\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.writePage(dir, beginRun()); err == nil {
		t.Error("a page without a place for it was taken")
	}
}
