// Package historyfile keeps the history of "leasehold serve" in a file, by SQLite.
//
// One instance uses the file at a time. SQLite locks the file while it is open. File systems may
// ignore locks, so each write also checks that no other instance has taken over the file.
package historyfile

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/internal/sqlite"
	"github.com/leasehold-go/leasehold/serve"
	_ "modernc.org/sqlite"
)

// Options bound a file.
type Options struct {
	Store   string        // the store; a history of another one is refused
	Earlier string        // what a version before had for Store; its history becomes the one of Store
	Keep    time.Duration // entries are deleted one to two hours after they reach this age; 0: none is
	Bytes   int64         // size from which on the oldest entries are deleted; 0: no limit
}

const (
	// application marks the file as a history; version is the version of its tables.
	application, version = 0x4c684869, 1
	// pruneEvery is the interval of pruning. pruned is how many entries are searched or deleted at
	// once.
	pruneEvery, pruned = time.Minute, 2000
	// apart is the time between two looks for old entries. An entry is deleted when two looks have
	// found it too old: a clock that starts wrong, until the network sets it, deletes nothing.
	apart = time.Hour
	// window is how many entries are searched at once. lookFor limits the search for one page.
	window, lookFor = 20_000, time.Second
	// pruneFor limits how long one Append of fewer than many entries deletes old ones. With more, it
	// deletes a part, because others wait to be written.
	pruneFor, many = 500 * time.Millisecond, 100
)

// A File is a history in a file. It implements serve.HistoryFile.
type File struct {
	path  string
	db    *sql.DB
	opts  Options
	owner string // a random text for this opening of the file

	mu    sync.Mutex
	state serve.HistoryState // guarded by mu

	// Append alone uses these.
	pruned time.Time // last time of pruning
	from   int64     // the deletion of old entries continues above this Seq; 0: none is under way
	looked time.Time // last time of a look for old entries; at first, of opening
}

const tables = `
CREATE TABLE IF NOT EXISTS history (id TEXT NOT NULL, store TEXT NOT NULL, owner TEXT NOT NULL, alive INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS looks (clock INTEGER PRIMARY KEY, at INTEGER NOT NULL, seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS entries (seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, entry TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS entries_by_name ON entries (name, seq);`

// Open opens the file at path, or creates it. The caller must close it.
func Open(ctx context.Context, path string, opts Options) (*File, error) {
	f := &File{path: path, opts: opts, owner: rand.Text(), looked: time.Now()}
	made, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := made.Close(); err != nil {
		return nil, err
	}
	uri := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}
	if f.db, err = sql.Open("sqlite", uri.String()); err != nil {
		return nil, err
	}
	f.db.SetMaxOpenConns(1) // the connection that has the lock
	if err := f.prepare(ctx); err != nil {
		f.db.Close()
		return nil, f.explain(err)
	}
	return f, nil
}

// explain describes SQLite's error in terms of the history.
func (f *File) explain(err error) error {
	switch sqlite.Code(err) {
	case sqlite.Busy:
		return fmt.Errorf("the history file %s is in use by another instance: each needs a file of its own", f.path)
	case sqlite.NotADB:
		return fmt.Errorf("%s is no history file: name another", f.path)
	}
	return fmt.Errorf("the history file %s: %w", f.path, err)
}

// prepare takes over the file for this instance. It does not change a file that is not a history.
func (f *File) prepare(ctx context.Context) error {
	var id, tablesThere, has int64
	for query, n := range map[string]*int64{"PRAGMA application_id": &id, "SELECT count(*) FROM sqlite_master": &tablesThere, "PRAGMA user_version": &has} {
		if err := f.db.QueryRowContext(ctx, query).Scan(n); err != nil {
			return err
		}
	}
	switch {
	case id != application && tablesThere > 0:
		return errors.New("it is another database: name another file")
	case has > version:
		return fmt.Errorf("a newer leasehold has written it (version %d, and this one knows %d)", has, version)
	}
	for _, set := range []string{
		"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", "PRAGMA busy_timeout = 0",
		"PRAGMA journal_size_limit = 16777216", "PRAGMA cache_size = -8000",
		fmt.Sprintf("PRAGMA application_id = %d", application), fmt.Sprintf("PRAGMA user_version = %d", version), tables,
	} {
		if _, err := f.db.ExecContext(ctx, set); err != nil {
			return err
		}
	}
	if err := f.claim(ctx); err != nil {
		return err
	}
	return f.begins(ctx)
}

