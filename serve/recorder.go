package serve

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// HistoryOptions say how much of its history a Server keeps.
type HistoryOptions struct {
	// Entries and Bytes limit the history in memory. A fifth of each is for rare entries:
	// evictions, lost leases, reservations and gaps. 0: 50,000 entries, 16 MiB. Below 0: there is
	// no history.
	Entries, Bytes int
	// Every is how often the Server looks at the store while nobody listens to events. It looks
	// less often if the answer takes more than a twentieth of that. 0: 5 seconds. Below 0: it does
	// not look, and knows only what this instance does.
	Every time.Duration
	// Sole means that all users of the store go through this Server, so that it sees everything.
	Sole bool
	// File keeps the history beyond the Server's life. nil: it is only in memory. The caller closes
	// the file after the Server.
	File HistoryFile
}

// A HistoryFile stores a history. A Server calls Append from one goroutine. Append may take as long
// as it needs, because no call on a lease waits for it. The other methods may be called at the same
// time.
type HistoryFile interface {
	// State does no I/O.
	State() HistoryState
	// Append stores all entries, whose Seqs rise, or none, and notes that the instance is alive and
	// has seen what happened until seen. There may be no entries.
	Append(ctx context.Context, seen time.Time, entries []HistoryEntry) error
	// Read returns entries, newest first. A page may be shorter than the limit. next is the Before
	// of the next page, or 0 at the end.
	Read(ctx context.Context, q HistoryQuery) (entries []HistoryEntry, next int64, err error)
}

// A HistoryState describes a [HistoryFile].
type HistoryState struct {
	ID    string    // of the file: another file's cursors mean nothing here
	Last  int64     // the greatest Seq; 0: it has none
	Began time.Time // of the oldest entry that is not from the future; zero: there is none
	Alive time.Time // until when the last instance that wrote has seen what happened; zero: none has written
}

// A HistoryQuery selects entries.
type HistoryQuery struct {
	Before   int64     // only entries with a smaller Seq; 0: all
	Name     string    // only entries of this name; "": all
	Prefixes []string  // only entries whose name begins with one of them, or that have no name
	Kinds    []string  // only these; none: all
	Since    time.Time // only later ones; zero: all
	Until    time.Time // only earlier ones; zero: all
	Limit    int       // at least 1
}

// A HistoryEntry is something that a Server has seen. Durations are in milliseconds; nil: unknown.
type HistoryEntry struct {
	Seq    int64     `json:"-"`                   // the order in which they were seen
	Time   time.Time `json:"time"`                // when it happened, as far as is known
	Kind   string    `json:"kind"`                // a kind of wire.EntryKinds
	Name   string    `json:"name,omitempty"`      // "": it concerns the instance
	Who    string    `json:"owner,omitempty"`     // the beginning of the owner
	WhoID  string    `json:"handle,omitempty"`    // the owner's handle
	Token  string    `json:"token,omitempty"`     // of the lease
	Mode   string    `json:"mode,omitempty"`      // exclusive or shared
	Note   string    `json:"note,omitempty"`      // as the engine keeps it
	Held   *int64    `json:"held_ms,omitempty"`   // for how long the lease was held
	Waited *int64    `json:"waited_ms,omitempty"` // for how long it was waited for
	Silent *int64    `json:"silent_ms,omitempty"` // for how long it was not renewed
	Reason string    `json:"reason,omitempty"`    // given for an eviction or removal
	By     string    `json:"by,omitempty"`        // who evicted, removed, reserved or reset it
	From   time.Time `json:"from,omitzero"`       // of a gap
	To     time.Time `json:"to,omitzero"`         // of a gap
}

const (
	defaultEntries, defaultHistoryBytes = 50_000, 16 << 20
	defaultLookEvery                    = 5 * time.Second
	// perEntry is the size of an entry without its texts.
	perEntry = 320
	// rareShare is the reciprocal of the share of memory for rare entries.
	rareShare = 5
	// gapAfter is how long the store may go unseen before a history has a gap.
	gapAfter = 15 * time.Second
)

// rare are the kinds that are kept longer. There may be thousands of grants and releases a second.
var rare = map[string]bool{
	wire.Expired: true, wire.EventEvicted: true, wire.EventEnded: true, wire.Reserved: true, wire.WasReset: true, wire.Gap: true,
}

