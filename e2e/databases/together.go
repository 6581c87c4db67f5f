package databases

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/e2e/together"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// MigrationRounds returns how often the replicas of MigrateTogether begin. Before the fault was
// fixed, PostgreSQL failed in almost every round.
func MigrationRounds() int {
	if servers.All {
		return 50
	}
	return 10
}

// MigrateTogether makes several processes create all tables at the same moment, over connections
// that were used before.
func MigrateTogether(t *testing.T, client string, dialect fence.Dialect, on func(*sql.DB, *sqllock.Options) (*sqllock.Driver, error), start func() (dsn string)) {
	together.Check(t, MigrationRounds(), start, func(t *testing.T, number int, dsn string) together.Step {
		db, err := sql.Open(client, dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		warm(t, db)
		return func(round int) error {
			prefix := fmt.Sprintf("r%d_", round)
			d, err := on(db, &sqllock.Options{Prefix: prefix})
			if err != nil {
				return err
			}
			return MigrateAll(db, d, dialect, prefix, number)
		}
	})
}

// MigrateAll creates the tables of d, those of a guard that shares one of them, and others. Of
// several processes, the first begins with the guard.
func MigrateAll(db *sql.DB, d *sqllock.Driver, dialect fence.Dialect, prefix string, number int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // on a busy machine one of them may wait for long
	defer cancel()
	guards := func() error {
		shared, err := fence.NewSQL(dialect, prefix+"fences")
		if err != nil {
			return err
		}
		once, err := fence.NewOnce(shared, prefix+"done")
		if err != nil {
			return err
		}
		own, err := fence.NewSQL(dialect, prefix+"own")
		if err != nil {
			return err
		}
		if err := once.Migrate(ctx, db); err != nil {
			return err
		}
		return own.Migrate(ctx, db)
	}
	if number == 0 {
		if err := guards(); err != nil {
			return err
		}
	}
	if err := d.Migrate(ctx); err != nil {
		return fmt.Errorf("locks: %w", err)
	}
	return guards()
}

// warm uses some connections of db like a program that has run for a while: each has looked for
// tables.
func warm(t testing.TB, db *sql.DB) {
	t.Helper()
	const many = 3
	db.SetMaxIdleConns(many)
	var conns []*sql.Conn
	for range many {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if rows, err := c.QueryContext(t.Context(), "SELECT version FROM nosuch_meta"); err == nil {
			rows.Close()
		}
	}
	for _, c := range conns {
		c.Close()
	}
}
