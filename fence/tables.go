package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/sqlite"
)

// createTable creates a table unless it exists. look is a query for at most one row that finds this
// out. Any number of processes may call createTable at once. A database may fail a CREATE TABLE IF
// NOT EXISTS because another process is creating the same table. So after a failure it counts
// whether the table exists.
//
// Because of look, a user without the right to create tables does not need it, and a table with
// other columns is refused.
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
