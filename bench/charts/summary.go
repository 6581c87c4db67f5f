package main

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	written "github.com/leasehold-go/leasehold/internal/table"
)

//go:embed summary.md.tmpl
var summaryText string

// summaries returns the tables of docs/benchmarks.md by their names, with the figures of the pages
// in folder.
func summaries(folder string) (map[string]string, error) {
	at := func(page, title, row, column string) (string, error) {
		t, err := find(folder, page, title)
		if err != nil {
			return "", err
		}
		i, err := t.column(column)
		if err != nil {
			return "", err
		}
		r := slices.IndexFunc(t.rows, func(cells []string) bool { return cells[0] == row })
		if r < 0 {
			return "", fmt.Errorf("the table %q has no row %q", t.title, row)
		}
		return t.rows[r][i], nil
	}
	ratio := func(page, title, ours, theirs, column string) (string, error) {
		var figures [2]float64
		for i, row := range []string{ours, theirs} {
			cell, err := at(page, title, row, column)
			if err != nil {
				return "", err
			}
			f, ok := figure(cell)
			if !ok {
				return "", fmt.Errorf("%q of %q in the table %q is no figure", column, row, title)
			}
			figures[i] = f
		}
		return fmt.Sprintf("%.2g", figures[0]/figures[1]), nil
	}
	t, err := template.New("").Funcs(template.FuncMap{"at": at, "ratio": ratio}).Parse(summaryText)
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for _, name := range []string{"engines", "turns"} {
		var b strings.Builder
		if err := t.ExecuteTemplate(&b, name, nil); err != nil {
			return nil, err
		}
		all[partOf(name)] = b.String()
	}
	return all, nil
}

// partOf returns the name of a table in the page.
func partOf(name string) string { return name + ": written by bench/charts" }

// summarize writes the summaries into the page beside the folder.
func summarize(folder string) error {
	all, err := summaries(folder)
	if err != nil {
		return err
	}
	for name, text := range all {
		if err := written.Write(filepath.Clean(folder)+".md", name, text); err != nil {
			return err
		}
	}
	return nil
}
