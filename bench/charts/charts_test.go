package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const pages = "../../docs/benchmarks"

func TestChartsAreOfThePages(t *testing.T) {
	dir := t.TempDir()
	if err := drawAll(pages, dir); err != nil {
		t.Fatal(err)
	}
	drawn, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil || len(drawn) != len(questions)+len(curves) {
		t.Fatalf("%q, %v", drawn, err)
	}
	for _, file := range drawn {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(pages, filepath.Base(file)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the pages say (%v): go run ./charts ../docs/benchmarks", filepath.Base(file), err)
		}
	}
}

func TestSummariesAreOfThePages(t *testing.T) {
	all, err := summaries(pages)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	page, err := os.ReadFile(pages + ".md")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range all {
		if !strings.Contains(string(page), "<!-- "+name+" -->\n"+text) {
			t.Errorf("the table %q is not what the pages say: go run ./charts ../docs/benchmarks", name)
		}
	}
	const typed = "2.1 µs" // core.md has no table that can be read
	core, err := os.ReadFile(filepath.Join(pages, "core.md"))
	if err != nil || !strings.Contains(summaryText, "| "+typed+" |") || !strings.Contains(string(core), "| "+typed+",") {
		t.Errorf("the core's figure is not %q in both: %v", typed, err)
	}
}

func TestTablesAreRead(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	const text = "# A page\n\n```\n== Redis ==\n\nOne goroutine\n  lock      p50      waits\n  two puts  1.5 ms   –\n  ours      12 µs    2.0 s\n\nGoals\n  alone: times  1.1  met\n```\n\nTail\n  not    a table\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := readTables(page)
	if err != nil || len(all) != 2 || all[0].title != "One goroutine" || !slices.Equal(all[0].columns, []string{"lock", "p50", "waits"}) ||
		len(all[0].rows) != 2 || !slices.Equal(all[0].rows[0], []string{"two puts", "1.5 ms", "–"}) {
		t.Errorf("%q, %v", all, err)
	}
	for cell, want := range map[string]float64{"1.5 ms": 1.5e-3, "12 µs": 12e-6, "2.0 s": 2, "9371": 9371, "–": 0, "997 served in 3m0s": 0} {
		if got, ok := figure(cell); got != want && ok || ok != (want > 0) {
			t.Errorf("%q is %v, %v", cell, got, ok)
		}
	}
}
