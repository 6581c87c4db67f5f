package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/details"
)

// Views are the output of ls, show and top. They have short owners, lease tokens instead of fences,
// and text from other users without control characters. In JSON a token is a string. As a number it
// would exceed 2^53, and most readers would round it.

type stateView struct {
	Name    string       `json:"name"`
	State   string       `json:"state" enum:"held,reserved,done,free" about:"done: nobody holds it, and a finished job keeps the name"`
	Token   uint64       `json:"token,string" about:"the token of the last grant; 0: unknown"`
	Limit   int          `json:"limit,omitempty" about:"the limit that leasehold limit has set; the smallest limit counts"`
	Used    int64        `json:"used,omitempty" about:"how much of the limit is used: the sum of the weights of all holders"`
	Holders []holderView `json:"holders" about:"the holders; empty: the lock is free"`
	Waiters []waiterView `json:"waiters" about:"the waiters, in the order of the queue"`
}

type holderView struct {
	Owner  string  `json:"owner" about:"the beginning of the owner; empty: a finished job keeps the name"`
	Mode   string  `json:"mode" enum:"exclusive,shared"`
	Limit  int     `json:"limit,omitempty" about:"the limit that this holder asked for; the smallest limit counts"`
	Weight int     `json:"weight,omitempty" about:"how much of the limit it uses; absent: it holds alone"`
	Token  uint64  `json:"token,string"`
	Held   float64 `json:"held_seconds" about:"time since the grant; 0: unknown"`
	Left   float64 `json:"left_seconds" about:"time until the lease ends unless it is renewed; 0: unknown"`
	Note   string  `json:"note" about:"text for people to read"`

	Details detailsView `json:"details,omitzero" about:"absent: only the note is known"`
}

type waiterView struct {
	Owner  string  `json:"owner" about:"the beginning of the owner"`
	Mode   string  `json:"mode" enum:"exclusive,shared"`
	Weight int     `json:"weight,omitempty" about:"how much of the limit it asks for; absent: it wants to hold alone"`
	Waited float64 `json:"waited_seconds" about:"how long it has waited; 0: unknown"`
	Note   string  `json:"note" about:"text for people to read"`

	Details detailsView `json:"details,omitzero" about:"absent: only the note is known"`
}

type detailsView struct {
	Host    string            `json:"host,omitempty" about:"name of the machine"`
	User    string            `json:"user,omitempty" about:"the account that the program runs as, or the person who holds"`
	PID     int               `json:"pid,omitempty"`
	Program string            `json:"program,omitempty"`
	Started string            `json:"started,omitempty" about:"when the program started, by the clock of its host"`
	Link    string            `json:"link,omitempty" about:"an http or https URL"`
	Labels  map[string]string `json:"labels,omitempty" about:"labels of the holder; for a finished job, exit is its exit code"`
	Text    string            `json:"text,omitempty" about:"the note, as text"`
	Kind    string            `json:"kind,omitempty" about:"manual: nobody renews the lease by design; once: it is kept for a finished job; reserved: by a person; keeps: its process may keep the lease after use, until others wait"`

	Preference int `json:"preference,omitempty" about:"preference of a candidate for leadership"`
}

func viewOf(s leasehold.State) stateView {
	v := stateView{Name: s.Resource, Token: s.Token, Limit: s.Limit, Holders: []holderView{}, Waiters: []waiterView{}}
	for _, h := range s.Holders {
		v.Holders = append(v.Holders, holderView{h.Owner.String(), h.Mode.String(), h.Limit, h.Mode.Uses(h.Weight), h.Token,
			h.Held.Seconds(), h.Left.Seconds(), plain(h.Note), detailsViewOf(h.Details())})
		v.Used += int64(h.Mode.Uses(h.Weight))
	}
	for _, w := range s.Waiters {
		v.Waiters = append(v.Waiters, waiterView{w.Owner.String(), w.Mode.String(), w.Mode.Uses(w.Weight), w.Waited.Seconds(), plain(w.Note), detailsViewOf(w.Details())})
	}
	v.State = v.state()
	return v
}