// claim makes this instance the owner of the file, and reads its state.
func (f *File) claim(ctx context.Context) error {
	tx, err := f.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	var store string
	var alive int64
	switch err := tx.QueryRowContext(ctx, "SELECT id, store, alive FROM history").Scan(&f.state.ID, &store, &alive); {
	case errors.Is(err, sql.ErrNoRows):
		f.state.ID = rand.Text()[:8]
		if _, err := tx.ExecContext(ctx, "INSERT INTO history VALUES (?, ?, ?, ?)", f.state.ID, f.opts.Store, f.owner, time.Now().UnixMilli()); err != nil {
			return err
		}
	case err != nil:
		return err
	case store != f.opts.Store && store != f.opts.Earlier:
		return fmt.Errorf("it is the history of %s, and not of %s: name another file", strings.TrimSuffix(store, "?"), strings.TrimSuffix(f.opts.Store, "?"))
	default:
		f.state.Alive = time.UnixMilli(alive)
		if _, err := tx.ExecContext(ctx, "UPDATE history SET owner = ?, store = ?", f.owner, f.opts.Store); err != nil {
			return err
		}
	}
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM entries").Scan(&f.state.Last); err != nil {
		return err
	}
	return tx.Commit()
}

// Close closes the file.
func (f *File) Close() error { return f.db.Close() }

// State implements serve.HistoryFile.
func (f *File) State() serve.HistoryState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

var errTaken = errors.New("another instance has taken it: each needs a file of its own")

// Append implements serve.HistoryFile.
func (f *File) Append(ctx context.Context, seen time.Time, entries []serve.HistoryEntry) error {
	err := f.append(ctx, seen, entries)
	if err == nil && (f.from > 0 || time.Since(f.pruned) >= pruneEvery) {
		f.pruned = time.Now()
		bound := pruneFor
		if len(entries) >= many {
			bound = 0
		}
		err = f.prune(ctx, bound)
	}
	if err != nil {
		return f.explain(err)
	}
	return nil
}

func (f *File) append(ctx context.Context, seen time.Time, entries []serve.HistoryEntry) error {
	tx, err := f.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	done, err := tx.ExecContext(ctx, "UPDATE history SET alive = ? WHERE owner = ?", seen.UnixMilli(), f.owner)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, errTaken)
	}
	// An earlier attempt may have written the entries.
	insert, err := tx.PrepareContext(ctx, "INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?, ?)")
	if err != nil {
		return err
	}
	defer insert.Close()
	for i := range entries {
		e := &entries[i]
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if _, err := insert.ExecContext(ctx, e.Seq, e.Time.UnixMilli(), e.Name, e.Kind, string(text)); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if len(entries) == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Last = entries[len(entries)-1].Seq
	if f.state.Began.IsZero() {
		f.state.Began = entries[0].Time
	}
	return nil
}

// prune deletes entries that are too old or exceed the size. If the bound passes while it deletes
// old ones, it leaves the rest to the next call.
func (f *File) prune(ctx context.Context, bound time.Duration) error {
	if f.opts.Keep > 0 {
		if err := f.pruneOld(ctx, bound); err != nil {
			return err
		}
	}
	if f.opts.Bytes > 0 {
		if err := f.pruneLarge(ctx); err != nil {
			return err
		}
	}
	return f.begins(ctx)
}

