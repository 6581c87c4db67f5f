package migrate

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func withGetLock(ctx context.Context, db *sql.DB, ship func(ctx context.Context) error) (err error) {
	conn, err := db.Conn(ctx) // the lock is the session's
	if err != nil {
		return err
	}
	defer conn.Close()
	var got sql.NullBool
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK('orders/42', 60)").Scan(&got); err != nil {
		return err
	}
	if !got.Bool {
		return errors.New("somebody else ships it")
	}
	defer func() {
		_, unlocked := conn.ExecContext(context.WithoutCancel(ctx), "DO RELEASE_LOCK('orders/42')")
		err = errors.Join(err, unlocked)
	}()
	return ship(ctx) // a connection that breaks has lost the lock, and ship goes on
}

func withAdvisoryLock(ctx context.Context, db *sql.DB, ship func(ctx context.Context) error) (err error) {
	conn, err := db.Conn(ctx) // the lock is the session's
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock(hashtext('orders/42'))"); err != nil {
		return err
	}
	defer func() {
		_, unlocked := conn.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtext('orders/42'))")
		err = errors.Join(err, unlocked)
	}()
	return ship(ctx) // a connection that breaks has lost the lock, and ship goes on
}

// onMySQL opens our lock in the same database. Close both at the program's end.
func onMySQL(ctx context.Context, db *sql.DB) (driver.Driver, *leasehold.Locker, error) {
	d, err := sqllock.NewMySQL(db, nil) // NewPostgres there
	if err != nil {
		return nil, nil, err
	}
	if err := d.Migrate(ctx); err != nil { // makes the tables where they are missing
		return nil, nil, err
	}
	locks, err := leasehold.New(d, nil)
	return d, locks, err
}

func onPostgres(ctx context.Context, db *sql.DB) (driver.Driver, *leasehold.Locker, error) {
	d, err := sqllock.NewPostgres(db, nil)
	if err != nil {
		return nil, nil, err
	}
	if err := d.Migrate(ctx); err != nil {
		return nil, nil, err
	}
	locks, err := leasehold.New(d, nil)
	return d, locks, err
}

// withBoth is the deployment in between: the old lock outside, ours inside.
func withBoth(ctx context.Context, db *sql.DB, locks *leasehold.Locker, ship func(ctx context.Context) error) error {
	return withGetLock(ctx, db, func(ctx context.Context) error {
		return withLeasehold(ctx, locks, ship)
	})
}

// Programs of two deployments that follow each other exclude each other; those of the first and
// the third never run at once.
func inThreeSteps(t *testing.T, db *sql.DB, locks *leasehold.Locker, old, both func(context.Context, func(context.Context) error) error) {
	t.Helper()
	db.SetMaxOpenConns(16)
	steps := []program{inGo(old), inGo(both), inGo(func(ctx context.Context, ship func(context.Context) error) error {
		return withLeasehold(ctx, locks, ship)
	})}
	for i, name := range []string{"the first and the second", "the second and the third"} {
		t.Run(name, func(t *testing.T) {
			together(t, map[string]program{"former": steps[i], "next": steps[i+1]})
		})
	}
}

func TestGetLock(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("mysql", servers.StartMariaDB(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	locks := opened(t)(onMySQL(t.Context(), db))
	inThreeSteps(t, db, locks,
		func(ctx context.Context, ship func(context.Context) error) error { return withGetLock(ctx, db, ship) },
		func(ctx context.Context, ship func(context.Context) error) error {
			return withBoth(ctx, db, locks, ship)
		})
}

func TestAdvisoryLock(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", servers.StartPostgres(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	locks := opened(t)(onPostgres(t.Context(), db))
	inThreeSteps(t, db, locks,
		func(ctx context.Context, ship func(context.Context) error) error {
			return withAdvisoryLock(ctx, db, ship)
		},
		func(ctx context.Context, ship func(context.Context) error) error {
			return withAdvisoryLock(ctx, db, func(ctx context.Context) error { return withLeasehold(ctx, locks, ship) })
		})
}
