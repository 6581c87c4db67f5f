package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/sqlite"
)

// createTable creates a table unless it exists. look is a query for at most one row, which fails if
// the table is missing or has other columns.
//
// Any number of processes may call createTable at once. A database may fail a CREATE TABLE IF NOT
// EXISTS because another process is creating the same table. So after a failure only look decides.
// Because look comes first, too, a user needs no right to create a table that exists.
func createTable(ctx context.Context, db *sql.DB, look, create string) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		missing := lookUp(ctx, db, look)
		if missing == nil {
			return nil
		}
		_, err := db.ExecContext(ctx, create)
		there := lookUp(ctx, db, look)
		switch {
		case there == nil:
			return nil
		case err == nil && ctx.Err() != nil: // the database has not said that anything is wrong
			return there
		case err == nil:
			err = fmt.Errorf("the table is another program's, or the database of another dialect: %w", there)
		}
		if !sqlite.IsBusy(missing) && !sqlite.IsBusy(err) {
			return err
		}
		select { // another process writes to the SQLite file
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// lookUp returns nil if the query can be run, for an empty name.
func lookUp(ctx context.Context, db *sql.DB, query string) error {
	var none any
	err := db.QueryRowContext(ctx, query, "").Scan(&none)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}
