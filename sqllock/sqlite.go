package sqllock

import (
	"context"
	"database/sql"
	_ "embed" // for the schema
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/leasehold-go/leasehold/driver"
)

//go:embed schema/sqlite.sql
var sqliteSchema string

// NewSQLite returns a Driver on a SQLite file that db was opened for, by any client. It
// does no I/O; an error is about opts. The first call that uses the database checks it:
// it must be a file on a local disk that Migrate has prepared.
func NewSQLite(db *sql.DB, opts *Options) (*Driver, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return newDriver(db, &sqlite{prefix: o.Prefix, allowForeign: o.AllowForeign}, o.Prefix), nil
}

// sqlite is the dialect of SQLite 3.42 and later (unixepoch with subsec).
type sqlite struct {
	prefix       string
	allowForeign bool

	file atomic.Pointer[sqliteFile] // as check saw it
}

type sqliteFile struct {
	path string
	info os.FileInfo // nil until the check has passed
}

// sqliteNow stays the same during a statement, and is taken when the statement has the
// database: waiting for other writers takes nothing from a lease.
const sqliteNow = `cast(round(unixepoch('subsec') * 1000) AS INTEGER)`

// sqliteLive is whether this owner already has the exclusive lease.
const sqliteLive = `owner = excluded.owner AND expires > excluded.since`

const sqliteState = `SELECT ` + sqliteNow + `, ` + stateColumns + `
	FROM {p}locks l LEFT JOIN {p}claims c ON c.name = l.name `

// A new resource needs no look at claims: they exist only beside its row of locks.
const sqliteGrant = `
INSERT INTO {p}locks (name, fence, owner, expires, since, note)
VALUES (?1, ` + sqliteNow + ` * 1000, ?2, ` + sqliteNow + ` + ?3, ` + sqliteNow + `, ?4)
ON CONFLICT (name) DO UPDATE SET
	fence = CASE WHEN ` + sqliteLive + ` THEN fence ELSE max(fence + 1, excluded.fence) END,
	since = CASE WHEN ` + sqliteLive + ` THEN since ELSE excluded.since END,
	owner = excluded.owner, expires = excluded.expires, note = excluded.note
WHERE ` + sqliteLive + ` OR expires <= excluded.since AND NOT EXISTS (
	SELECT 1 FROM {p}claims c WHERE c.name = excluded.name AND c.expires > excluded.since AND c.status <> 2)
RETURNING fence`

func (*sqlite) statements() statements {
	return statements{
		grant: sqliteGrant,
		renew: `UPDATE {p}locks SET expires = ` + sqliteNow + ` + ?3
			WHERE name = ?1 AND owner = ?2 AND expires > ` + sqliteNow + ` RETURNING fence`,
		renewClaim: `UPDATE {p}claims SET expires = ` + sqliteNow + ` + ?3
			WHERE name = ?1 AND owner = ?2 AND status = 1 AND expires > ` + sqliteNow + ` RETURNING fence`,
		free: `UPDATE {p}locks SET owner = '', expires = ` + sqliteNow + ` + ?3
			WHERE name = ?1 AND owner = ?2 AND expires > ` + sqliteNow + ` RETURNING fence`,
		leave: `DELETE FROM {p}claims
			WHERE name = ?1 AND owner = ?2 AND status <= 1 AND expires > ` + sqliteNow,
		linger: `UPDATE {p}claims SET status = 3, expires = ` + sqliteNow + ` + ?3
			WHERE name = ?1 AND owner = ?2 AND status = 1 AND expires > ` + sqliteNow,
		reason: `SELECT note FROM {p}claims
			WHERE name = ?1 AND owner = ?2 AND status = 2 AND expires > ` + sqliteNow + ` ORDER BY ticket DESC LIMIT 1`,
		raise: `INSERT INTO {p}locks (name, fence, owner, expires, since, note) VALUES (?1, ?2, '', 0, 0, '')
			ON CONFLICT (name) DO UPDATE SET fence = max(fence, excluded.fence)`,
		purge: `DELETE FROM {p}claims WHERE expires <= ` + sqliteNow,
		stale: `SELECT count(*) FROM {p}claims WHERE expires <= ` + sqliteNow,

		// The first write of a transaction locks the whole file, even if it changes nothing.
		enter: `INSERT INTO {p}locks (name, fence, owner, expires, since, note) VALUES (?1, 0, '', 0, 0, '')
			ON CONFLICT (name) DO NOTHING`,
		saveLock: `UPDATE {p}locks SET fence = ?2, owner = ?3, expires = ?4, since = ?5, note = ?6 WHERE name = ?1`,
		saveClaim: `INSERT OR REPLACE INTO {p}claims (name, ticket, owner, mode, status, lim, fence, expires, since, note)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`,
		dropClaim: `DELETE FROM {p}claims WHERE name = ?1 AND ticket = ?2`,

		state: sqliteState + `WHERE l.name IN (SELECT value FROM json_each(?1)) ORDER BY l.name, c.ticket`,
		list: sqliteState + `WHERE l.name >= ?1 AND (l.expires > ` + sqliteNow + ` OR EXISTS (
			SELECT 1 FROM {p}claims e WHERE e.name = l.name AND e.expires > ` + sqliteNow + `)) ORDER BY l.name, c.ticket`,

		// data_version counts the commits of other connections, total_changes the own.
		version:   `SELECT data_version, total_changes() FROM pragma_data_version`,
		oneWriter: true,
	}
}

