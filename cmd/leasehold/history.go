package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

// historyLimit is the default number of entries that history prints.
const historyLimit = 50

// historyOldest is ten years, the oldest that a service lets ask for.
const historyOldest = span(10 * 365 * 24 * time.Hour)

// A historian is a store that keeps a history.
type historian interface {
	History(ctx context.Context, query url.Values) (wire.Entries, error)
}

// A history holds the arguments of the command and the table it prints.
type history struct {
	a      *app
	name   string
	prefix string
	since  span
	until  span
	kinds  []string
	limit  int
	follow bool
	table  historyTable
}

func newHistoryCommand(a *app) *cobra.Command {
	h := history{a: a}
	cmd := &cobra.Command{
		Use:   "history [flags] [NAME]",
		Short: "Show what happened to locks, as a service saw it",
		Long: `Show what happened to NAME, or to all locks: grants, ends and their reasons, waits,
evictions and by whom. The last line is the newest. Only "leasehold serve" keeps a
history, so the store must be its address, http:// or https://.

# Events
  granted   a lease began; WAITED is how long its holder was in the queue
  reserved  a person took NAME
  released  the holder gave the lease up; HELD is how long it had it
  expired   nobody renewed the lease in time; "ran out" if nobody was to renew it
  evicted   somebody ended the lease by force
  ended     the lease is over, and nobody told the service how
  waiting   somebody joined the queue
  left      somebody left the queue, or was removed from it
  reset     what a finished job had kept was ended
  gap       the service did not see what others did
In a narrow terminal, HELD/WAITED is FOR, and WHO leaves out the host.

# What is missing
Each instance of the service has a history of its own. It knows at once what it does
itself, and looks at the store every 5 s for the rest: shorter leases of others are
missing. Standard error says since when the instance has been looking. With --follow,
it also says when another instance answers, of which only later events are printed,
and when more happened during an outage than can be printed.`,
		Example: "  leasehold --store http://locks:7400 history deploy\n  leasehold history --since 3h --until 2h --kind expired,evicted\n  leasehold history --follow --prefix orders/",
		Args:    argNames("[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				h.name = args[0]
			}
			return h.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&h.prefix, "prefix", "", "only names that start with `PREFIX`")
	flags.Var(&h.since, "since", "only what is younger than `TIME`: seconds, or 10m, 1h")
	flags.Var(&h.until, "until", "only what is older than `TIME`")
	flags.StringSliceVar(&h.kinds, "kind", nil, "only these `EVENTS`, such as expired,evicted")
	flags.IntVar(&h.limit, "limit", historyLimit, "at most the `N` newest events")
	flags.BoolVar(&h.follow, "follow", false, "keep printing what happens")
	return cmd
}

func (h *history) check() error {
	switch {
	case h.name != "" && h.prefix != "":
		return usageErrorf("NAME and --prefix exclude each other")
	case h.until > 0 && h.follow:
		return usageErrorf("--until and --follow exclude each other")
	case h.since > 0 && h.since <= h.until:
		return usageErrorf("--since %v --until %v: nothing is between them: --since is to be longer", &h.since, &h.until)
	case max(h.since, h.until) > historyOldest:
		return usageErrorf("--since %v --until %v: want at most ten years", &h.since, &h.until)
	case h.limit < 1:
		return usageErrorf("--limit %d: want a number of events", h.limit)
	}
	if h.name != "" {
		if err := checkName(h.name); err != nil {
			return err
		}
	}
	for _, kind := range h.kinds {
		if !slices.Contains(wire.EntryKinds, kind) {
			return usageErrorf("--kind %q: want some of %s", plain(kind), strings.Join(wire.EntryKinds, ", "))
		}
	}
	return nil
}

