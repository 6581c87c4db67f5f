package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A table is a table that a benchmark has written to a page, as text.
type table struct {
	title   string
	columns []string
	rows    [][]string
}

var gaps = regexp.MustCompile(`\s{2,}`)

// readTables returns the tables of a page. Columns are separated by two spaces or more.
func readTables(file string) (all []table, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	title, inside := "", false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		cells := gaps.Split(strings.TrimSpace(line), -1)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = !inside
		case !inside || line == "":
			title = ""
		case !strings.HasPrefix(line, "  "):
			title = line
		case title != "":
			all = append(all, table{title: title, columns: cells})
			title = ""
		case len(all) > 0:
			last := &all[len(all)-1]
			last.rows = append(last.rows, cells)
		}
	}
	return all, nil
}

// find returns the first table whose title begins with title.
func find(folder, page, title string) (table, error) {
	all, err := readTables(filepath.Join(folder, page+".md"))
	if err != nil {
		return table{}, err
	}
	i := slices.IndexFunc(all, func(t table) bool { return strings.HasPrefix(t.title, title) })
	if i < 0 {
		return table{}, fmt.Errorf("%s.md has no table %q", page, title)
	}
	return all[i], nil
}

// column returns the index of a column.
func (t *table) column(name string) (int, error) {
	i := slices.Index(t.columns, name)
	if i < 0 {
		return 0, fmt.Errorf("the table %q has no column %q", t.title, name)
	}
	return i, nil
}

// units maps the units in the pages to factors, which convert times to seconds. A cell with any
// other word after its number is a sentence and not a figure.
var units = map[string]float64{"": 1, "µs": 1e-6, "ms": 1e-3, "s": 1}

// figure parses a cell. It reports false if nothing was measured.
func figure(cell string) (float64, bool) {
	number, unit, _ := strings.Cut(cell, " ")
	f, err := strconv.ParseFloat(number, 64)
	times, known := units[unit]
	return f * times, err == nil && known && f > 0
}