// bytes estimates the size of an entry.
func (e *HistoryEntry) bytes() int {
	return perEntry + len(e.Name) + len(e.Who) + len(e.WhoID) + len(e.Token) + len(e.Note) + len(e.Reason) + len(e.By)
}

// A shelf keeps entries in order, and drops the oldest to make room.
type shelf struct {
	entries    []*HistoryEntry // starting at head
	head       int
	bytes      int
	most, room int // entries and bytes
}

func (s *shelf) all() []*HistoryEntry { return s.entries[s.head:] }

// push inserts an entry, at the end unless it is a gap. It returns the entries that were dropped.
func (s *shelf) push(e *HistoryEntry) (dropped []*HistoryEntry) {
	i := len(s.entries)
	for i > s.head && s.entries[i-1].Seq > e.Seq {
		i--
	}
	s.entries = slices.Insert(s.entries, i, e)
	s.bytes += e.bytes()
	for n := len(s.all()); n > 1 && (n > s.most || s.bytes > s.room); n-- {
		old := s.entries[s.head]
		dropped = append(dropped, old)
		s.entries[s.head] = nil
		s.head++
		s.bytes -= old.bytes()
	}
	if s.head > len(s.entries)/2 {
		s.entries, s.head = append([]*HistoryEntry(nil), s.all()...), 0
	}
	return dropped
}

// unshift adds entries that are older than all others. They come newest first.
func (s *shelf) unshift(older []*HistoryEntry) {
	slices.Reverse(older)
	for _, e := range older {
		s.bytes += e.bytes()
	}
	s.entries, s.head = append(older, s.all()...), 0
}

// A recorder keeps the history of an instance. No call waits for it for more than a few
// instructions. A nil recorder keeps nothing.
type recorder struct {
	every time.Duration // between looks at the store; below 0: there are none
	sole  bool
	file  HistoryFile // nil: none
	id    string      // of this history, in cursors
	log   *slog.Logger
	added chan struct{} // has a token when there is something to write
	ended chan struct{} // closed when the file gets no more

	mu      sync.Mutex
	seq     int64     // guarded by mu, like all that follows; the Seq of the last entry
	often   shelf     // frequent entries
	rare    shelf     // rare entries
	since   time.Time // memory has everything since then
	first   int64     // memory has everything from this Seq on
	seldom  time.Time // memory has all rare entries since then
	minutes minutes
	watch   watch
	writing writing
}

// A watch is how well the instance sees the store.
type watch struct {
	looked time.Time     // when the last complete look began; at first, when the instance did
	open   bool          // there is a gap since looked
	many   bool          // there are more names than the hub compares
	store  string        // wire.StoreUp, wire.StoreDown or wire.StoreUnknown
	pause  time.Duration // after that look
	sight  *sight        // what that look saw; nil: there was none
}

// A writing is the progress of the history file.
type writing struct {
	written int64         // entries up to this Seq are in the file, or on their way
	has     int64         // entries up to this Seq are in the file
	since   time.Time     // since when entries wait for the file, or since it took others if that was later; zero: none wait
	lost    *HistoryEntry // the gap of entries that were dropped before the file had them; nil: none
}

// newRecorder returns nil if there is to be no history.
func newRecorder(o HistoryOptions, looks bool, log *slog.Logger) *recorder {
	if o.Entries < 0 || o.Bytes < 0 {
		return nil
	}
	entries, room := cmp.Or(o.Entries, defaultEntries), cmp.Or(o.Bytes, defaultHistoryBytes)
	now := time.Now()
	r := &recorder{
		every: cmp.Or(o.Every, defaultLookEvery), sole: o.Sole, file: o.File, id: newOwner()[:8], log: log,
		added: make(chan struct{}, 1), ended: make(chan struct{}), since: now, seq: now.UnixMicro(),
		often: shelf{most: entries - entries/rareShare, room: room - room/rareShare}, rare: shelf{most: max(entries/rareShare, 1), room: room / rareShare},
	}
	if !looks {
		r.every = -1
	}
	r.minutes.init(now)
	r.watch = watch{looked: now, store: wire.StoreUnknown}
	var before HistoryState
	if r.file != nil {
		before = r.file.State()
	}
	r.id, r.seq = cmp.Or(before.ID, r.id), max(r.seq, before.Last)
	r.first, r.writing = r.seq+1, writing{written: r.seq, has: r.seq}
	if !before.Alive.IsZero() {
		r.add(HistoryEntry{Kind: wire.Gap, From: before.Alive, To: now})
	}
	return r
}

