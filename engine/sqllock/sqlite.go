package sqllock

import (
	"database/sql"
	_ "embed" // for the schema
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
	sqlerr "github.com/leasehold-go/leasehold/internal/sqlite"
)

//go:embed schema/sqlite.sql
var sqliteSchema string

// NewSQLite returns a Driver on a SQLite file that db was opened for, by any client. It
// does no I/O; an error is about opts. The first call that uses the database checks it:
// it must be a file on a local disk that Migrate has prepared.
//
// Statements must commit by themselves, and SQLite does not tell of a transaction that somebody has left open on a
// connection: a lock that is granted there ends with it, so that a pool that an application shares must get none back
// with a transaction that it began by a statement and did not end. Transactions of [sql.DB.BeginTx] are no danger.
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
	named        string // Options.Path, absolute

	file atomic.Pointer[sqliteFile] // as check saw it
}

// sqliteNow stays the same during a statement, and is taken when the statement has the
// database: waiting for other writers takes nothing from a lease.
const sqliteNow = `(cast(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)`

// sqliteFloor is above the fences of rows that were deleted, because the clock has only
// milliseconds.
const sqliteFloor = `max(` + sqliteNow + `, (SELECT max(lost) + 1 FROM {p}meta))`

var sqliteIdle = strings.ReplaceAll(idleRow, "{now}", sqliteNow)

const sqliteState = `SELECT ` + sqliteNow + `, ` + sqliteFloor + `, n.value, ` + stateColumns + `
	FROM json_each(?1) n LEFT JOIN {p}locks l ON l.name = n.value ORDER BY n.value`

func (*sqlite) statements() statements {
	return statements{
		leaseTexts: leaseTexts{
			grant: `INSERT INTO {p}locks (name, fence, owner, expires, since, note, rev, crowd, record)
				VALUES (?1, ` + sqliteFloor + `, ?2, ` + sqliteNow + ` + ?3, ` + sqliteNow + `, ?4, ` + sqliteNow + `, 0, '` + nothing + `')
				ON CONFLICT (name) DO UPDATE SET fence = max(fence + 1, raised + 1, excluded.fence), owner = excluded.owner,
					expires = excluded.expires, since = excluded.since, note = excluded.note, rev = rev + 1
				WHERE expires <= excluded.since AND crowd <= excluded.since
				RETURNING fence`,
			next: `UPDATE {p}locks SET fence = max(fence + 1, raised + 1, ` + sqliteFloor + `), owner = ?2, expires = ` + sqliteNow + ` + ?3,
					since = ` + sqliteNow + `, note = ?4, rev = rev + 1, record = json_remove(record, '$.claims[0]'),
					crowd = CASE json_array_length(record, '$.claims') WHEN 1 THEN 0 ELSE crowd END
				WHERE name = ?1 AND expires <= ` + sqliteNow + ` AND record ->> '$.claims[0].owner' = ?2
					AND NOT EXISTS (SELECT 1 FROM json_each(record, '$.claims') c WHERE c.value ->> 'status' > 0)
				RETURNING fence`,
			free: `UPDATE {p}locks SET owner = '', expires = CASE WHEN ?3 > 0 THEN ` + sqliteNow + ` + ?3 ELSE 0 END, rev = rev + 1
				WHERE name = ?1 AND owner = ?2 AND expires > ` + sqliteNow + ` AND fence = ?4`,
		},
		batchTexts: batchTexts{
			// CROSS JOIN begins with the list: after an ANALYZE with few rows, each row would otherwise be looked for in it.
			renewAll: `INSERT INTO {p}locks (name, fence, owner, expires, since, note, rev, crowd, record)
				SELECT l.name, l.fence, l.owner, max(l.expires, ` + sqliteNow + ` + (r.value ->> 'ttl')), l.since, l.note, l.rev, l.crowd, l.record
					FROM json_each(?1) r CROSS JOIN {p}locks l ON l.name = r.value ->> 'name'
					WHERE l.owner = r.value ->> 'owner' AND l.expires > ` + sqliteNow + `
				ON CONFLICT (name) DO UPDATE SET expires = excluded.expires, rev = rev + 1
				RETURNING name, owner, fence`,
		},
		rowTexts: rowTexts{
			save: `UPDATE {p}locks SET fence = ?2, owner = ?3, expires = ?4, since = ?5, note = ?6, crowd = ?7, record = ?8, rev = rev + 1
				WHERE name = ?1 AND rev = ?9
				RETURNING rev`,
			raise: `INSERT INTO {p}locks (name, fence, owner, expires, since, note, rev, crowd, record, raised)
				VALUES (?1, 0, '', 0, 0, '', ` + sqliteNow + `, 0, '` + nothing + `', ?2)
				ON CONFLICT (name) DO UPDATE SET raised = max(raised, excluded.raised), rev = rev + 1`,
			state: sqliteState,
			show:  sqliteState,
			list: `SELECT ` + sqliteNow + `, ` + sqliteFloor + `, l.name, ` + stateColumns + ` FROM {p}locks l
				WHERE l.name >= ?1 AND (l.expires > ` + sqliteNow + ` OR l.crowd > ` + sqliteNow + `) ORDER BY l.name`,
		},
		idleTexts: idleTexts{
			idle:  `SELECT name FROM {p}locks l WHERE name > ?1 AND ` + sqliteIdle + ` ORDER BY name LIMIT ` + purgeAtOnce,
			purge: `DELETE FROM {p}locks AS l WHERE name IN (SELECT value FROM json_each(?1)) AND ` + sqliteIdle,
		},
		// data_version counts the commits of other connections, total_changes the own.
		version: `SELECT data_version, total_changes() FROM pragma_data_version`,
	}
}

// Where nothing has changed a look costs next to nothing: who is next polls every half
// millisecond, about what a commit takes, and nobody waits 3 % longer than it has to.
func (*sqlite) traits() traits {
	return traits{engine: "sqlite", oneWriter: true, prepares: true, fence: fence.SQLite,
		pace: pace{first: 500 * time.Microsecond, last: 20 * time.Millisecond, share: 32, idle: 4}}
}

// code returns the primary result code, or 0.
func (*sqlite) code(err error) int {
	if explained(err) { // which may quote names and paths
		return 0
	}
	return sqlerr.Code(err)
}

func (s *sqlite) busy(err error) bool { return !explained(err) && sqlerr.IsBusy(err) }

func (*sqlite) inside(text string) string { return text }

func (*sqlite) serial(error) bool { return false }

func (s *sqlite) explain(err error) error {
	switch code := s.code(err); {
	case err == nil, explained(err):
		return err
	case code == sqlerr.Corrupt, code == sqlerr.NotADB:
		return fmt.Errorf("%w: sqlite%s: %w", driver.ErrCorrupt, s.at(), err)
	case code == sqlerr.Full:
		return fmt.Errorf("%w: %s: %w", ErrFull, s.room(), err)
	case missing(err):
		return fmt.Errorf("%w: sqlite%s: %w", ErrNoSchema, s.at(), err)
	}
	return err
}

// room is what has none when the database is full.
func (s *sqlite) room() string {
	if f := s.file.Load(); f != nil {
		return fmt.Sprintf("the disk with the folder %q has no space left, or the file has all pages that it may", filepath.Dir(f.path))
	}
	return "its disk has no space left, or the file has all pages that it may"
}

// at is the file's path for errors, once it is known.
func (s *sqlite) at() string {
	if f := s.file.Load(); f != nil {
		return fmt.Sprintf(" file %q", f.path)
	}
	return ""
}