func (*sqlite) number(ctx context.Context, on runner, text string, args ...any) (int64, bool, error) {
	return returning(ctx, on, text, args...)
}

// intact looks at the name of the file: connections that are open would go on using a
// deleted one, while other processes make a new one.
func (s *sqlite) intact() error {
	f := s.file.Load()
	info, err := os.Stat(f.path)
	if err != nil || !os.SameFile(info, f.info) {
		return fmt.Errorf("%w: sqlite file %q was deleted or replaced while it was open: open it anew", driver.ErrCorrupt, f.path)
	}
	return nil
}

// Result codes of SQLite, less what extends them.
const (
	sqliteBusy    = 5
	sqliteLocked  = 6
	sqliteCorrupt = 11
	sqliteNotADB  = 26
)

// code returns the primary result code, or 0. Clients that have no Code method are read
// by the texts that SQLite itself gives.
func (*sqlite) code(err error) int {
	var coded interface {
		error
		Code() int
	}
	switch {
	case err == nil, explained(err): // which may quote names and paths
		return 0
	case errors.As(err, &coded):
		return coded.Code() & 0xff
	}
	for text, code := range map[string]int{
		"database is locked":       sqliteBusy,
		"SQLITE_BUSY":              sqliteBusy,
		"database table is locked": sqliteLocked,
		"malformed":                sqliteCorrupt,
		"not a database":           sqliteNotADB,
	} {
		if strings.Contains(err.Error(), text) {
			return code
		}
	}
	return 0
}

// explained reports whether err is this package's and says what to do already.
func explained(err error) bool {
	return errors.Is(err, driver.ErrCorrupt) || errors.Is(err, driver.ErrUnsupported) || errors.Is(err, ErrNoSchema)
}

// busy includes the extended codes: BUSY_SNAPSHOT is a read transaction that came too
// late to write, BUSY_RECOVERY another process that replays the log of a crashed one.
func (s *sqlite) busy(err error) bool {
	code := s.code(err)
	return code == sqliteBusy || code == sqliteLocked
}

func (s *sqlite) explain(err error) error {
	switch code := s.code(err); {
	case err == nil, explained(err):
		return err
	case code == sqliteCorrupt, code == sqliteNotADB:
		return fmt.Errorf("%w: sqlite%s: %w", driver.ErrCorrupt, s.named(), err)
	case missing(err):
		return fmt.Errorf("%w: sqlite%s: %w", ErrNoSchema, s.named(), err)
	}
	return err
}

// named is the file's path for errors, once it is known.
func (s *sqlite) named() string {
	if f := s.file.Load(); f != nil {
		return fmt.Sprintf(" file %q", f.path)
	}
	return ""
}
