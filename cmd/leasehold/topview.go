package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
)

// A topView is the state of top, without any I/O. Keys change it.
type topView struct {
	app           *app // for the commands that it suggests
	store, prefix string
	keys          bool // there is a keyboard
	since         time.Time

	topAnswer
	topPlace
	topDialogue

	says   string // a message, until the next key
	quits  bool
	evicts *topEviction // a confirmed eviction, for the caller to take and carry out
}

// A topAnswer is what the store has answered.
type topAnswer struct {
	states []leasehold.State // from the last answer
	more   bool              // the store has more names
	at     time.Time         // time of the last answer; zero: none yet
	err    error             // of the last call
}

// A topPlace is the part of the list that is shown, and the selected line.
type topPlace struct {
	selection        // the order of the list
	filter    string // text that lines must contain
	chosen    topRow // the selected line
	chosenAt  int    // its index when it was last seen
	first     int    // index of the line at the top
	page      int    // number of lines that fit
}

// A topDialogue is what is shown instead of the list, or below it.
type topDialogue struct {
	mode     topMode
	from     topMode // for a prompt: the mode to which Esc returns
	typed    string  // text typed in a prompt
	scrolled int     // lines by which the details of one lock are scrolled
	eviction topEviction
}

type topMode int

const (
	topList topMode = iota
	topShow
	topHelp
	topFilter  // a prompt
	topReason  // a prompt
	topConfirm // a prompt
)

// A topRow identifies a line by what it shows.
type topRow struct{ name, owner string }

// take takes the result of a look. After an error without states, the former answer stays.
func (v *topView) take(page leasehold.Page, err error, now time.Time) {
	v.err = err
	if err == nil || len(page.States) > 0 {
		v.states, v.more, v.at = page.States, page.Next != "", now
	}
}

// lines returns the locks that are shown, and what each line is about.
func (v *topView) lines() (views []stateView, rows []topRow) {
	for _, s := range v.states {
		if view := viewOf(s); v.matches(view) {
			views = append(views, view)
		}
	}
	if v.sort != "" {
		v.arrange(views)
	}
	for _, view := range views {
		for _, h := range view.Holders {
			rows = append(rows, topRow{view.Name, h.Owner})
		}
		if len(view.Holders) == 0 {
			rows = append(rows, topRow{name: view.Name})
		}
	}
	return views, rows
}

// matches reports whether a lock contains the text of the filter.
func (v *topView) matches(view stateView) bool {
	text := shown(view.Name) + "\n" + view.stateText()
	for _, h := range view.Holders {
		text += "\n" + h.who() + "\n" + h.Details.Host + "\n" + h.Details.User + "\n" + h.Details.labels() + "\n" + h.Owner + "\n" + h.modeText()
	}
	for _, w := range view.Waiters {
		text += "\n" + w.who() + "\n" + w.Details.Host + "\n" + w.Details.labels()
	}
	return strings.Contains(strings.ToLower(text), strings.ToLower(v.filter))
}

// press handles a key.
func (v *topView) press(key string) {
	v.says = ""
	switch {
	case key == keyInterrupt:
		v.quits = true
	case v.mode >= topFilter:
		v.write(key)
	case key == "q", key == "Q":
		v.quits = true
	case v.mode == topHelp:
		v.mode = v.from
	case key == "?":
		v.mode, v.from = topHelp, v.mode
	case key == "e":
		v.beginEviction()
	case v.mode == topShow:
		v.pressInShow(key)
	default:
		v.pressInList(key)
	}
}

func (v *topView) pressInList(key string) {
	_, rows := v.lines()
	at := v.selected(rows)
	switch key {
	case "s":
		v.sort = orderNames[(slices.Index(orderNames, v.sort)+1)%len(orderNames)]
		return
	case "/":
		v.mode, v.typed = topFilter, v.filter
		return
	case keyEnter:
		if len(rows) > 0 {
			v.mode, v.scrolled = topShow, 0
		}
	case keyEscape:
		v.filter = ""
	case keyUp, "k":
		at--
	case keyDown, "j":
		at++
	case keyPageUp:
		at -= v.page
	case keyPageDown:
		at += v.page
	case keyHome:
		at = 0
	case keyEnd:
		at = len(rows) - 1
	}
	if len(rows) > 0 {
		v.chosen = rows[min(max(at, 0), len(rows)-1)]
	}
}

func (v *topView) pressInShow(key string) {
	switch key {
	case keyEscape, keyEnter, keyBackspace:
		v.mode = topList
	case keyUp, "k":
		v.scrolled = max(v.scrolled-1, 0)
	case keyDown, "j":
		v.scrolled++
	case keyPageUp:
		v.scrolled = max(v.scrolled-v.page, 0)
	case keyPageDown:
		v.scrolled += v.page
	case keyHome:
		v.scrolled = 0
	}
}

