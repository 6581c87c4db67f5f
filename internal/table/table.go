// Package table keeps the rows of tables in pages that programs write.
package table

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Put puts a row into the table of a page that begins with header, in place of the one that
// begins with the same key. The rows are sorted, and an empty line ends them.
func Put(page, header, key, row string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, table, ok := strings.Cut(string(text), header)
	if !ok {
		return fmt.Errorf("%s has no table that begins with %q", page, header)
	}
	rows, after, _ := strings.Cut(table, "\n\n")
	kept := slices.DeleteFunc(strings.Split(strings.TrimSpace(rows), "\n"), func(row string) bool {
		return row == "" || strings.HasPrefix(row, key)
	})
	kept = append(kept, key+row)
	slices.Sort(kept)
	out := before + header + strings.Join(kept, "\n") + "\n"
	if after != "" {
		out += "\n" + after
	}
	return os.WriteFile(page, []byte(out), 0o666)
}
