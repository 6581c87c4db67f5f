package table

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPut(t *testing.T) {
	const header = "| a | b |\n|---|---|\n"
	page := filepath.Join(t.TempDir(), "page.md")
	put := func(text, key, row, want string) {
		t.Helper()
		if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Put(page, header, key, row); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(page); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	put("x\n"+header, "| 1 |", " 2 |", "x\n"+header+"| 1 | 2 |\n")
	put(header+"| 1 | 2 |\n| 3 | 4 |\n\nafter\n", "| 3 |", " 5 |", header+"| 1 | 2 |\n| 3 | 5 |\n\nafter\n")
	put(header+"| 3 | 4 |\n", "| 1 |", " 2 |", header+"| 1 | 2 |\n| 3 | 4 |\n")
	if err := Put(page, "| none |\n", "", ""); err == nil {
		t.Error("a page without the table is written")
	}
}
