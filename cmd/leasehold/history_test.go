//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A history tells what happened, who it was and why, the newest last, in 80 columns.
func TestHistory(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = "memory:"
	_, address := c.serve()
	c.store = address
	c.want(0, "run", "deploy", "--", "true")
	l := c.acquire("deploy")
	c.want(0, "evict", "deploy", "--owner", l.Owner[:8], "--reason", "it hangs", "--yes")
	c.want(0, "reserve", "other", "--reason", "maintenance")

	o := c.want(0, "history", "deploy")
	contains(t, o.stdout, "WHEN", "HELD/WAITED", "granted", "released", "evicted", "it hangs (by 127.0.0.1)")
	contains(t, o.stderr, "as seen by", "since")
	if strings.Contains(o.stdout, "maintenance") || strings.Contains(o.stdout, l.Owner) || strings.Index(o.stdout, "released") > strings.Index(o.stdout, "evicted") {
		t.Errorf("printed:\n%s", o.stdout)
	}
	contains(t, c.want(0, "history", "--prefix", "oth").stdout, "reserved", "maintenance")
	if o := c.want(0, "history", "--kind", "evicted,released", "--since", "1h", "--limit", "1"); strings.Count(o.stdout, "\n") != 2 || !strings.Contains(o.stdout, "evicted") {
		t.Errorf("printed:\n%s", o.stdout)
	}
	if o := c.want(0, "history", "--since", "2h", "--until", "1h"); o.stdout != "" {
		t.Errorf("of an hour ago:\n%s", o.stdout)
	}
	eventually(t, "all of it is older than a second", func() bool {
		return strings.Count(c.want(0, "history", "--until", "1s").stdout, "\n") == 6
	})
	var all []entryView
	if err := json.Unmarshal([]byte(c.want(0, "history", "--json").stdout), &all); err != nil || len(all) != 5 || all[4].Event != "reserved" || *all[1].Held <= 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if o := c.want(0, "history", "nobody", "--json"); strings.TrimSpace(o.stdout) != "[]" || o.stderr != "" {
		t.Errorf("printed %q, %q", o.stdout, o.stderr)
	}
	for _, wrong := range []string{"a --prefix b", "--limit 0", "--kind none", "--since x", "--until x", "--since 1h --until 1h", "--follow --until 1h", "a b"} {
		c.want(exitUsage, append([]string{"history"}, strings.Split(wrong, " ")...)...)
	}
	c.want(exitUsage, "history", "--kind", "") // of a variable that is not set
	held := c.acquire("held")
	for _, wrong := range [][]string{ // which the service refuses
		{"history", "--since", "100000h"}, {"history", "--until", "100000h"},
		{"evict", "held", "--owner", held.Owner[:8], "--yes", "--reason", strings.Repeat("x", driver.MaxNote+1)},
	} {
		if o := c.call(wrong...); o.code != exitUsage {
			t.Errorf("%.60q: exit code %d: %s", wrong, o.code, o.stderr)
		}
	}
	contains(t, c.want(exitUsage, "history", "--store", "sqlite:"+c.dir+"/locks.db", "x").stderr, "keeps no history", "--store http://HOST:7400 history")

	sh := *c
	sh.binary = "/bin/sh"
	sh.start("-c", "exec leasehold history --follow --json --prefix next > followed")
	eventually(t, "it follows", func() bool { // from when it has printed what there was
		c.want(0, "run", "next", "--", "true")
		return strings.Contains(c.file("followed"), "released")
	})
	for line := range strings.Lines(c.file("followed")) {
		var v entryView
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Name != "next" {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// The history in a file outlives a service that is killed, which is seen as a gap; another instance does not take it.
func TestHistoryFile(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	locks := c.store
	j, address := c.serve("--history", "history.db")
	contains(t, c.want(exitInternal, "serve", "--listen", "127.0.0.1:0", "--history", "history.db").stderr, "in use by another instance")
	c.store = address
	c.want(0, "run", "before", "--", "true")
	contains(t, c.want(0, "history").stdout, "released")
	time.Sleep(time.Second) // what a kill may cost, and no more
	j.signal(syscall.SIGKILL)
	<-j.exited

	c.store = locks
	contains(t, c.want(exitInternal, "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:other.db", "--history", "history.db").stderr, "the history of", "name another file")
	j, address = c.serve("--history", "history.db")
	c.store = address
	c.want(0, "run", "after", "--", "true")
	o := c.want(0, "history").stdout
	before, gap, after := strings.Index(o, "before"), strings.Index(o, "gap"), strings.Index(o, "after")
	if before < 0 || gap < before || after < gap {
		t.Errorf("printed:\n%s", o)
	}
	resp, err := http.Get(address + wire.History)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var page wire.Entries
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || len(page.Gaps) != 1 {
		t.Errorf("%+v, %v", page, err)
	}
	j.signal(syscall.SIGTERM)
	<-j.exited
	for line, says := range map[string]string{
		"--history missing/file": "no such file", "--history history.db --history-size -1": "below 0", "--history-keep 1y": "unit", "--history-keep -1d": "out of range",
	} {
		c.store = locks
		if o := c.call(append([]string{"serve", "--listen", "127.0.0.1:0"}, strings.Split(line, " ")...)...); o.code == 0 || !strings.Contains(o.stderr, says) {
			t.Errorf("%s: exit code %d: %s", line, o.code, o.stderr)
		}
	}
}

// A line fits a terminal: the reason gives way first, and names keep their ends.
func TestHistoryFitsATerminal(t *testing.T) {
	t.Parallel()
	held := 12345.678
	long := strings.Repeat("x", 200)
	views := []entryView{
		{Time: "2026-11-27T10:32:07.120Z", Event: "evicted", Name: "orders/" + long + "/end", Note: "anna@" + long, Held: &held, Reason: "because " + long, By: "operator"},
		{Time: "2026-11-27T10:32:07.120Z", Event: "gap", Until: "2026-11-27T10:32:07.120Z"},
	}
	for _, width := range []int{80, 120, 0} {
		var b bytes.Buffer
		table := historyTable{width: width}
		table.write(&b, views)
		table.write(&b, views[:1])
		for line := range strings.Lines(b.String()) {
			if n := cells(strings.TrimRight(line, "\n")); width > 0 && n > width {
				t.Errorf("%d cells in %d:\n%s", n, width, line)
			}
		}
		contains(t, b.String(), "WHEN", "EVENT", "/end", "anna")
		if strings.Count(b.String(), "\n") != 4 {
			t.Errorf("printed:\n%s", b.String())
		}
	}
}

// Escape sequences in a service's answers do not reach the terminal.
func TestHistoryIsPlain(t *testing.T) {
	t.Parallel()
	const escape = "\x1b[2J\u009b"
	v := entryViewOf(wire.Entry{Kind: "granted" + escape, Time: "2026-11-27T10:32:07.120Z", Name: "a" + escape, Owner: "b" + escape, Token: "1" + escape, Mode: "x" + escape})
	if all := v.Event + v.Owner + v.Token + v.Mode; strings.ContainsAny(all, "\x1b\u009b") {
		t.Errorf("%q", all)
	}
	var b bytes.Buffer
	(&historyTable{}).write(&b, []entryView{v})
	if strings.ContainsAny(b.String(), "\x1b\u009b") {
		t.Errorf("printed %q", b.String())
	}
}

// A history says why a lease ended, or that this is not known.
func TestHistorySaysWhy(t *testing.T) {
	t.Parallel()
	ms := func(n int64) *int64 { return &n }
	for want, e := range map[string]wire.Entry{
		"no renewal for 15s":                 {Kind: wire.Expired, Held: ms(30_000), Silent: ms(15_000)},
		"ran out":                            {Kind: wire.Expired, Held: ms(15_000), Silent: ms(15_000), Details: &wire.Details{Kind: "manual"}},
		"unknown: not seen by this instance": {Kind: wire.EventEnded},
		"unknown: no renewal seen for 15s":   {Kind: wire.EventEnded, Silent: ms(15_000)},
		"it hangs (by anna)":                 {Kind: wire.EventEvicted, Reason: "it hangs", By: "anna"},
		"":                                   {Kind: wire.EventReleased, Held: ms(1000)},
	} {
		e.Time = "2026-11-27T10:32:07.120Z"
		v := entryViewOf(e)
		if got := v.row(time.Now())[eventWhy]; got != want {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
}

// In 80 columns it tells who lost a lock and why, where names are not long.
func TestHistoryIn80Columns(t *testing.T) {
	t.Parallel()
	ms := func(n int64) *int64 { return &n }
	var views []entryView
	for _, e := range []wire.Entry{
		{Kind: "granted", Name: "batch/thumbnails", Details: &wire.Details{Host: "batch-1", Program: "gitlab-runner", PID: 88102}, Waited: ms(19_100)},
		{Kind: "expired", Name: "deploy/production", Details: &wire.Details{Host: "batch-1", Text: "gitlab 88102"}, Held: ms(30_100), Silent: ms(15_000)},
	} {
		e.Time = time.Now().Format(time.RFC3339)
		views = append(views, entryViewOf(e))
	}
	var b strings.Builder
	(&historyTable{width: 80}).write(&b, views)
	contains(t, b.String(), "deploy/production", "gitlab 88102", "no renewal for 15s", "19.1s")
}

// An end that was only seen stands before what followed it.
func TestHistoryIsInOrder(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	h := history{a: &app{stdout: &b}}
	if err := h.print([]wire.Entry{{Kind: "granted", Name: "deploy", Ago: 2000}, {Kind: "expired", Name: "deploy", Ago: 2100}}); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.Index(text, "expired") > strings.Index(text, "granted") {
		t.Errorf("printed:\n%s", text)
	}
}

// What is printed stays so after a page without entries. Numbers of another instance start anew,
// even if it has the same name.
func TestFollowedHistoryAfterAnEmptyPage(t *testing.T) {
	t.Parallel()
	page := func(instance, history string, last int64) newEntries {
		return newEntries{Entries: wire.Entries{Instance: instance, History: history}, last: last}
	}
	for _, next := range []string{"a", "b"} {
		var seen seenHistory
		seen.take(page("a", "first", 5))
		seen.take(page("a", "first", 0))
		if !seen.has(page("a", "first", 5), wire.Entry{Seq: "5", Ago: 1000}) {
			t.Error("it is printed again after an empty page")
		}
		seen.take(page(next, "second", 3))
		if seen.has(page(next, "second", 4), wire.Entry{Seq: "4"}) {
			t.Errorf("an entry of another instance, %s, counts as printed", next)
		}
	}
}