// detailsViewOf returns an empty view if d has only a text, because that is the note already.
func detailsViewOf(d leasehold.Details) (v detailsView) {
	if details.Details(d).Bare() {
		return v
	}
	v = detailsView{Host: plain(d.Host), User: plain(d.User), PID: d.PID, Program: plain(d.Program), Link: plain(d.Link), Text: plain(d.Text), Kind: plain(d.Kind), Preference: d.Preference}
	if !d.Started.IsZero() {
		v.Started = d.Started.UTC().Format(time.RFC3339)
	}
	for name, value := range d.Labels {
		if v.Labels == nil {
			v.Labels = make(map[string]string)
		}
		v.Labels[plain(name)] = plain(value)
	}
	return v
}

// of returns the details in a view.
func (v detailsView) of() details.Details {
	return details.Details{Host: v.Host, User: v.User, PID: v.PID, Program: v.Program, Text: v.Text, Kind: v.Kind}
}

// lineOf returns one line about the holder and its host.
func lineOf(h leasehold.Holder) string { return plain(details.Details(h.Details()).Line()) }

// who returns the holder, without its host.
func (h holderView) who() string { return cmp.Or(h.Details.of().Who(), h.Note) }

func (w waiterView) who() string { return cmp.Or(w.Details.of().Who(), w.Note) }

// labels returns the labels of v in one line, sorted by name.
func (v detailsView) labels() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(v.Labels)) {
		all = append(all, name+"="+v.Labels[name])
	}
	return strings.Join(all, " ")
}

// state returns the state as a word for JSON.
func (v stateView) state() string {
	switch {
	case len(v.Holders) == 0:
		return "free"
	case lingers(v):
		return "done"
	case v.Holders[0].Details.Kind == details.Reserved:
		return "reserved"
	}
	return "held"
}

// stateText returns the state and, if there is a limit, how much of it is used.
func (v stateView) stateText() string {
	state := v.state()
	switch limit := v.limit(); {
	case state == "held" && limit > 0 && v.Used > 0:
		return fmt.Sprintf("%d of %d", v.Used, limit)
	case state == "held" && v.Holders[0].Details.Kind == details.Keeps:
		return "keeps"
	}
	return state
}

// limit returns the smallest of the holders' limits and the one that was set; 0: none.
func (v stateView) limit() (smallest int) {
	smallest = v.Limit
	for _, h := range v.Holders {
		if h.Limit > 0 && (smallest == 0 || h.Limit < smallest) {
			smallest = h.Limit
		}
	}
	return smallest
}

// useText returns how a held name is used, in words.
func (v stateView) useText() string {
	switch state := v.stateText(); state {
	case "held":
		return "held"
	case "keeps":
		return "held, or kept after use by its process until others wait"
	default:
		return "held, " + state + " used" + v.weightsText()
	}
}

// weightsMost is how many weights are listed.
const weightsMost = 8

// weightsText lists the weights of the holders, unless all are 1.
func (v stateView) weightsText() string {
	if v.Used <= int64(len(v.Holders)) {
		return ""
	}
	var all []string
	for _, h := range v.Holders[:min(len(v.Holders), weightsMost)] {
		all = append(all, strconv.Itoa(h.Weight))
	}
	if len(v.Holders) > weightsMost {
		all = append(all, "…")
	}
	return " (weights " + strings.Join(all, ", ") + ")"
}

// modeText returns the mode with the requested limit and weight.
func (h holderView) modeText() string {
	if h.Limit == 0 {
		return weighed(h.Mode, h.Weight)
	}
	return weighed(fmt.Sprintf("%s/%d", h.Mode, h.Limit), h.Weight)
}

// weighed returns a mode with its weight, if that is not 1.
func weighed(mode string, weight int) string {
	if weight <= 1 {
		return mode
	}
	return fmt.Sprintf("%s, weight %d", mode, weight)
}

// plain returns s without characters that do not show, such as control characters and those that reorder text.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if isHidden(r) {
			return -1
		}
		return r
	}, s)
}

