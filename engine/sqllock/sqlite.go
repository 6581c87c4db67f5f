package sqllock

import (
	"database/sql"
	_ "embed" // for the schema
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
	sqlerr "github.com/leasehold-go/leasehold/internal/sqlite"
)

//go:embed schema/sqlite.sql
var sqliteSchema string

//go:embed schema/sqlite-3.sql
var sqliteSchema3 string

// NewSQLite returns a Driver on a SQLite file. db may use any client. NewSQLite does no I/O; an
// error is about opts. The first call that uses the database checks it: it must be a file on a
// local disk that Migrate has prepared.
//
// Statements must commit by themselves. SQLite does not report a transaction that was left open
// on a connection: a lock that is granted there ends with it. So an application that shares the
// pool must not return connections with a transaction that it began by a statement. Transactions
// of [sql.DB.BeginTx] are safe.
func NewSQLite(db *sql.DB, opts *Options) (*Driver, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.Schema != "" || o.Listen != nil {
		return nil, fmt.Errorf("sqllock: SQLite takes neither Schema nor Listen")
	}
	named := o.Path
	if named != "" {
		if named, err = filepath.Abs(named); err != nil {
			return nil, fmt.Errorf("sqllock: Path: %w", err)
		}
	}
	return newDriver(db, &sqlite{prefix: o.Prefix, allowForeign: o.AllowForeign, named: named}, &o)
}

// sqlite is the dialect of SQLite 3.42 and later (unixepoch with subsec).
type sqlite struct {
	returning
	prefix       string
	allowForeign bool
	named        string // Options.Path, made absolute

	file atomic.Pointer[sqliteFile] // as check found it
}

// sqliteNow stays the same during a statement. It is read once the statement has the database, so
// that waiting for other writers does not shorten a lease.
const sqliteNow = `(cast(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)`

// sqliteFloor is above the fences of deleted rows. It needs the column lost because the clock
// counts milliseconds only.
const sqliteFloor = `max(` + sqliteNow + `, (SELECT max(lost) + 1 FROM {p}meta))`

var sqliteIdle = strings.ReplaceAll(idleRow, "{now}", sqliteNow)

// sqlitePlaces selects the places of l that count, in order.
const sqlitePlaces = `FROM {p}places p JOIN {p}beats b ON b.proc = p.proc
	WHERE p.name = l.name AND p.seq > l.served AND ` + liveBeat + ` ORDER BY p.seq LIMIT `

// sqliteView is the places of l that count, or the first of them, as JSON.
const sqliteView = `(SELECT json_group_array(json_array(h.seq, h.owner, h.mode, h.lim, h.wants, h.note, h.ends))
	FROM (SELECT p.*, b.ends ` + sqlitePlaces + `{many}) h)`

// sqliteTold is the fence of a row, negative if owners other than its holder wait. RETURNING does
// not know the table's alias.
const sqliteTold = `CASE WHEN EXISTS (SELECT 1 FROM {p}places p JOIN {p}beats b ON b.proc = p.proc
	WHERE p.name = {name} AND p.seq > served AND p.owner <> {owner} AND ` + liveBeat + `) THEN -fence ELSE fence END`

const sqliteState = `SELECT ` + sqliteNow + `, ` + sqliteFloor + `, n.value, ` + stateColumns + `
	FROM json_each(?1) n LEFT JOIN {p}locks l ON l.name = n.value ORDER BY n.value`