// pruneLarge deletes the oldest entries until the file has the size.
func (f *File) pruneLarge(ctx context.Context) error {
	for {
		size, err := f.size(ctx)
		if err != nil || size <= f.opts.Bytes {
			return err
		}
		done, err := f.db.ExecContext(ctx, "DELETE FROM entries WHERE seq IN (SELECT seq FROM entries ORDER BY seq LIMIT ?)", pruned)
		if err != nil {
			return err
		}
		if gone, err := done.RowsAffected(); err != nil || gone == 0 {
			return err
		}
	}
}

// pruneOld looks for old entries, and deletes those that the last look found too old as well. The
// file keeps the time of that look, because an instance may end before the next one. After the
// clock was set back, a look deletes nothing.
//
// The file also keeps its own clock, which a wrong wall clock does not advance. It is the sum of the
// times between successive looks of one instance. Each look stores that sum with the number of the
// newest entry. Once the sum has grown by Keep, that entry and all before it are too old, whatever
// their times are.
func (f *File) pruneOld(ctx context.Context, bound time.Duration) error {
	var clock, last int64 // 0: there was no look
	err := f.db.QueryRowContext(ctx, "SELECT clock, at FROM looks ORDER BY clock DESC LIMIT 1").Scan(&clock, &last)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	keep, now, next := f.opts.Keep.Milliseconds(), time.Now(), clock
	switch since := now.Sub(time.UnixMilli(last)); {
	case since >= apart:
		for done := false; !done; {
			if done, err = f.deleteOld(ctx, clock-keep, last-keep, now.UnixMilli()); err != nil {
				return err
			}
			if !done && time.Since(now) >= bound {
				return nil
			}
		}
		if _, err := f.db.ExecContext(ctx, "DELETE FROM looks WHERE clock <= ?", clock-keep); err != nil {
			return err
		}
		if time.Since(f.looked) >= apart && since <= 2*apart {
			next += since.Milliseconds()
		}
	case since >= 0:
		return nil
	}
	f.from, f.looked = 0, now
	_, err = f.db.ExecContext(ctx, "REPLACE INTO looks VALUES (?, ?, ?)", next, now.UnixMilli(), f.State().Last)
	return err
}

// deleteOld deletes entries from before the look at that clock, and others from before cut. It stops
// at the first of the others that is from between cut and now: those behind it are younger, whatever
// their times say. It passes over entries from the future, which a wrong clock left. Each call
// searches some of the entries; after the last part, done is true.
func (f *File) deleteOld(ctx context.Context, clock, cut, now int64) (done bool, err error) {
	var old, last, end int64 // old is the last entry from before that look
	if err := f.db.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM looks WHERE clock <= ?", clock).Scan(&old); err != nil {
		return false, err
	}
	err = f.db.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0), coalesce(min(CASE WHEN seq > ? AND at BETWEEN ? AND ? THEN seq END), max(seq) + 1, 0)"+
		" FROM (SELECT seq, at FROM entries WHERE seq > ? ORDER BY seq LIMIT ?)", old, cut, now, f.from, pruned).Scan(&last, &end)
	if err != nil || last == 0 {
		return true, err
	}
	if _, err := f.db.ExecContext(ctx, "DELETE FROM entries WHERE seq > ? AND seq < ? AND (at < ? OR seq <= ?)", f.from, end, cut, old); err != nil {
		return false, err
	}
	f.from = last
	return end <= last, nil
}

// size returns how many bytes of the file are in use.
func (f *File) size(ctx context.Context) (bytes int64, err error) {
	var pages, free, each int64
	for pragma, n := range map[string]*int64{"page_count": &pages, "freelist_count": &free, "page_size": &each} {
		if err := f.db.QueryRowContext(ctx, "PRAGMA "+pragma).Scan(n); err != nil {
			return 0, err
		}
	}
	return (pages - free) * each, nil
}

// begins updates the time of the first entry. One from the future has a wrong time. If many have, no
// entry counts as the first.
func (f *File) begins(ctx context.Context) error {
	var at int64
	err := f.db.QueryRowContext(ctx, "SELECT at FROM (SELECT seq, at FROM entries ORDER BY seq LIMIT ?) WHERE at <= ? ORDER BY seq LIMIT 1",
		pruned, time.Now().UnixMilli()).Scan(&at)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.Began = time.UnixMilli(at); err != nil {
		f.state.Began = time.Time{}
	}
	return nil
}

