package table

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Cells calls f for each cell of the table that stands in the comments of a Go file: its columns are named by a
// line of the keys of columns, its rows begin with keys of rows, and it has as many cells as want.
func Cells[R, C any](t testing.TB, file string, want int, rows map[string]R, columns map[string]C, f func(row R, column C, cell, name string)) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	cells := 0
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(strings.TrimPrefix(line, "//"))
		if len(words) == len(columns) && !slices.ContainsFunc(words, func(w string) bool { return !has(columns, w) }) {
			names = words
		}
		if len(words) != len(columns)+1 || names == nil || !strings.HasPrefix(line, "//\t") {
			continue
		}
		if !has(rows, words[0]) {
			t.Fatalf("no such row in %q", line)
		}
		for i, cell := range words[1:] {
			f(rows[words[0]], columns[names[i]], cell, words[0]+"/"+names[i])
			cells++
		}
	}
	if cells != want {
		t.Fatalf("the table in %s has %d cells, want %d", file, cells, want)
	}
}

func has[V any](m map[string]V, key string) bool { _, ok := m[key]; return ok }