// many reports whether there are more names than the hub compares.
func (r *recorder) many() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watch.many
}

// add records an entry. Its time is now, unless it has another.
func (r *recorder) add(e HistoryEntry) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addNow(e)
}

// addNow is add. Requires mu.
func (r *recorder) addNow(e HistoryEntry) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	r.seq++
	e.Seq = r.seq
	r.minutes.count(&e)
	if rare[e.Kind] {
		r.dropped(r.rare.push(&e))
	} else {
		r.dropped(r.often.push(&e))
	}
	if r.file != nil {
		r.writing.since = cmp.Or(r.writing.since, time.Now())
		nudge(r.added)
	}
}

// dropped records entries that were dropped from memory. Requires mu.
func (r *recorder) dropped(all []*HistoryEntry) {
	for _, e := range all {
		if e.Seq >= r.first {
			r.since, r.first = e.Time, e.Seq+1
		}
		if rare[e.Kind] && e.Time.After(r.seldom) { // times do not always rise with Seqs
			r.seldom = e.Time
		}
		if r.file == nil || e.Seq <= r.writing.written {
			continue
		}
		if w := &r.writing; w.lost == nil {
			w.lost = &HistoryEntry{Seq: e.Seq, Time: e.Time, Kind: wire.Gap, From: e.Time, To: e.Time}
		} else {
			w.lost.To = e.Time
		}
	}
}

// saw records a look that began at began. s is nil if the look failed or was partial, because it
// found too many names, or damaged records. slow means that the answer took too long, which says
// nothing about other calls.
func (r *recorder) saw(began time.Time, pause time.Duration, s *sight, many, partial, slow bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.watch
	bound := max(gapAfter, 3*r.every, 3*w.pause)
	w.store, w.many = wire.StoreUp, many
	switch {
	case s != nil:
		if w.open || boottime.Between(w.looked, began) > max(bound, 3*pause) {
			r.addNow(HistoryEntry{Kind: wire.Gap, From: w.looked, To: began})
		}
		w.looked, w.open, w.sight, w.pause = began, false, s, pause
		r.minutes.saw(began, s)
		return
	case partial:
		w.open, w.sight = true, nil
		return
	case slow:
		w.store = wire.StoreUnknown
	default:
		w.store = wire.StoreDown
	}
	w.open = w.open || boottime.Between(w.looked, time.Now()) > bound
}

// load reads the file's newest entries from before this instance began, for figures and for
// queries.
func (r *recorder) load(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*callBound)
	defer cancel()
	r.mu.Lock()
	first := r.first
	r.mu.Unlock()
	all, more, err := r.file.Read(ctx, HistoryQuery{Before: first, Prefixes: []string{""}, Limit: min(mostLoaded, max(r.rare.most/2, 1))})
	if err != nil {
		r.log.Warn("the history file cannot be read", "error", err.Error())
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first != first || len(all) == 0 { // there is no room for them any more
		return
	}
	var often, seldom []*HistoryEntry
	for i := range all {
		e := &all[i]
		r.minutes.count(e)
		if rare[e.Kind] {
			seldom = append(seldom, e)
		} else {
			often = append(often, e)
		}
	}
	r.often.unshift(often)
	r.rare.unshift(seldom)
	r.since, r.first = beginOf(all, more > 0), all[len(all)-1].Seq
	if r.since.Before(r.minutes.from) {
		r.minutes.from = r.since
	}
}

// beginOf returns since when entries, newest first, are all that happened; more means that the file
// has older ones. Some of the times may be of a wrong clock. Those in the future do not count. If
// there are older entries, the latest of the ten oldest times claims too little rather than too
// much.
func beginOf(entries []HistoryEntry, more bool) (began time.Time) {
	now := time.Now()
	if more {
		entries = entries[max(0, len(entries)-10):]
	}
	for _, e := range slices.Backward(entries) {
		if e.Time.After(began) && !e.Time.After(now) {
			if began = e.Time; !more {
				break
			}
		}
	}
	return cmp.Or(began, now)
}