// Read implements serve.HistoryFile.
func (f *File) Read(ctx context.Context, q serve.HistoryQuery) (entries []serve.HistoryEntry, next int64, err error) {
	before := cmp.Or(q.Before, math.MaxInt64)
	for began := time.Now(); ; {
		some, low, err := f.read(ctx, &q, before, q.Limit-len(entries)+1)
		if err != nil {
			return nil, 0, f.explain(err)
		}
		entries = append(entries, some...)
		switch {
		case len(entries) > q.Limit:
			entries = entries[:q.Limit]
			return entries, entries[q.Limit-1].Seq, nil
		case low == 0:
			return entries, 0, nil
		case time.Since(began) > lookFor:
			return entries, low, nil
		}
		before = low
	}
}

// read searches a window of entries below before. It continues at low; 0 means that there are no
// more.
func (f *File) read(ctx context.Context, q *serve.HistoryQuery, before int64, limit int) (entries []serve.HistoryEntry, low int64, err error) {
	if q.Name != "" && len(q.Kinds) == 0 && q.Since.IsZero() && q.Until.IsZero() { // the index has these in order
		entries, err = f.query(ctx, "name = ? AND seq < ?", limit, q.Name, before)
		if err != nil {
			return nil, 0, err
		}
		ofNone, err := f.query(ctx, "name = '' AND seq < ?", limit, before)
		entries = append(entries, ofNone...)
		slices.SortFunc(entries, func(a, b serve.HistoryEntry) int { return cmp.Compare(b.Seq, a.Seq) })
		return entries[:min(len(entries), limit)], 0, err
	}
	err = f.db.QueryRowContext(ctx, "SELECT seq FROM entries WHERE seq < ? ORDER BY seq DESC LIMIT 1 OFFSET ?", before, window).Scan(&low)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, 0, err
	}
	where, args := []string{"seq < ?", "seq >= ?"}, []any{before, low}
	if !q.Since.IsZero() {
		var youngest sql.NullInt64
		if err := f.db.QueryRowContext(ctx, "SELECT max(at) FROM entries WHERE seq < ? AND seq >= ?", before, low).Scan(&youngest); err != nil {
			return nil, 0, err
		}
		if youngest.Int64 < q.Since.UnixMilli() {
			return nil, 0, nil // earlier entries are older
		}
		where, args = append(where, "at >= ?"), append(args, q.Since.UnixMilli())
	}
	if !q.Until.IsZero() {
		where, args = append(where, "at <= ?"), append(args, q.Until.UnixMilli())
	}
	if len(q.Kinds) > 0 {
		where = append(where, "kind IN (?"+strings.Repeat(", ?", len(q.Kinds)-1)+")")
		for _, kind := range q.Kinds {
			args = append(args, kind)
		}
	}
	names := []string{"name = ''"}
	if q.Name != "" {
		names, args = append(names, "name = ?"), append(args, q.Name)
	}
	for _, prefix := range q.Prefixes {
		if q.Name == "" {
			names, args = append(names, "substr(name, 1, ?) = ?"), append(args, utf8.RuneCountInString(prefix), prefix)
		}
	}
	where = append(where, "("+strings.Join(names, " OR ")+")")
	entries, err = f.query(ctx, strings.Join(where, " AND "), limit, args...)
	return entries, low, err
}

// query returns the newest entries for which where is true.
func (f *File) query(ctx context.Context, where string, limit int, args ...any) (entries []serve.HistoryEntry, err error) {
	rows, err := f.db.QueryContext(ctx, "SELECT seq, entry FROM entries WHERE "+where+" ORDER BY seq DESC LIMIT ?", append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var e serve.HistoryEntry
		var seq int64
		var text string
		if err := rows.Scan(&seq, &text); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			return nil, err
		}
		e.Seq = seq
		entries = append(entries, e)
	}
	return entries, rows.Err()
}
