package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/mattn/go-runewidth"
	"golang.org/x/term"
)

// Columns of the table of locks.
const (
	columnName = iota
	columnState
	columnHolder
	columnHost
	columnHeld
	columnLeft
	columnWaiting
	columnMode
	columnOwner
	columnToken
)

var heads = []string{"NAME", "STATE", "HOLDER", "HOST", "HELD", "LEFT", "WAITING", "MODE", "OWNER", "TOKEN"}

const gap = 2 // between columns

// flexible are the columns that are shortened on a narrow terminal, with three widths: comfortable,
// legible, and the least that still tells rows apart.
var flexible = map[int][3]int{columnName: {comfortable: 24, legible: 12, least: 12}, columnHolder: {20, 10, 8}, columnHost: {12, 8, 6}}

const whole, comfortable, legible, least = -1, 0, 1, 2

// A table prints one line per holder, and one for each resource that has only waiters. Lines are
// at most width cells wide, or as wide as they need if width is 0. The first rows fix the column
// widths.
type table struct {
	width  int
	widths []int
}

// write writes lines, after the heads if there are none yet.
func (t *table) write(w io.Writer, views []stateView) {
	var rows [][]string
	for _, v := range views {
		name, state, waiting := shown(v.Name), v.stateText(), strconv.Itoa(len(v.Waiters))
		for _, h := range v.Holders {
			rows = append(rows, []string{name, state, orDash(h.who()), orDash(h.Details.Host), secondsText(h.Held), secondsText(h.Left),
				waiting, h.modeText(), orDash(h.Owner), strconv.FormatUint(h.Token, 10)})
		}
		if len(v.Holders) == 0 {
			rows = append(rows, []string{name, state, "-", "-", "-", "-", waiting, "-", "-", "-"})
		}
	}
	if len(rows) == 0 {
		return
	}
	if t.widths == nil {
		rows = slices.Insert(rows, 0, heads)
		t.widths = fitted(natural(rows), t.width)
	}
	for _, row := range rows {
		fmt.Fprintln(w, line(row, t.widths, t.width, columnName, columnHolder, columnHost))
	}
}

// writeTable writes a complete table.
func writeTable(w io.Writer, views []stateView, width int) { (&table{width: width}).write(w, views) }

// natural returns the widths that the columns of rows need.
func natural(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], cells(text))
		}
	}
	return widths
}

// fitted returns the widths of columns in width; 0 means that a column is left out. If names,
// holders and hosts would be cramped, it leaves out TOKEN, OWNER and MODE. If they would be
// unreadable, it also leaves out HOST and HOLDER.
func fitted(natural []int, width int) []int {
	widths := slices.Clone(natural)
	if width <= 0 {
		return widths
	}
	for _, out := range []struct{ column, shortened int }{
		{-1, comfortable}, {columnToken, comfortable}, {columnOwner, comfortable}, {columnMode, least}, {columnHost, least}, {columnHolder, least},
	} {
		if out.column >= 0 {
			widths[out.column] = 0
		}
		if needed(widths, out.shortened) <= width {
			break
		}
	}
	for _, to := range []int{comfortable, legible, least} {
		for needed(widths, whole) > width && shrink(widths, to) {
		}
	}
	return widths
}

// needed returns the width of a line whose flexible columns are shortened.
func needed(widths []int, to int) int {
	sum := -gap
	for i, n := range widths {
		if limits, ok := flexible[i]; ok && to != whole {
			n = min(n, limits[to])
		}
		if n > 0 {
			sum += n + gap
		}
	}
	return sum
}

// shrink takes one cell from the widest column that may still be shortened. It reports whether
// there was one.
func shrink(widths []int, to int) bool {
	widest := -1
	for i, n := range widths {
		if limits, ok := flexible[i]; ok && n > limits[to] && (widest < 0 || n > widths[widest]) {
			widest = i
		}
	}
	if widest >= 0 {
		widths[widest]--
	}
	return widest >= 0
}

// line returns a line of at most width cells, or as wide as it needs if width is 0. It leaves out
// columns without a width, and shortens names and texts to theirs.
func line(row []string, widths []int, width, name int, texts ...int) string {
	var b strings.Builder
	for i, text := range row {
		if widths[i] == 0 {
			continue
		}
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		switch {
		case width == 0: // later rows may need more than the fixed width
		case i == name:
			text = shortened(text, widths[i])
		case slices.Contains(texts, i):
			text = cut(text, widths[i], "…")
		}
		b.WriteString(text)
		b.WriteString(strings.Repeat(" ", max(0, widths[i]-cells(text))))
	}
	text := strings.TrimRight(b.String(), " ")
	if width > 0 {
		text = cut(text, width, "")
	}
	return text
}

// cells returns the width of text on a terminal.
func cells(text string) int { return runewidth.StringWidth(text) }

// cut returns text shortened to width, with end in place of what is missing.
func cut(text string, width int, end string) string { return runewidth.Truncate(text, width, end) }

// shortened omits the middle of a name that does not fit, because related names begin alike and
// differ at the end.
func shortened(name string, width int) string {
	all := cells(name)
	if all <= width {
		return name
	}
	const mark = "…"
	first := cut(name, (width-cells(mark)+1)/2, "")
	return first + runewidth.TruncateLeft(name, all-(width-cells(mark)-cells(first)), mark)
}

// widthOf returns the width of the terminal behind out. It is 0 if there is no terminal, or its
// width is unknown.
func widthOf(out any) int {
	screen, ok := terminal(out)
	if !ok {
		return 0
	}
	width, _, _ := term.GetSize(int(screen.Fd())) // 0 after an error
	return width
}