// take returns up to most entries for the file, in order. They count as written from now on.
func (r *recorder) take(most int) (all []HistoryEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.writing
	lost := w.lost
	lists := [][]*HistoryEntry{after(r.often.all(), w.written), after(r.rare.all(), w.written), nil}
	if lost != nil {
		lists[2], w.lost = []*HistoryEntry{lost}, nil
	}
	for len(all) < most {
		var next *[]*HistoryEntry
		for i := range lists {
			if len(lists[i]) > 0 && (next == nil || lists[i][0].Seq < (*next)[0].Seq) {
				next = &lists[i]
			}
		}
		if next == nil {
			break
		}
		all = append(all, *(*next)[0])
		*next = (*next)[1:]
	}
	if len(all) > 0 {
		w.written = all[len(all)-1].Seq
	}
	switch {
	case len(lists[2]) > 0: // the gap is not among them
		w.lost = lists[2][0]
	case lost != nil: // keep the gap in memory: a file that fails may never get it
		r.dropped(r.rare.push(lost))
	}
	return all
}

// after returns the entries with a Seq above seq.
func after(entries []*HistoryEntry, seq int64) []*HistoryEntry {
	i, _ := slices.BinarySearchFunc(entries, seq+1, func(e *HistoryEntry, seq int64) int { return cmp.Compare(e.Seq, seq) })
	return entries[i:]
}

// seen returns until when the instance has seen what happened. If it ends in a gap, the next instance
// continues the gap.
func (r *recorder) seen() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch.open {
		return r.watch.looked
	}
	return time.Now()
}

// wrote records that the file has what take returned.
func (r *recorder) wrote() {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.writing
	if w.since, w.has = time.Now(), w.written; w.has == r.seq {
		w.since = time.Time{}
	}
}

const (
	// writeEvery is how long entries are gathered for the file. aliveEvery is how often the file notes
	// that the instance is alive. retryEvery is the pause after a failure.
	writeEvery, aliveEvery, retryEvery = 250 * time.Millisecond, 5 * time.Second, 2 * time.Second
	// mostWritten is how many entries the file takes at once.
	mostWritten = 1000
	// mostLoaded is how many of the file's entries are read when the instance begins.
	mostLoaded = 5000
	// closeWithin is how long the end of a Server waits for the file.
	closeWithin = 3 * time.Second
)

// write writes entries to the file until ctx ends, and then the rest. It waits for the file as long
// as necessary, but nothing waits for write. Entries that find no room in memory meanwhile become a
// gap in the file.
func (r *recorder) write(ctx context.Context) {
	defer close(r.ended)
	r.load(ctx)
	failing := false
	for batch := []HistoryEntry(nil); ; {
		pause, last := writeEvery, ctx.Err() != nil
		var err error
		if batch, err = r.writeAll(ctx, batch); err != nil {
			pause = retryEvery
		}
		switch {
		case err != nil && !failing:
			r.log.Error("the history file cannot be written: what does not fit into memory will be a gap in it", "error", err.Error())
		case err == nil && failing:
			r.log.Info("the history file is written again")
		}
		failing = err != nil
		if last {
			return
		}
		if !failing {
			_, _ = waiting.Sleep(ctx, nil, r.added, aliveEvery)
		}
		_, _ = waiting.Sleep(ctx, nil, nil, pause)
	}
}

// writeAll writes batch, which failed before, and then all other entries. It returns the entries
// that it could not write.
func (r *recorder) writeAll(ctx context.Context, batch []HistoryEntry) ([]HistoryEntry, error) {
	for {
		again := len(batch) > 0
		if !again {
			batch = r.take(mostWritten)
		}
		// Entries that are left when the Server ends must be written too.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*callBound)
		err := r.file.Append(call, r.seen(), batch)
		cancel()
		if err != nil {
			return batch, err
		}
		r.wrote()
		if !again && len(batch) < mostWritten {
			return nil, nil
		}
		batch = nil
	}
}

// close waits, for at most closeWithin, until the file has all entries. The ctx of write has ended.
func (r *recorder) close() {
	if r == nil || r.file == nil {
		return
	}
	if ended, _ := waiting.Sleep(context.Background(), nil, r.ended, closeWithin); !ended {
		r.log.Error("the history file hangs: the last entries are not in it")
	}
}