// isHidden reports whether a character does not show. Unicode has some among the letters and marks.
func isHidden(r rune) bool {
	return !unicode.IsPrint(r) || r == unicode.ReplacementChar || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// shown returns a name unchanged, or quoted if it could be misread.
func shown(name string) string {
	if plain(name) == name && strings.TrimSpace(name) == name && !strings.HasPrefix(name, `"`) {
		return name
	}
	var b strings.Builder
	for _, r := range strconv.Quote(name) {
		if isHidden(r) { // a letter, to Quote
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// spanText formats a duration for people.
func spanText(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// secondsText is spanText for a number of seconds in a view; 0 means unknown.
func secondsText(s float64) string {
	if s == 0 {
		return "?"
	}
	return spanText(time.Duration(s * float64(time.Second)))
}

// writeState writes everything about one resource.
func writeState(w io.Writer, v stateView) {
	switch {
	case len(v.Holders) > 0 && lingers(v):
		fmt.Fprintf(w, "%s is done, not free%s\n\n", shown(v.Name), cmp.Or(v.until(), " yet"))
	case v.state() == "reserved":
		fmt.Fprintf(w, "%s is reserved%s\n\n", shown(v.Name), v.until())
	case len(v.Holders) > 0:
		fmt.Fprintf(w, "%s is %s\n\n", shown(v.Name), v.useText())
	case v.Token > 0:
		fmt.Fprintf(w, "%s is free, last token %d\n", shown(v.Name), v.Token)
	default:
		fmt.Fprintf(w, "%s is free\n", shown(v.Name))
	}
	if v.Limit > 0 {
		fmt.Fprintf(w, "A limit of %d is set\n", v.Limit)
		if len(v.Holders) > 0 {
			fmt.Fprintln(w)
		}
	}
	if len(v.Holders) > 0 {
		t := newTable(w)
		fmt.Fprintln(t, "OWNER\tHOLDER\tHOST\tHELD\tLEFT\tMODE\tTOKEN")
		for _, h := range v.Holders {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\n", orDash(h.Owner), orDash(h.who()), orDash(h.Details.Host),
				secondsText(h.Held), secondsText(h.Left), h.modeText(), h.Token)
		}
		t.Flush()
		before := "\n"
		for _, h := range v.Holders {
			before = h.Details.write(w, before, orDash(h.Owner))
		}
	}
	if len(v.Waiters) > 0 {
		fmt.Fprintln(w)
		t := newTable(w)
		fmt.Fprintln(t, "OWNER\tWAITER\tHOST\tWAITED\tMODE")
		for _, h := range v.Waiters {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", h.Owner, orDash(h.who()), orDash(h.Details.Host), secondsText(h.Waited), weighed(h.Mode, h.Weight))
		}
		t.Flush()
		before := "\n"
		for _, h := range v.Waiters {
			before = h.Details.write(w, before, h.Owner)
		}
	}
}

// write writes what the table has no column for, after the short owner. before precedes the first
// line that is written. If none is, write returns it for the next call.
func (v detailsView) write(w io.Writer, before, owner string) string {
	who := strings.TrimSpace(v.User + " " + v.of().Process())
	if who == v.of().Who() {
		who = "" // it is in the table
	}
	if t, err := time.Parse(time.RFC3339, v.Started); err == nil {
		who = strings.TrimPrefix(who+", began "+t.Local().Format(time.DateTime), ", ")
	}
	preference := ""
	if v.Preference != 0 {
		preference = fmt.Sprintf("preference %d", v.Preference)
	}
	for _, line := range []string{who, preference, v.Link, v.labels()} {
		if line != "" {
			fmt.Fprintf(w, "%s%s  %s\n", before, owner, line)
			before, owner = "", strings.Repeat(" ", cells(owner))
		}
	}
	return before
}

// until returns a text about when the last hold ends, by the clock of this machine.
func (v stateView) until() string {
	left := 0.0
	for _, h := range v.Holders {
		left = max(left, h.Left)
	}
	if left == 0 {
		return ""
	}
	d := time.Duration(left * float64(time.Second))
	end := time.Now().Add(d)
	layout := time.TimeOnly
	if d >= 12*time.Hour {
		layout = time.DateTime
	}
	return fmt.Sprintf(" until %s, for %s more", end.Format(layout), spanText(d))
}

func orDash(text string) string { return cmp.Or(text, "-") }

// lingers reports whether all holders have finished, and the name is only kept for a while.
func lingers(v stateView) bool {
	return !slices.ContainsFunc(v.Holders, func(h holderView) bool { return h.Owner != "" })
}

func newTable(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
}
