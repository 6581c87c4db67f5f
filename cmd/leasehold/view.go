package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// The views are what ls, show and top print: short owners, lease tokens instead of
// fences, and text from other users without anything a terminal would obey. In JSON a token
// is a string: as a number it would be above 2^53, and most readers would round it.

type stateView struct {
	Name    string       `json:"name"`
	Token   uint64       `json:"token,string" about:"the last that was given; 0: unknown"`
	Holders []holderView `json:"holders" about:"none: it is free"`
	Waiters []waiterView `json:"waiters" about:"in order"`
}

type holderView struct {
	Owner string  `json:"owner" about:"how the owner starts; empty: it is done, and the name is only kept"`
	Mode  string  `json:"mode" enum:"exclusive,shared"`
	Limit int     `json:"limit,omitempty" about:"--slots, as its holder asked for; the smallest of all counts"`
	Token uint64  `json:"token,string"`
	Held  float64 `json:"held_seconds" about:"since the grant; 0: unknown"`
	Left  float64 `json:"left_seconds" about:"until the lease ends unless it is renewed; 0: unknown"`
	Note  string  `json:"note" about:"for people"`
}

type waiterView struct {
	Owner  string  `json:"owner" about:"how the owner starts"`
	Mode   string  `json:"mode" enum:"exclusive,shared"`
	Waited float64 `json:"waited_seconds" about:"0: unknown"`
	Note   string  `json:"note" about:"for people"`
}

func viewOf(s leasehold.State) stateView {
	v := stateView{Name: s.Resource, Token: s.Token, Holders: []holderView{}, Waiters: []waiterView{}}
	for _, h := range s.Holders {
		v.Holders = append(v.Holders, holderView{h.Owner.String(), modeText(h.Mode), h.Limit, h.Token,
			h.Held.Seconds(), h.Left.Seconds(), plain(h.Note)})
	}
	for _, w := range s.Waiters {
		v.Waiters = append(v.Waiters, waiterView{w.Owner.String(), modeText(w.Mode), w.Waited.Seconds(), plain(w.Note)})
	}
	return v
}

func viewsOf(states []leasehold.State) []stateView {
	views := make([]stateView, len(states))
	for i, s := range states {
		views[i] = viewOf(s)
	}
	return views
}

func modeText(m driver.Mode) string {
	if m == driver.Shared {
		return "shared"
	}
	return "exclusive"
}

// modeText is the mode, with the limit that was asked for.
func (h holderView) modeText() string {
	if h.Limit == 0 {
		return h.Mode
	}
	return fmt.Sprintf("%s/%d", h.Mode, h.Limit)
}

// plain returns s without what is not printable: control characters, and the invisible
// ones that reorder text.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, s)
}

// shown returns a name as it is, or quoted where that could be misread.
func shown(name string) string {
	if plain(name) == name && strings.TrimSpace(name) == name && !strings.HasPrefix(name, `"`) {
		return name
	}
	return strconv.Quote(name)
}

// spanText is a length of time for people.
func spanText(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// secondsText is spanText for what a view holds; 0 means that the engine cannot tell.
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
		fmt.Fprintf(w, "%s is kept for its last holder, which is done\n\n", shown(v.Name))
	case len(v.Holders) > 0:
		fmt.Fprintf(w, "%s is held\n\n", shown(v.Name))
	case v.Token > 0:
		fmt.Fprintf(w, "%s is free, last token %d\n", shown(v.Name), v.Token)
	default:
		fmt.Fprintf(w, "%s is free\n", shown(v.Name))
	}
	if len(v.Holders) > 0 {
		t := newTable(w)
		fmt.Fprintln(t, "HOLDER\tMODE\tTOKEN\tHELD\tLEFT\tNOTE")
		for _, h := range v.Holders {
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", ownerText(h.Owner), h.modeText(), h.Token, secondsText(h.Held), secondsText(h.Left), h.Note)
		}
		t.Flush()
	}
	if len(v.Waiters) > 0 {
		fmt.Fprintln(w)
		t := newTable(w)
		fmt.Fprintln(t, "WAITER\tMODE\tWAITED\tNOTE")
		for _, h := range v.Waiters {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", h.Owner, h.Mode, secondsText(h.Waited), h.Note)
		}
		t.Flush()
	}
}

// lingers reports whether all holders are done and only keep others out for a while.
func lingers(v stateView) bool {
	return !slices.ContainsFunc(v.Holders, func(h holderView) bool { return h.Owner != "" })
}

// ownerText is the start of an owner, or a dash for a hold without one.
func ownerText(owner string) string {
	if owner == "" {
		return "-"
	}
	return owner
}

func newTable(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
}
