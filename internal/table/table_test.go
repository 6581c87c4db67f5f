package table

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

type row struct {
	Name string `json:"name"`
	N    int    `json:"n"`
}

func TestKeep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "rows.json")
	var rows []row
	for _, r := range []row{{"b <x>", 1}, {"a", 2}, {"b <x>", 3}} {
		var err error
		if rows, err = Keep(file, r, func(r row) string { return r.Name }); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(rows, []row{{"a", 2}, {"b <x>", 3}}) {
		t.Errorf("kept %v", rows)
	}
	const want = "[\n{\"name\":\"a\",\"n\":2},\n{\"name\":\"b <x>\",\"n\":3}\n]\n"
	if text, err := os.ReadFile(file); err != nil || string(text) != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
	if again, err := Rows[row](file); err != nil || !slices.Equal(again, rows) {
		t.Errorf("read %v, %v", again, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Keep(file, row{}, func(r row) string { return r.Name }); err == nil {
		t.Error("rows that cannot be read are written over")
	}
}

// A reporter records whether a check failed.
type reporter struct {
	testing.TB
	failed bool
}

func (r *reporter) Helper()               {}
func (r *reporter) Error(...any)          { r.failed = true }
func (r *reporter) Errorf(string, ...any) { r.failed = true }

func TestParts(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	const one, two = "x\n<!-- a: one -->\n1\n<!-- /a -->\n", "<!-- a: two -->\n2\n<!-- /a -->\ny\n"
	if err := os.WriteFile(page, []byte(one+two), 0o600); err != nil {
		t.Fatal(err)
	}
	fails := func(part, text string, update bool) bool {
		r := &reporter{}
		Check(r, page, part, text, update)
		return r.failed
	}
	if fails("a: one", "1\n", false) || !fails("a: one", "3\n", false) || !fails("none", "", true) {
		t.Error("Check is wrong about what the page has")
	}
	if fails("a: two", "4\n", true) {
		t.Error("Check does not write")
	}
	const want = one + "<!-- a: two -->\n4\n<!-- /a -->\ny\n"
	if text, err := os.ReadFile(page); err != nil || string(text) != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
}
