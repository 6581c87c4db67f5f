package main

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"strings"
)

// csvHeads name the columns of ls --csv. It prints a record per holder, and one per lock that has
// only waiters.
var csvHeads = []string{"name", "state", "holder", "host", "held_seconds", "left_seconds", "waiting", "mode", "limit", "owner", "token",
	"user", "pid", "program", "started", "link", "labels", "kind", "weight"}

// writeCSV writes records as in RFC 4180, after the heads if heads is true.
func writeCSV(b *bytes.Buffer, views []stateView, heads bool) {
	out := csv.NewWriter(b)
	out.UseCRLF = true
	if heads {
		out.Write(csvHeads)
	}
	for _, v := range views {
		name, state, waiting := unformulated(shown(v.Name)), v.state(), strconv.Itoa(len(v.Waiters))
		for _, h := range v.Holders {
			d := h.Details
			record := []string{name, state, h.who(), d.Host, known(h.Held), known(h.Left), waiting, h.Mode, counted(h.Limit), h.Owner,
				counted(h.Token), d.User, counted(d.PID), d.Program, d.Started, d.Link, d.labels(), d.Kind, counted(h.Weight)}
			for _, i := range []int{2, 3, 9, 11, 13, 15, 16, 17} { // columns with text that others wrote
				record[i] = unformulated(record[i])
			}
			out.Write(record)
		}
		if len(v.Holders) == 0 {
			record := make([]string, len(csvHeads))
			record[0], record[1], record[6] = name, state, waiting
			out.Write(record)
		}
	}
	out.Flush()
}

// unformulated returns text in a form that no spreadsheet takes for a formula. A formula could send
// other cells elsewhere.
func unformulated(text string) string {
	if strings.IndexAny(text, "=+-@＝＋－＠") == 0 { // also the full-width forms
		return "'" + text
	}
	return text
}

// known returns a number of seconds, or "" if it is unknown.
func known(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return strconv.FormatFloat(seconds, 'f', 3, 64)
}

// counted returns a number, or "" for 0.
func counted[N int | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}
