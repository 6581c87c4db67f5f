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
	columnMode
	columnOwner
	columnToken
	columnHeld
	columnLeft
	columnWaiting
	columnNote
)

var heads = []string{"NAME", "MODE", "OWNER", "TOKEN", "HELD", "LEFT", "WAITING", "NOTE"}

const (
	gap = 2 // between columns
	// leastName and leastNote are what a terminal shows of a longer name or note at least.
	leastName = 12
	leastNote = 8
)

// A table prints one line per holder, and one for each resource that has only waiters. Lines are
// at most width cells wide, or as wide as they need if width is 0. The first rows fix the column
// widths.
type table struct {
	width  int
	widths []int
}

// write writes lines, the first time with the heads above them.
func (t *table) write(w io.Writer, views []stateView) {
	var rows [][]string
	for _, v := range views {
		name, waiting := shown(v.Name), strconv.Itoa(len(v.Waiters))
		for _, h := range v.Holders {
			rows = append(rows, []string{name, h.modeText(), ownerText(h.Owner), strconv.FormatUint(h.Token, 10),
				secondsText(h.Held), secondsText(h.Left), waiting, h.Note})
		}
		if len(v.Holders) == 0 {
			rows = append(rows, []string{name, "-", "-", "-", "-", "-", waiting, ""})
		}
	}
	if len(rows) == 0 {
		return
	}
	if t.widths == nil {
		rows = slices.Insert(rows, 0, heads)
		natural := make([]int, len(heads))
		for _, row := range rows {
			for i, text := range row {
				natural[i] = max(natural[i], cells(text))
			}
		}
		t.widths = fitted(natural, t.width)
	}
	for _, row := range rows {
		fmt.Fprintln(w, line(row, t.widths, t.width))
	}
}

// writeTable writes a whole table.
func writeTable(w io.Writer, views []stateView, width int) { (&table{width: width}).write(w, views) }

// fitted returns the widths of columns in so much room, 0 being that of a column which is left out: NAME
// and NOTE are shortened, and where that is not enough TOKEN, NOTE and OWNER are left out.
func fitted(natural []int, width int) []int {
	widths := slices.Clone(natural)
	if width <= 0 {
		return widths
	}
	for _, out := range []int{-1, columnToken, columnNote, columnOwner} {
		if out >= 0 {
			widths[out] = 0
		}
		room := width
		for i, n := range widths {
			switch {
			case n == 0, i == columnName:
			case i == columnNote:
				room -= gap
			default:
				room -= n + gap
			}
		}
		name, note := natural[columnName], widths[columnNote]
		if room >= min(name, leastName)+min(note, leastNote) {
			widths[columnName] = min(name, max(room-note, room/2))
			widths[columnNote] = min(note, room-widths[columnName])
			return widths
		}
	}
	widths[columnName] = min(natural[columnName], leastName)
	return widths
}

// line is one row of a table.
func line(row []string, widths []int, width int) string {
	var b strings.Builder
	for i, text := range row {
		if widths[i] == 0 {
			continue
		}
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		switch {
		case width == 0: // a row that came later may need more
		case i == columnName:
			text = shortened(text, widths[i])
		case i == columnNote:
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

// cells is how wide a terminal shows text.
func cells(text string) int { return runewidth.StringWidth(text) }

// cut returns as much of text as fits, with end where something is missing.
func cut(text string, width int, end string) string { return runewidth.Truncate(text, width, end) }

// shortened leaves out the middle of a name that does not fit: those of one kind begin alike, and their
// ends tell them apart.
func shortened(name string, width int) string {
	all := cells(name)
	if all <= width {
		return name
	}
	const mark = "…"
	first := cut(name, (width-cells(mark)+1)/2, "")
	return first + runewidth.TruncateLeft(name, all-(width-cells(mark)-cells(first)), mark)
}

// widthOf returns the width of the terminal behind out. It is 0 if there is none, or if its width is unknown.
func widthOf(out any) int {
	screen, ok := terminal(out)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(screen.Fd()))
	if err != nil {
		return 0
	}
	return width
}
