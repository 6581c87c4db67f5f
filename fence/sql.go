package fence

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"github.com/leasehold-go/leasehold/internal/identifier"
)

// A Dialect is the SQL dialect of a database.
type Dialect uint8

// The supported databases. SQLite stands for all with INSERT … ON CONFLICT and parameters of the
// form ?, MySQL for MariaDB too.
const (
	SQLite Dialect = iota + 1 // no guard is made for 0: which database it is must be said
	Postgres
	MySQL
)

// SQL guards rows of a database: the check is part of the transaction that writes, so both
// happen or neither.
type SQL struct {
	dialect Dialect
	table   string
}

// DefaultTable is the default table for the tokens that a guard has seen.
const DefaultTable = "leasehold_fences"

// isTable reports whether name is a plain identifier, with or without a schema and a dot in front.
func isTable(name string) bool {
	schema, table, dotted := strings.Cut(name, ".")
	return identifier.Plain(schema, longest) && (!dotted || identifier.Plain(table, longest))
}

// longest is the number of bytes that PostgreSQL keeps of an identifier.
const longest = 63

// NewSQL returns a guard that keeps the tokens it has seen in table; "": [DefaultTable]. It does
// no I/O. It returns an error if dialect is none of the constants, or table is not a plain
// identifier, with or without a schema before a dot.
func NewSQL(dialect Dialect, table string) (*SQL, error) {
	if columns[dialect] == "" {
		return nil, fmt.Errorf("leasehold: dialect %d of a fence is none: say which database it is", dialect)
	}
	table = cmp.Or(table, DefaultTable)
	if !isTable(table) {
		return nil, fmt.Errorf("leasehold: fence table %q is no plain identifier", table)
	}
	return &SQL{dialect: dialect, table: table}, nil
}

// columns are the columns of the table. Names must be compared byte by byte, which MySQL does not
// do with text.
var columns = map[Dialect]string{
	SQLite:   `resource TEXT NOT NULL PRIMARY KEY, token BIGINT NOT NULL, owner TEXT NOT NULL, epoch BIGINT NOT NULL DEFAULT 0`,
	Postgres: `resource text COLLATE "C" PRIMARY KEY, token bigint NOT NULL, owner text COLLATE "C" NOT NULL, epoch bigint NOT NULL DEFAULT 0`,
	MySQL:    `resource VARBINARY(512) PRIMARY KEY, token BIGINT NOT NULL, owner VARBINARY(255) NOT NULL, epoch BIGINT NOT NULL DEFAULT 0`,
}

// Migrate creates the guard's table in db if it is missing. Any number of processes may call it
// concurrently. It waits for other writers of a SQLite file until ctx ends.
func (g *SQL) Migrate(ctx context.Context, db *sql.DB) error {
	err := createTable(ctx, db, `SELECT token + epoch FROM `+g.table+` WHERE resource = `+g.parameter()+` AND owner = ''`,
		`CREATE TABLE IF NOT EXISTS `+g.table+` (`+columns[g.dialect]+`)`)
	if err != nil {
		return fmt.Errorf("leasehold: create fence table %s: %w", g.table, err)
	}
	return nil
}

// parameter returns the first parameter of a query in the dialect.
func (g *SQL) parameter() string {
	if g.dialect == Postgres {
		return "$1"
	}
	return "?"
}

// Check records lease inside tx, before the writes that it guards. It returns [ErrStale] if a
// later lease of the same name was committed before. A later lease has a larger token, or the
// same token and another owner. After any error roll back. Only a hash of the owner is stored.
func (g *SQL) Check(ctx context.Context, tx *sql.Tx, lease Lease) error {
	m, err := markOf(lease)
	if err != nil {
		return err
	}
	if m.token > math.MaxInt64 {
		return fmt.Errorf("leasehold: token %d does not fit a BIGINT", m.token)
	}
	admitted, err := g.admit(ctx, tx, lease.Name(), m)
	switch {
	case err != nil:
		return fmt.Errorf("leasehold: check fence of %q: %w", lease.Name(), err)
	case !admitted:
		return fmt.Errorf("%w: %d for %q", ErrStale, m.token, lease.Name())
	}
	return nil
}

// admit decides and records in one statement. The statement takes the write lock of the row, or in
// SQLite of the file. So of two transactions, the second sees what the first has committed.
func (g *SQL) admit(ctx context.Context, tx *sql.Tx, resource string, m mark) (bool, error) {
	sum := sha256.Sum256([]byte(m.owner))
	return g.writes(ctx, tx, int64(m.token), g.upsert(), resource, int64(m.token), hex.EncodeToString(sum[:16]), m.epoch)
}

// writes runs a statement that writes token or nothing, and reports whether it has written.
func (g *SQL) writes(ctx context.Context, tx *sql.Tx, token int64, statement string, args ...any) (bool, error) {
	res, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return false, err
	}
	if g.dialect == MySQL { // see upsert
		n, err := res.LastInsertId()
		return n == token, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func (g *SQL) upsert() string {
	values := `(?, ?, ?, ?)`
	switch g.dialect {
	case MySQL:
		// MySQL assigns from left to right. The row count depends on the client's settings, but
		// LAST_INSERT_ID does not: it is the token if the lease was admitted, else 0.
		const later = `(epoch < VALUES(epoch) OR epoch = VALUES(epoch) AND token < VALUES(token))`
		return `INSERT INTO ` + g.table + ` (resource, token, owner, epoch) VALUES (?, LAST_INSERT_ID(?), ?, ?)
			ON DUPLICATE KEY UPDATE owner = IF(` + later + `, VALUES(owner), owner),
			token = IF(` + later + ` OR epoch = VALUES(epoch) AND token = VALUES(token) AND owner = VALUES(owner),
				LAST_INSERT_ID(VALUES(token)), token + LAST_INSERT_ID(0)),
			epoch = GREATEST(epoch, VALUES(epoch))`
	case Postgres:
		values = `($1, $2, $3, $4)`
	}
	return `INSERT INTO ` + g.table + ` AS seen (resource, token, owner, epoch) VALUES ` + values + `
		ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner, epoch = excluded.epoch
		WHERE seen.epoch < excluded.epoch OR seen.epoch = excluded.epoch
			AND (seen.token < excluded.token OR seen.token = excluded.token AND seen.owner = excluded.owner)`
}