// selected returns the index of the selected line. If that line is gone, it is the line in its
// place.
func (v *topView) selected(rows []topRow) int {
	if at := slices.Index(rows, v.chosen); at >= 0 {
		return at
	}
	if at := slices.IndexFunc(rows, func(r topRow) bool { return r.name == v.chosen.name }); at >= 0 {
		return at
	}
	return max(min(v.chosenAt, len(rows)-1), 0)
}

// beginEviction opens the prompt for a reason to evict the selected holder.
func (v *topView) beginEviction() {
	_, rows := v.lines()
	row := v.chosen
	if v.mode == topList {
		if len(rows) == 0 {
			return
		}
		row = rows[v.selected(rows)]
		v.chosen = row
	}
	i := slices.IndexFunc(v.states, func(s leasehold.State) bool { return s.Resource == row.name })
	if i < 0 {
		v.says = v.unlisted(row.name)
		return
	}
	holders := v.states[i].Holders
	if len(holders) == 1 && v.mode == topShow { // the present holder, whoever it is: the prompt names it
		row.owner = holders[0].Owner.String()
	}
	var found []leasehold.Holder
	kept := false
	for _, h := range holders {
		if kept = kept || h.Owner.Reveal() == ""; h.Owner.String() == row.owner && row.owner != "" {
			found = append(found, h)
		}
	}
	switch {
	case len(found) == 1:
		v.from, v.mode, v.typed = v.mode, topReason, ""
		v.eviction = topEviction{name: row.name, holder: found[0]}
	case len(found) > 1:
		v.says = fmt.Sprintf("%d holders start with %s: leasehold evict takes a whole owner", len(found), row.owner)
	case kept:
		v.says = "nobody holds it any more; to free it: " + v.app.line("reset", row.name)
	case row.owner != "":
		v.says = row.owner + " does not hold it any more"
	default:
		v.says = "nobody holds it"
	}
}

// write handles a key in a prompt.
func (v *topView) write(key string) {
	switch key {
	case keyEscape:
		if v.mode == topFilter {
			v.filter = ""
			v.mode = topList
			return
		}
		v.mode, v.says = v.from, "nobody was evicted"
	case keyEnter:
		v.enter()
	case keyBackspace:
		if r := []rune(v.typed); len(r) > 0 {
			v.typed = string(r[:len(r)-1])
		}
	case keyClear:
		v.typed = ""
	default:
		if len([]rune(key)) == 1 && len(v.typed) < 1000 {
			v.typed += plain(key)
		}
	}
	if v.mode == topFilter {
		v.filter = v.typed
	}
}

// enter completes a prompt.
func (v *topView) enter() {
	switch v.mode {
	case topFilter:
		v.filter, v.mode = v.typed, topList
	case topReason:
		if strings.TrimSpace(v.typed) == "" {
			v.says = "say why, for the holder that is evicted; Esc goes back"
			return
		}
		v.eviction.reason, v.typed, v.mode = v.typed, "", topConfirm
	case topConfirm:
		v.mode = v.from
		if v.typed != v.eviction.name && v.typed != shown(v.eviction.name) {
			v.says = "nobody was evicted: that is not the name"
			return
		}
		e := v.eviction
		v.evicts, v.says = &e, fmt.Sprintf("evicting %s from %s …", e.holder.Owner, shown(e.name))
	}
}

// frame returns the screen.
func (v *topView) frame(now time.Time, width, height int) []byte {
	if width < 1 || height < 1 {
		return nil // the terminal reports no size
	}
	lines := []screenLine{{boldText, v.head(now)}, {"", v.news(now)}}
	foot := v.foot()
	v.page = max(height-len(lines)-len(foot)-1, 1) // without the heads of the table
	switch v.mode {
	case topHelp:
		lines = append(lines, topHelpLines()...)
	case topShow:
		lines = append(lines, v.show(height-len(lines)-len(foot))...)
	default:
		lines = append(lines, v.table(width)...)
	}
	room := max(height-len(foot), 0)
	for len(lines) < room {
		lines = append(lines, screenLine{})
	}
	lines = append(lines[:room], foot[max(len(foot)-height, 0):]...)
	return drawn(lines, width, height, v.mode >= topFilter)
}

// head returns the first line. The store's address may be long, so it is last.
func (v *topView) head(now time.Time) string {
	holders, waiters := 0, 0
	for _, s := range v.states {
		for _, h := range s.Holders {
			if h.Owner.Reveal() != "" { // otherwise its job is done, and only its name is kept
				holders++
			}
		}
		waiters += len(s.Waiters)
	}
	of, order := "", ""
	if v.more {
		of = fmt.Sprintf(" of the first %d names", len(v.states))
	}
	if v.sort != "" {
		order = "  by " + v.sort
	}
	prefix := ""
	if v.prefix != "" {
		prefix = "  " + shown(v.prefix) + "…"
	}
	return fmt.Sprintf("%d held, %d waiting%s%s%s  %s  %s", holders, waiters, of, prefix, order, now.Format(time.TimeOnly), v.store)
}