func (*sqlite) statements() statements {
	s := statements{
		leaseTexts: leaseTexts{
			grant: `INSERT INTO {p}locks (name, fence, owner, expires, since, note, rev, crowd, record)
				VALUES (?1, ` + sqliteFloor + `, ?2, ` + sqliteNow + ` + ?3, ` + sqliteNow + `, ?4, ` + sqliteNow + `, 0, '` + nothing + `')
				ON CONFLICT (name) DO UPDATE SET fence = max(fence + 1, raised + 1, excluded.fence), owner = excluded.owner,
					expires = excluded.expires, since = excluded.since, note = excluded.note, rev = rev + 1
				WHERE expires <= excluded.since AND crowd <= excluded.since
				RETURNING fence`,
			next: `UPDATE {p}locks AS l SET fence = max(fence + 1, raised + 1, ` + sqliteFloor + `), owner = ?2, expires = {now} + ?3,
					since = {now}, note = ?4, rev = rev + 1, served = m.seq,
					crowd = CASE WHEN EXISTS (SELECT 1 FROM {p}places p WHERE p.name = ?1 AND p.seq > m.seq) THEN l.crowd ELSE 0 END
				FROM {p}places m WHERE l.name = ?1 AND m.name = ?1 AND m.owner = ?2 AND m.seq > l.served
					AND l.expires <= {now} AND l.record = '` + nothing + `'
					AND NOT EXISTS (SELECT 1 FROM {p}places p JOIN {p}beats b ON b.proc = p.proc
						WHERE p.name = ?1 AND p.seq > l.served AND p.seq < m.seq AND ` + liveBeat + `)
				RETURNING fence`,
			free: `UPDATE {p}locks SET owner = '', expires = CASE WHEN ?3 > 0 THEN ` + sqliteNow + ` + ?3 ELSE 0 END, rev = rev + 1
				WHERE name = ?1 AND owner = ?2 AND expires > ` + sqliteNow + ` AND fence = ?4`,
		},
		batchTexts: batchTexts{
			// CROSS JOIN makes SQLite start with the list. After an ANALYZE with few rows, it would
			// otherwise search the list for each row.
			renewAll: `INSERT INTO {p}locks (name, fence, owner, expires, since, note, rev, crowd, record)
				SELECT l.name, l.fence, l.owner, max(l.expires, ` + sqliteNow + ` + (r.value ->> 'ttl')), l.since, l.note, l.rev, l.crowd, l.record
					FROM json_each(?1) r CROSS JOIN {p}locks l ON l.name = r.value ->> 'name'
					WHERE l.owner = r.value ->> 'owner' AND l.expires > ` + sqliteNow + `
				ON CONFLICT (name) DO UPDATE SET expires = excluded.expires, rev = rev + 1
				RETURNING name, owner, fence`,
		},
		rowTexts: rowTexts{
			save: `UPDATE {p}locks SET fence = ?2, owner = ?3, expires = ?4, since = ?5, note = ?6, crowd = ?7, record = ?8, served = ?9, rev = rev + 1
				WHERE name = ?1 AND rev = ?10
				RETURNING rev`,
			raise: `INSERT INTO {p}locks (name, fence, owner, expires, since, note, rev, crowd, record, raised)
				VALUES (?1, 0, '', 0, 0, '', ` + sqliteNow + `, 0, '` + nothing + `', ?2)
				ON CONFLICT (name) DO UPDATE SET raised = max(raised, excluded.raised), rev = rev + 1`,
			state: strings.ReplaceAll(sqliteState, "{places}", strings.ReplaceAll(sqliteView, "{many}", strconv.Itoa(inView))),
			show:  sqliteState,
			list: `SELECT ` + sqliteNow + `, ` + sqliteFloor + `, l.name, ` + stateColumns + ` FROM {p}locks l
				WHERE l.name >= ?1 AND (l.expires > ` + sqliteNow + ` OR l.crowd > ` + sqliteNow + `) ORDER BY l.name LIMIT ?2`,
		},
		placeTexts: placeTexts{
			insert: `INSERT INTO {p}places (name, seq, owner, proc, mode, lim, wants, note)
				SELECT ?1, max({now}, ?8, coalesce((SELECT max(p.seq) + 1 FROM {p}places p WHERE p.name = ?1), 0)), ?2, ?3, ?4, ?5, ?6, ?7 WHERE true
				ON CONFLICT (name, owner) DO UPDATE SET proc = excluded.proc, seq = CASE WHEN seq >= ?8 THEN seq ELSE excluded.seq END`,
			leave:  `DELETE FROM {p}places WHERE name = ?1 AND owner = ?2`,
			remove: `DELETE FROM {p}places WHERE proc = ?1 AND (name, owner, seq) IN (SELECT value ->> 'name', value ->> 'owner', value ->> 'seq' FROM json_each(?2))`,
			beat: `INSERT INTO {p}beats (proc, ends, number) VALUES (?1, {now} + ?2, ?3)
				ON CONFLICT (proc) DO UPDATE SET ends = excluded.ends, number = excluded.number`,
			unbeat: `DELETE FROM {p}beats WHERE proc = ?1`,
			mine: `SELECT p.name, p.owner, p.seq, p.seq <= coalesce(l.served, 0), coalesce(l.fence, 0), CASE l.owner WHEN p.owner THEN l.expires - {now} ELSE 0 END,
					coalesce(l.crowd, 0) - {now} FROM {p}places p LEFT JOIN {p}locks l ON l.name = p.name WHERE p.proc = ?1`,
			extend: `UPDATE {p}locks SET crowd = {now} + ?2, rev = rev + 1
				WHERE name IN (SELECT value FROM json_each(?1)) AND crowd < {now} + ?2 / 2`, // rev: a caller that has read the row must read it again
			dead: `DELETE FROM {p}beats WHERE ends < {now} - ?1`,
			bury: `DELETE FROM {p}places WHERE NOT EXISTS (SELECT 1 FROM {p}beats b WHERE b.proc = {p}places.proc)`,
		},
		idleTexts: idleTexts{
			idle:  `SELECT name FROM {p}locks l WHERE name > ?1 AND ` + sqliteIdle + ` ORDER BY name LIMIT ` + purgeAtOnce,
			purge: `DELETE FROM {p}locks AS l WHERE name IN (SELECT value FROM json_each(?1)) AND ` + sqliteIdle,
		},
		// data_version counts other connections' commits, total_changes this connection's changes.
		version: `SELECT data_version, total_changes() FROM pragma_data_version`,
	}
	s.asking = askingTexts{
		next:     strings.Replace(s.next, "RETURNING fence", "RETURNING "+strings.NewReplacer("{name}", "?1", "{owner}", "?2").Replace(sqliteTold), 1),
		renewAll: strings.Replace(s.renewAll, "RETURNING name, owner, fence", "RETURNING name, owner, "+strings.NewReplacer("{name}", "{p}locks.name", "{owner}", "{p}locks.owner").Replace(sqliteTold), 1),
	}
	put := strings.NewReplacer("{now}", sqliteNow, "{life}", placeMicros, "{many}", "-1")
	s.each(func(text *string) { *text = put.Replace(strings.ReplaceAll(*text, "{places}", sqliteView)) })
	return s
}

