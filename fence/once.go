package fence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/driver"
)

// ErrDone: the effect of that key has happened before, and did not happen again.
var ErrDone = errors.New("done already")

// Once makes an effect on a database happen exactly once for each key, such as
// "daily-report/2026-11-20" or "order-42/charge", even if a job runs again.
//
// A lock alone cannot do that. Its holder may die after the effect and before it has recorded
// that the effect is done. The next holder, although it rightly holds the lock, then repeats it.
// If the record comes first, the effect may never happen. So Once writes the record in the
// transaction of the effect: both happen or neither. The lock still avoids most futile attempts,
// and the token refuses a late holder.
//
// Effects outside the database, such as a mail or a payment, are not covered. Let the effect be a
// row that asks to send it, and let the receiver recognize repetitions by the key.
type Once struct {
	guard *SQL
	table string
}

// DefaultDoneTable is where a Once keeps the keys that are done, by default.
const DefaultDoneTable = "leasehold_done"

// NewOnce returns a Once that checks tokens with guard, in the same database, and keeps the keys
// that are done in table; "": [DefaultDoneTable]. It does no I/O. It returns an error if table
// is no plain identifier.
func NewOnce(guard *SQL, table string) (*Once, error) {
	if guard == nil {
		return nil, errors.New("leasehold: no guard")
	}
	table = cmp.Or(table, DefaultDoneTable)
	if !isTable(table) {
		return nil, fmt.Errorf("leasehold: table %q is no plain identifier", table)
	}
	return &Once{guard, table}, nil
}

// doneColumns are the columns of the table. Keys must be compared byte by byte.
var doneColumns = map[Dialect]string{
	SQLite:   `name TEXT NOT NULL PRIMARY KEY, token BIGINT NOT NULL`,
	Postgres: `name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL`,
	MySQL:    `name VARBINARY(512) PRIMARY KEY, token BIGINT NOT NULL`,
}

// Migrate creates the missing tables of o and of its guard in db, as [SQL.Migrate] does. Keys
// stay permanently: delete those that will not be used again.
func (o *Once) Migrate(ctx context.Context, db *sql.DB) error {
	if err := o.guard.Migrate(ctx, db); err != nil {
		return err
	}
	err := createTable(ctx, db, o.selectToken(),
		`CREATE TABLE IF NOT EXISTS `+o.table+` (`+doneColumns[o.guard.dialect]+`)`)
	if err != nil {
		return fmt.Errorf("leasehold: create table %s: %w", o.table, err)
	}
	return nil
}

// Do runs effect in a transaction of db that also marks key as done, and commits it. The
// key is a name that [driver.CheckName] accepts.
//
// Do returns nil if the effect has happened now, and [ErrDone] if anyone, this caller included,
// had done it before. [ErrStale] means that a later holder of the resource was here, and that
// this call did nothing. An error of effect is returned as it is, and nothing has happened.
// After any other error the outcome is unknown. Then call Do again, under this lease or another:
// the effect happens now, or Do returns ErrDone.
//
// effect must return every error of tx. Some failures, such as a deadlock on MySQL, undo the
// transaction with its mark, and later statements would stand alone. Nor may effect end the
// transaction, as CREATE TABLE does on MySQL: the mark would stay without the rest.
func (o *Once) Do(ctx context.Context, db *sql.DB, key string, lease Lease, effect func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("leasehold: begin %q: %w", key, err)
	}
	defer tx.Rollback() // does nothing after Commit
	if err := o.Mark(ctx, tx, key, lease); err != nil {
		return err
	}
	if err := effect(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("leasehold: commit %q: %w", key, err)
	}
	return nil
}

// Mark is the first half of Do, for a transaction of the caller. It checks the lease's token and
// marks key as done inside tx, before the effect. After any error, including [ErrDone] and
// [ErrStale], roll back. After nil, write the effect and commit.
func (o *Once) Mark(ctx context.Context, tx *sql.Tx, key string, lease Lease) error {
	if err := driver.CheckName(key); err != nil {
		return fmt.Errorf("leasehold: mark: %w", err)
	}
	if err := o.guard.Check(ctx, tx, lease); err != nil {
		if errors.Is(err, ErrStale) && o.isMarked(ctx, tx, key) {
			return fmt.Errorf("leasehold: %q: %w", key, ErrDone)
		}
		return err
	}
	marked, err := o.mark(ctx, tx, key, int64(lease.Token())) // the token fits: Check refuses others
	switch {
	case err != nil:
		return fmt.Errorf("leasehold: mark %q: %w", key, err)
	case !marked:
		return fmt.Errorf("leasehold: %q: %w", key, ErrDone)
	}
	return nil
}

// isMarked reports whether key is done, to answer a late holder. If the query fails, the answer that
// its lease is stale is true too.
func (o *Once) isMarked(ctx context.Context, tx *sql.Tx, key string) bool {
	var token int64
	return tx.QueryRowContext(ctx, o.selectToken(), key).Scan(&token) == nil
}

// mark inserts key and reports whether it was not there before. It waits for another transaction
// that has inserted key, until that ends.
func (o *Once) mark(ctx context.Context, tx *sql.Tx, key string, token int64) (bool, error) {
	return o.guard.writes(ctx, tx, token, o.insert(), key, token)
}

func (o *Once) selectToken() string {
	return `SELECT token FROM ` + o.table + ` WHERE name = ` + o.guard.parameter()
}

func (o *Once) insert() string {
	values := `(?, ?)`
	switch o.guard.dialect {
	case MySQL:
		return `INSERT INTO ` + o.table + ` (name, token) VALUES (?, LAST_INSERT_ID(?))
			ON DUPLICATE KEY UPDATE token = token + LAST_INSERT_ID(0)`
	case Postgres:
		values = `($1, $2)`
	}
	return `INSERT INTO ` + o.table + ` (name, token) VALUES ` + values + ` ON CONFLICT (name) DO NOTHING`
}
