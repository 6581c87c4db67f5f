// Package table keeps what programs write into pages for people: parts of a page, and the rows as
// JSON that such a part sums up.
package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Rows reads a file of rows as JSON, as Keep writes it. A missing file has no rows.
func Rows[R any](file string) (rows []R, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return rows, nil
}

// Keep puts a row into a file of rows, in place of the one with the same key. It returns all rows,
// sorted by key. Each has a line of its own in the file, so that diffs show single rows.
func Keep[R any](file string, row R, key func(R) string) ([]R, error) {
	rows, err := Rows[R](file)
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r R) bool { return key(r) == key(row) })
	rows = append(rows, row)
	slices.SortFunc(rows, func(a, b R) int { return strings.Compare(key(a), key(b)) })
	var lines []string
	for _, r := range rows {
		var line bytes.Buffer
		plain := json.NewEncoder(&line)
		plain.SetEscapeHTML(false)
		if err := plain.Encode(r); err != nil {
			return nil, err
		}
		lines = append(lines, strings.TrimSpace(line.String()))
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return nil, err
	}
	return rows, os.WriteFile(file, []byte("[\n"+strings.Join(lines, ",\n")+"\n]\n"), 0o666)
}

// Write puts text into the part of a page that is called name. The part is between the lines <!--
// name --> and <!-- /word -->, where word is the first word of name.
func Write(page, name, text string) error {
	before, _, after, err := cut(page, name)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(before+text+after), 0o666)
}

// Check fails t unless the part of the page has that text. With update, it writes the text instead.
func Check(t testing.TB, page, name, text string, update bool) {
	t.Helper()
	_, old, _, err := cut(page, name)
	if err == nil && old != text && update {
		err = Write(page, name, text)
		old = text
	}
	switch {
	case err != nil:
		t.Error(err)
	case old != text:
		t.Errorf("%s is out of date; the test's flag -update writes it:\n%s", page, text)
	}
}

// cut returns a part of a page, and the text before and after it.
func cut(page, name string) (before, part, after string, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", "", "", err
	}
	word, _, _ := strings.Cut(name, ":")
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+word+" -->"
	before, rest, found := strings.Cut(string(text), begin)
	part, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", "", "", fmt.Errorf("%s has no part %q that ends with %q", page, begin, end)
	}
	return before + begin, part, end + after, nil
}