// stale is the age from which on an answer counts as old.
const stale = 3 * topEvery

// news returns the message to read first: the outcome of a key, or that the store does not answer.
func (v *topView) news(now time.Time) string {
	age := now.Sub(v.at).Truncate(time.Second)
	switch {
	case v.says != "":
		return v.says
	case v.at.IsZero() && v.err != nil:
		return plain(v.err.Error())
	case v.at.IsZero():
		if waits := now.Sub(v.since).Truncate(time.Second); waits >= stale {
			return fmt.Sprintf("the store has not answered for %v", waits)
		}
		return "asking the store …"
	case age >= stale && v.err != nil:
		return fmt.Sprintf("as it was %v ago: %s", age, plain(v.err.Error()))
	case age >= stale:
		return fmt.Sprintf("as it was %v ago: the store does not answer", age)
	case v.err != nil:
		return plain(v.err.Error())
	case v.filter != "" && v.mode != topFilter:
		return fmt.Sprintf("only lines with %q; Esc shows all", v.filter)
	}
	return ""
}

// foot returns a line about the keys, or a prompt.
func (v *topView) foot() []screenLine {
	holder := v.eviction.holder
	who := fmt.Sprintf("%s (%s)", holder.Owner, orDash(lineOf(holder)))
	name := shown(v.eviction.name)
	switch {
	case v.mode == topFilter:
		return []screenLine{{"", "lines with: " + v.typed}}
	case v.mode == topReason:
		return []screenLine{{boldText, "Evict " + who + " from " + name + "?"}, {"", "It may act until it learns of it. Esc goes back."}, {"", "reason: " + v.typed}}
	case v.mode == topConfirm:
		return []screenLine{{boldText, "Evict " + who + " from " + name + "?"}, {"", "reason: " + v.eviction.reason}, {"", "type the name to evict: " + v.typed}}
	case !v.keys:
		return []screenLine{{"", "Ctrl-C quits"}}
	case v.mode == topHelp:
		return []screenLine{{"", "any key goes back  q quit"}}
	case v.mode == topShow:
		return []screenLine{{"", "Esc back  e evict  ? help  q quit"}}
	}
	return []screenLine{{"", "s sort  / filter  Enter show  e evict  ? help  q quit"}}
}

// topKeys describes the keys, in the manual and on the screen.
const topKeys = `  up, down  select a line (also k, j, PgUp, PgDn, Home, End)
  Enter     show all about the selected lock
  s         sort by name, held, left, waiting or host, in turn
  /         show only lines with a text, in any column or label
  e         evict the selected holder
  Esc       go back; in the list, show all lines again
  ?         show these keys
  q         quit
`

func topHelpLines() []screenLine {
	lines := []screenLine{{}}
	for line := range strings.Lines(topKeys) {
		lines = append(lines, screenLine{"", strings.TrimSpace(line)})
	}
	return lines
}

// show returns the details of the selected lock, as far as there is room.
func (v *topView) show(room int) (lines []screenLine) {
	var b strings.Builder
	i := slices.IndexFunc(v.states, func(s leasehold.State) bool { return s.Resource == v.chosen.name })
	if i < 0 {
		b.WriteString(v.unlisted(v.chosen.name))
	} else {
		writeState(&b, viewOf(v.states[i]))
	}
	all := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	v.scrolled = max(min(v.scrolled, len(all)-max(room, 1)), 0)
	for _, line := range all[v.scrolled:] {
		lines = append(lines, screenLine{"", line})
	}
	return lines
}

// unlisted returns what is known of a lock that is not in the last answer. It need not be free: the
// answer may have left it out.
func (v *topView) unlisted(name string) string {
	return shown(name) + " is not in the list now; to see it: " + v.app.line("show", name)
}

// table returns the visible part of the list, with the selected line marked.
func (v *topView) table(width int) []screenLine {
	views, rows := v.lines()
	if len(rows) == 0 {
		switch {
		case v.at.IsZero():
			return nil
		case v.filter != "":
			return []screenLine{{"", "no line has it"}}
		}
		return []screenLine{{"", "no lock is held or waited for"}}
	}
	var b strings.Builder
	writeTable(&b, views, width)
	heads, text, _ := strings.Cut(b.String(), "\n")
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	at := v.selected(rows)
	v.chosen, v.chosenAt = rows[at], at
	v.first = max(min(v.first, at, len(all)-v.page), at-v.page+1, 0)
	lines := []screenLine{{boldText, heads}}
	for i, line := range all[v.first:min(v.first+v.page, len(all))] {
		style := ""
		if v.keys && v.first+i == at {
			style, line = reverseText, line+strings.Repeat(" ", max(width-cells(line), 0))
		}
		lines = append(lines, screenLine{style, line})
	}
	return lines
}
