package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/sqlite"
)

// createTable makes a table unless it is there, which look, a query for one row at most, finds out. Any
// number of processes may call it at once: a database may fail a CREATE TABLE IF NOT EXISTS because another
// makes the same table, so what counts after a failure is whether the table is there. The look also spares a
// user who may not create tables the right to, and refuses a table with other columns.
func createTable(ctx context.Context, db *sql.DB, look, create string) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		missing := lookUp(ctx, db, look)
		if missing == nil {
			return nil
		}
		_, err := db.ExecContext(ctx, create)
		if there := lookUp(ctx, db, look); there == nil {
			return nil
		} else if err == nil {
			err = fmt.Errorf("the table is another program's, or the database of another dialect: %w", there)
		}
		if !sqlite.IsBusy(missing) && !sqlite.IsBusy(err) {
			return err
		}
		select { // another process writes to the file
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// lookUp returns nil if the query, for an empty name, can be run.
func lookUp(ctx context.Context, db *sql.DB, query string) error {
	var none any
	err := db.QueryRowContext(ctx, query, "").Scan(&none)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}
