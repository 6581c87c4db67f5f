package fence

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"math"
	"regexp"
)

// SQL guards rows of a database that knows INSERT … ON CONFLICT and ? parameters, such
// as SQLite: the check is part of the transaction that writes, so both happen or neither.
type SQL struct {
	table string
}

// DefaultTable is where NewSQL("") keeps the tokens it has seen.
const DefaultTable = "leasehold_fences"

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// NewSQL returns a guard that keeps the tokens it has seen in table, "" for
// DefaultTable. It does no I/O and fails when table is no plain identifier.
func NewSQL(table string) (*SQL, error) {
	if table == "" {
		table = DefaultTable
	}
	if !identifier.MatchString(table) {
		return nil, fmt.Errorf("leasehold: fence table %q is no plain identifier", table)
	}
	return &SQL{table: table}, nil
}

// Migrate creates the guard's table in db unless it is there.
func (g *SQL) Migrate(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS `+g.table+
		` (resource TEXT NOT NULL PRIMARY KEY, token BIGINT NOT NULL, owner TEXT NOT NULL)`)
	if err != nil {
		return fmt.Errorf("leasehold: create fence table %s: %w", g.table, err)
	}
	return nil
}

// Check records token for resource inside tx, before the writes that it guards. It
// returns ErrStale when a larger token, or the same with another owner, was committed
// before: roll back. After any error roll back as well. Only a hash of owner is stored.
func (g *SQL) Check(ctx context.Context, tx *sql.Tx, resource string, token uint64, owner string) error {
	if err := check(token); err != nil {
		return err
	}
	if token > math.MaxInt64 {
		return fmt.Errorf("leasehold: token %d does not fit a BIGINT", token)
	}
	sum := sha256.Sum256([]byte(owner))
	// One statement decides and records; it takes the row's (in SQLite the file's) write
	// lock, so that of two transactions the second sees what the first committed.
	res, err := tx.ExecContext(ctx, `INSERT INTO `+g.table+` (resource, token, owner) VALUES (?, ?, ?)
		ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner
		WHERE `+g.table+`.token < excluded.token
		   OR `+g.table+`.token = excluded.token AND `+g.table+`.owner = excluded.owner`,
		resource, int64(token), hex.EncodeToString(sum[:16]))
	if err != nil {
		return fmt.Errorf("leasehold: check fence of %q: %w", resource, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("leasehold: check fence of %q: %w", resource, err)
	}
	if n == 0 {
		return fmt.Errorf("%w: %d for %q", ErrStale, token, resource)
	}
	return nil
}
