package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
)

// Names that are wider than they have letters, or narrower.
var wide = []string{
	"orders/42",
	strings.Repeat("orders/2026/", 40) + "42",
	"订单/四十二/" + strings.Repeat("锁", 150) + "/结束",
	"cafe\u0301/" + strings.Repeat("e\u0301", 150),
	"👩🏽/🚀🚀/" + strings.Repeat("🚀", 120),
	"ｆｕｌｌ－ｗｉｄｔｈ/ﾊﾝｶｸ",
}

func wideViews() (views []stateView) {
	for i, name := range wide {
		views = append(views, stateView{Name: name, Holders: []holderView{{
			Owner: "IUMRUENR", Mode: "exclusive", Token: 1838875457252026368, Held: 3.1, Left: 6.9,
			Note: strings.Repeat(wide[len(wide)-1-i], 2), Details: detailsView{Host: wide[i], Text: strings.Repeat(wide[len(wide)-1-i], 2)},
		}}})
	}
	return append(views, stateView{Name: "waited for", Waiters: []waiterView{{}}})
}

// No line is wider than the terminal, whatever the names are, and the columns begin at the same cells.
func TestTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for width := 20; width <= 250; width++ {
		var b strings.Builder
		writeTable(&b, wideViews(), width)
		lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		for _, l := range lines {
			if got := cells(l); got > width || !utf8.ValidString(l) {
				t.Fatalf("%d cells of %d: %q", got, width, l)
			}
		}
		if width < 44 { // room for a name of 12 cells, STATE, HELD, LEFT and WAITING
			continue
		}
		for column, cell := range map[string]string{"STATE": "held", "HELD": "3.1s", "LEFT": "6.9s", "WAITING": "0"} {
			head, _, _ := strings.Cut(lines[0], column)
			for _, l := range lines[1 : len(lines)-1] {
				if from := skip(l, cells(head)); !strings.HasPrefix(from, cell) {
					t.Fatalf("width %d: %s is not below its head:\n%s", width, column, b.String())
				}
			}
		}
		for i, l := range lines[1 : len(lines)-1] { // both ends of each name
			if first, last := []rune(wide[i])[0], wide[i][len(wide[i])-2:]; !strings.HasPrefix(l, string(first)) || !strings.Contains(l, last) {
				t.Fatalf("width %d: %q of %q", width, l, wide[i])
			}
		}
	}
}

// skip returns line without its first n cells.
func skip(line string, n int) string {
	return strings.TrimPrefix(line, runewidth.Truncate(line, n, ""))
}

// Output that goes to no terminal is not shortened.
func TestTableIsWholeElsewhere(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	writeTable(&b, wideViews(), 0)
	for _, name := range wide {
		if !strings.Contains(b.String(), name+" ") || !strings.Contains(b.String(), name+name+" ") {
			t.Errorf("%q is not in it", name)
		}
	}
}

// Where there is room nothing is shortened or left out, and what is left out goes in order.
func TestColumnsThatAreLeftOut(t *testing.T) {
	t.Parallel()
	views := []stateView{{Name: "orders/42", Holders: []holderView{{Owner: "IUMRUENR", Mode: "exclusive", Token: 1838875457252026368, Held: 3.1, Left: 6.9, Details: detailsView{Host: "web-7", Program: "sleep", PID: 22760}}}}}
	for width, want := range map[int]string{
		100: "NAME STATE HOLDER HOST HELD LEFT WAITING MODE OWNER TOKEN", 99: "NAME STATE HOLDER HOST HELD LEFT WAITING MODE OWNER",
		79: "NAME STATE HOLDER HOST HELD LEFT WAITING MODE OWNER", 78: "NAME STATE HOLDER HOST HELD LEFT WAITING MODE", 69: "NAME STATE HOLDER HOST HELD LEFT WAITING MODE", 68: "NAME STATE HOLDER HOST HELD LEFT WAITING",
		60: "NAME STATE HOLDER HOST HELD LEFT WAITING", 50: "NAME STATE HOLDER HELD LEFT WAITING", 40: "NAME STATE HELD LEFT WAITING",
	} {
		var b strings.Builder
		writeTable(&b, views, width)
		head, _, _ := strings.Cut(b.String(), "\n")
		if got := strings.Join(strings.Fields(head), " "); got != want || strings.Contains(b.String(), "…") && width >= 79 {
			t.Errorf("width %d: %s\n%s", width, got, b.String())
		}
	}
}