// traits implements dialect. A look costs next to nothing while nothing has changed. So the next
// waiter polls every half millisecond, about as long as a commit takes, and polling adds less than
// 3 % to a wait.
func (*sqlite) traits() traits {
	return traits{engine: "sqlite", oneWriter: true, prepares: true, fence: fence.SQLite,
		pace: pace{first: 500 * time.Microsecond, last: 20 * time.Millisecond, share: 32, idle: 4, far: 500 * time.Millisecond}}
}

func (s *sqlite) busy(err error) bool { return !explained(err) && sqlerr.IsBusy(err) }

func (*sqlite) inside(text string) string { return text }

func (*sqlite) serial(error) bool { return false }

func (s *sqlite) explain(err error) error {
	switch code := sqlerr.Code(err); {
	case err == nil, explained(err): // its text may quote names and paths
		return err
	case code == sqlerr.Corrupt, code == sqlerr.NotADB:
		return fmt.Errorf("%w: sqlite%s: %w", driver.ErrCorrupt, s.at(), err)
	case code == sqlerr.ReadOnly:
		return fmt.Errorf("the database is %w: sqlite%s: %w", driver.ErrReadOnly, s.at(), err)
	case code == sqlerr.Full:
		return fmt.Errorf("%w: %s: %w", ErrFull, s.room(), err)
	case missing(err):
		return fmt.Errorf("%w: sqlite%s: %w", ErrNoSchema, s.at(), err)
	}
	return err
}

// room names what has no room left when the database is full.
func (s *sqlite) room() string {
	if f := s.file.Load(); f != nil {
		return fmt.Sprintf("the disk with the folder %q has no space left, or the file has all pages that it may", filepath.Dir(f.path))
	}
	return "its disk has no space left, or the file has all pages that it may"
}

// at returns the file's path for errors, once it is known. It is not known if the client runs the
// pragmas of its DSN on connecting and finds that the file is no database.
func (s *sqlite) at() string {
	if f := s.file.Load(); f != nil {
		return fmt.Sprintf(" file %q", f.path)
	}
	return ""
}