func (h *history) run(ctx context.Context) error {
	if err := h.check(); err != nil {
		return err
	}
	chosen, err := h.a.chosenStore()
	if err != nil {
		return err
	}
	if scheme, _, _ := strings.Cut(strings.ToLower(chosen.value), ":"); scheme != "http" && scheme != "https" {
		return usageErrorf("this store keeps no history\nAsk a service that looks at it: leasehold --store http://HOST:7400 history. See leasehold help serve")
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	d, err := h.a.open(ctx, stores.OpenExisting)
	if err != nil {
		return orSignal(ctx, err)
	}
	defer h.a.close(d)
	store := d.(historian) // as every driver of httplock
	h.table = historyTable{width: widthOf(h.a.stdout), named: h.name != ""}
	return orSignal(ctx, h.show(ctx, store))
}

// show prints the history. With --follow it continues with new entries, until ctx ends.
func (h *history) show(ctx context.Context, store historian) error {
	seen := seenHistory{told: map[[2]string]string{}}
	look := func() error {
		since, limit, has := seen.answered, followMost, seen.has
		if since.IsZero() { // the first look
			limit, has = h.limit, func(newEntries, wire.Entry) bool { return false }
		}
		page, err := h.page(ctx, store, limit, has)
		if err != nil {
			return err
		}
		seen.take(page) // before a write, which may block: ages count from the answer
		if !since.IsZero() && (!page.all || page.begins.After(since)) {
			h.a.tell(onWarning, "", 0, "warning: events are missing: %s does not tell all that happened in the last %v", plain(page.Instance), time.Since(since).Round(time.Second))
		}
		return h.tell(&seen, page)
	}
	if !h.follow {
		return look()
	}
	return h.a.every(ctx, look)
}

// tell prints a page. It names the instance that answered, once per instance, and tells its warning
// when that changes.
func (h *history) tell(seen *seenHistory, page newEntries) error {
	if err := h.print(page.Entries.Entries); err != nil {
		return err
	}
	from := [2]string{page.Instance, page.History}
	warning, told := seen.told[from]
	seen.told[from] = page.Warning
	if page.Warning != "" && page.Warning != warning {
		h.a.tell(onWarning, "", 0, "warning: %s", plain(page.Warning))
	}
	if !told {
		h.sayFrom(page.Entries)
	}
	return nil
}

// followMost is the most events that one look of --follow asks for.
const followMost = 20 * wire.MaxPage

// A seenHistory records what is printed. Within a history it compares the numbers of entries, which
// rise. Between those of several instances it compares ages, because their clocks differ.
type seenHistory struct {
	instance string
	history  string
	last     int64                // number of the newest entry of history
	newest   time.Time            // time of the newest printed entry, or of the first answer
	answered time.Time            // time of the last answer
	told     map[[2]string]string // by instance that was named, with its history, its last warning
}

// has reports whether e, which page contains, is printed.
func (s *seenHistory) has(page newEntries, e wire.Entry) bool {
	if s.isOther(page) {
		return !happenedAt(e).After(s.newest)
	}
	return numberOf(e) <= s.last
}

// isOther reports whether page is of another history than the last answer. Instances do not tell
// them apart: the first processes of containers may have the same name. But another instance with a
// copy of the history, or with what was left of it after a crash, gives numbers again.
func (s *seenHistory) isOther(page newEntries) bool {
	return page.History != s.history || page.Instance != s.instance && page.last < s.last
}

func (s *seenHistory) take(page newEntries) {
	if s.isOther(page) || page.last > s.last {
		s.last = page.last
	}
	s.answered, s.instance, s.history = time.Now(), page.Instance, page.History
	if s.newest.IsZero() {
		s.newest = s.answered
	}
	for _, e := range page.Entries.Entries {
		if at := happenedAt(e); at.After(s.newest) {
			s.newest = at
		}
	}
}

func numberOf(e wire.Entry) int64 {
	n, _ := strconv.ParseInt(e.Seq, 10, 64)
	return n
}

// happenedAt returns the time of a just received entry by this machine's clock.
func happenedAt(e wire.Entry) time.Time { return time.Now().Add(-wire.Duration(e.Ago)) }

// newEntries holds the entries that are not printed yet, oldest first.
type newEntries struct {
	wire.Entries
	last   int64     // number of the history's newest entry; 0: it has none
	begins time.Time // when its history begins, by this machine's clock
	all    bool      // the store had no more of them
}

// page asks for the newest entries for which has returns false, at most limit. Behind a page with
// one for which it returns true there are none.
func (h *history) page(ctx context.Context, store historian, limit int, has func(newEntries, wire.Entry) bool) (found newEntries, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	var entries []wire.Entry
	for next := ""; ; {
		page, err := h.ask(ctx, store, min(limit-len(entries), wire.MaxPage), next)
		if err != nil {
			return found, err
		}
		if next == "" {
			found.Entries, found.begins = page, time.Now().Add(-wire.Duration(page.BeginsMS))
		}
		same := page.History == found.History // numbers of another one mean nothing here
		if same {
			if found.last == 0 && len(page.Entries) > 0 { // the first page may be empty
				found.last = numberOf(page.Entries[0])
			}
			found.all, found.Warning = page.Next == "", cmp.Or(found.Warning, page.Warning)
			for _, e := range page.Entries { // sorted by number, not always by age
				if has(found, e) {
					found.all = true
				} else {
					entries = append(entries, e)
				}
			}
		}
		if next = page.Next; !same || found.all || len(entries) >= limit {
			slices.Reverse(entries)
			found.Entries.Entries = entries
			return found, nil
		}
	}
}

func (h *history) ask(ctx context.Context, store historian, limit int, after string) (page wire.Entries, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for field, value := range map[string]string{"name": h.name, "prefix": h.prefix, "kind": strings.Join(h.kinds, ","), "after": after} {
		if value != "" {
			query.Set(field, value)
		}
	}
	for field, age := range map[string]span{"since_ms": h.since, "until_ms": h.until} {
		if age > 0 {
			query.Set(field, strconv.FormatInt(time.Duration(age).Milliseconds(), 10))
		}
	}
	page, err = store.History(ctx, query)
	if errors.Is(err, driver.ErrUnsupported) {
		err = &exitError{exitUsage, fmt.Errorf("the service keeps no history")}
	}
	return page, err
}

// sayFrom reports on standard error which instance answered, and since when it has recorded events.
func (h *history) sayFrom(page wire.Entries) {
	missing := ""
	if !page.Complete {
		missing = ", without short leases of others"
	}
	h.a.tell(onHistory, "", 0, "as seen by %s since %s%s", plain(page.Instance), localTime(page.Begins, time.Now()), missing)
}

// An entryView is one entry in the output of "leasehold history --json".
type entryView struct {
	Time   string   `json:"time" about:"time of the entry, by the clock of the service"`
	Event  string   `json:"event" enum:"granted,released,expired,evicted,ended,waiting,left,reserved,reset,gap"`
	Name   string   `json:"name,omitempty" about:"name of the lock; absent for a gap"`
	Owner  string   `json:"owner,omitempty" about:"the beginning of the owner"`
	Token  string   `json:"token,omitempty" about:"the fencing token"`
	Mode   string   `json:"mode,omitempty"`
	Note   string   `json:"note,omitempty" about:"details of the owner, for people to read"`
	Held   *float64 `json:"held_seconds,omitempty" about:"how long the lease was held; absent: unknown"`
	Waited *float64 `json:"waited_seconds,omitempty" about:"how long the owner waited; absent: unknown"`
	Silent *float64 `json:"silent_seconds,omitempty" about:"time since the last renewal; absent: unknown"`
	Reason string   `json:"reason,omitempty"`
	By     string   `json:"by,omitempty" about:"the person who evicted, removed, reserved or reset"`
	Until  string   `json:"until,omitempty" about:"when the gap ended"`

	who    string // the note without the host
	ranOut bool   // it expired, and nobody was to renew it
}

func entryViewOf(e wire.Entry) entryView {
	d := details.Of(wire.Shown(e.Note, e.Details))
	v := entryView{
		Time: e.Time, Event: plain(e.Kind), Name: e.Name, Owner: plain(e.Owner), Token: plain(e.Token), Mode: plain(e.Mode), Note: plain(d.Line()),
		who: plain(d.Who()), ranOut: e.Kind == wire.Expired && !wire.IsLoss(e.Details, e.Held, e.Silent),
		Held: secondsOf(e.Held), Waited: secondsOf(e.Waited), Silent: secondsOf(e.Silent), Reason: plain(e.Reason), By: plain(e.By),
	}
	if e.Kind == wire.Reserved && e.Details != nil {
		v.Note, v.who = plain(e.Details.User), ""
	}
	if e.Kind == wire.Gap {
		v.Time, v.Until = e.From, e.To
	}
	return v
}

func secondsOf(ms *int64) *float64 {
	if ms == nil {
		return nil
	}
	return new(wire.Duration(*ms).Seconds())
}

// print prints entries, oldest first. A history lists an end that a look found after what followed it.
func (h *history) print(entries []wire.Entry) error {
	slices.SortStableFunc(entries, func(a, b wire.Entry) int { return cmp.Compare(b.Ago, a.Ago) })
	views := []entryView{}
	for _, e := range entries {
		views = append(views, entryViewOf(e))
	}
	if !h.a.json || !h.follow {
		return h.a.print(views, func(w io.Writer) { h.table.write(w, views) })
	}
	var b strings.Builder
	for _, v := range views {
		if err := writeJSON(&b, v, ""); err != nil {
			return err
		}
	}
	return h.a.output([]byte(b.String()))
}

// A historyTable prints a line for each entry, at most width cells wide. If width is 0, lines are
// as wide as they need.
type historyTable struct {
	width  int
	named  bool  // all entries have the same name
	brief  bool  // hosts are left out
	widths []int // nil: nothing was printed yet
}

// Columns of the table of events.
const (
	eventWhen = iota
	eventKind
	eventName
	eventWho
	eventSpan
	eventWhy
)

func (t *historyTable) write(w io.Writer, views []entryView) {
	if len(views) == 0 {
		return
	}
	first := t.widths == nil
	rows := t.rows(views, first)
	if first {
		t.fit(rows)
		if t.brief = t.width > 0 && needed(t.widths, whole) > t.width; t.brief {
			rows = t.rows(views, first)
			t.fit(rows)
			t.shrink()
		}
	}
	for _, row := range rows {
		fmt.Fprintln(w, line(row, t.widths, t.width, eventName, eventWho, eventWhy))
	}
}

// rows returns the cells of a line for each entry, below the heads if headed is true.
func (t *historyTable) rows(views []entryView, headed bool) (rows [][]string) {
	if headed {
		span := "HELD/WAITED"
		if t.brief {
			span = "FOR"
		}
		rows = append(rows, []string{"WHEN", "EVENT", "NAME", "WHO", span, "WHY"})
	}
	for _, v := range views {
		row := v.row(time.Now())
		if t.brief && v.who != "" {
			row[eventWho] = v.who
		}
		rows = append(rows, row)
	}
	return rows
}

// fit chooses the widths that rows need.
func (t *historyTable) fit(rows [][]string) {
	t.widths = natural(rows)
	if t.named {
		t.widths[eventName] = 0
	}
}

// shrink makes lines fit: it first shortens who, then the reason and the name.
func (t *historyTable) shrink() {
	for _, least := range []struct{ column, width int }{{eventWho, 14}, {eventWhy, 18}, {eventName, 12}, {eventWhy, 12}, {eventWho, 8}, {eventWhy, 4}} {
		excess := needed(t.widths, whole) - t.width
		t.widths[least.column] -= max(0, min(excess, t.widths[least.column]-least.width))
	}
}

func (v *entryView) row(now time.Time) []string {
	row := []string{localTime(v.Time, now), v.Event, shown(v.Name), cmp.Or(v.Note, v.Owner), "", v.Reason}
	if span := cmp.Or(v.Held, v.Waited); span != nil {
		row[eventSpan] = spanText(time.Duration(*span * float64(time.Second)))
	}
	switch {
	case v.Event == wire.Gap:
		row[eventWhy] = "what others did until " + localTime(v.Until, now) + " is missing"
	case v.ranOut:
		row[eventWhy] = "ran out"
	case v.Silent != nil && v.Event == wire.EventEnded:
		row[eventWhy] = "unknown: no renewal seen for " + spanText(time.Duration(*v.Silent*float64(time.Second)))
	case v.Event == wire.EventEnded:
		row[eventWhy] = "unknown: not seen by this instance"
	case v.Silent != nil:
		row[eventWhy] = "no renewal for " + spanText(time.Duration(*v.Silent*float64(time.Second)))
	case v.By != "" && v.Reason != "":
		row[eventWhy] = v.Reason + " (by " + v.By + ")"
	case v.By != "":
		row[eventWhy] = "by " + v.By
	}
	return row
}

// localTime returns an instant in this machine's time zone. It omits the date if that is today.
func localTime(stamp string, now time.Time) string {
	t, err := time.Parse(time.RFC3339, stamp)
	if err != nil {
		return "?"
	}
	t = t.Local()
	if now.Local().Format(time.DateOnly) == t.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}
