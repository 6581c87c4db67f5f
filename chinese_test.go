package leasehold_test

import (
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A page in Chinese names the commands and the files that its English one names: who
// changes one changes both.
func TestChinesePagesNameTheSame(t *testing.T) {
	pages := map[string]string{
		"README.md":         "README.zh-CN.md",
		"docs/choosing.md":  "docs/zh-CN/choosing.md",
		"docs/scenarios.md": "docs/zh-CN/scenarios.md",
		"docs/migrating.md": "docs/zh-CN/migrating.md",
	}
	english := func(page string) string {
		for e, c := range pages {
			if c == page {
				return e
			}
		}
		return page
	}
	for en, zh := range pages {
		want, got := named(t, en, english), named(t, zh, english)
		delete(want, en) // each names the other
		delete(got, en)
		for _, name := range missing(want, got) {
			t.Errorf("%s does not name %s", zh, name)
		}
		for _, name := range missing(got, want) {
			if !strings.HasPrefix(name, "docs/") { // it may lead to more pages
				t.Errorf("%s does not name %s, which %s does", en, name, zh)
			}
		}
	}
}

func missing(of, in map[string]bool) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range of {
			if !in[name] && !yield(name) {
				return
			}
		}
	})
}

var (
	link    = regexp.MustCompile(`\]\(([^):]+)\)`)
	span    = regexp.MustCompile("`([^`\n]+)`")
	block   = regexp.MustCompile("(?s)```(?:sh|go)\n(.*?)```")
	fenced  = regexp.MustCompile("(?s)```.*?```")
	comment = regexp.MustCompile(`\s+# .*`)
	written = regexp.MustCompile(`(?s)<!-- features.*<!-- /features -->`)
)

// named is all that a page names: commands, identifiers, files.
func named(t *testing.T, page string, english func(string) string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	text := written.ReplaceAllString(read(t, page), "")
	for _, b := range block.FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(b[1]) {
			if line = comment.ReplaceAllString(strings.TrimSpace(line), ""); line != "" {
				all[line] = true
			}
		}
	}
	for _, s := range span.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all[s[1]] = true
	}
	for name := range linked(t, page) {
		all[english(name)] = true
	}
	return all
}

// linked is the files that a page has links to, from the root.
func linked(t *testing.T, page string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, l := range link.FindAllStringSubmatch(read(t, page), -1) {
		file, _, _ := strings.Cut(l[1], "#")
		all[path.Join(path.Dir(page), file)] = true
	}
	maps.DeleteFunc(all, func(name string, _ bool) bool { return name == path.Dir(page) })
	return all
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
