package adapters

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdgoose"
)

var (
	_ lock.Locker        = (*leaseholdgoose.Locker)(nil)
	_ lock.SessionLocker = (*leaseholdgoose.Locker)(nil)
)

func openShop(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// migration is a step in Go.
func migration(version int64, step func(ctx context.Context, db *sql.DB) error) *goose.Migration {
	return goose.NewGoMigration(version, &goose.GoFunc{RunDB: step}, nil)
}

func provider(t *testing.T, db *sql.DB, locker goose.ProviderOption, steps ...*goose.Migration) *goose.Provider {
	t.Helper()
	p, err := goose.NewProvider(goose.DialectSQLite3, db, nil, locker, goose.WithGoMigrations(steps...), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Processes that migrate at the same time do so one after the other: each step happens once.
func TestMigratorsTakeTurns(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(*leaseholdgoose.Locker) goose.ProviderOption{
		"Locker":        func(l *leaseholdgoose.Locker) goose.ProviderOption { return goose.WithLocker(l) },
		"SessionLocker": func(l *leaseholdgoose.Locker) goose.ProviderOption { return goose.WithSessionLocker(l) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var steps, inside atomic.Int32
			step := func(ctx context.Context, db *sql.DB) error {
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d migrators at once", n)
				}
				defer inside.Add(-1)
				steps.Add(1)
				time.Sleep(50 * time.Millisecond)
				return nil
			}
			var all sync.WaitGroup
			for range 3 {
				l := leaseholdgoose.New(store(filepath.Join(dir, "locks.db")).connect(t, 0), "shop/migrations")
				p := provider(t, openShop(t, filepath.Join(dir, "shop.db")), option(l), migration(1, step), migration(2, step))
				all.Go(func() {
					if _, err := p.Up(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if n := steps.Load(); n != 2 {
				t.Errorf("%d steps of 2", n)
			}
		})
	}
}

// A migrator that has lost its lease is stopped: the step that runs is told, later ones are not
// begun, and Up says why.
func TestStoppableEndsWithTheLease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	locks := store(filepath.Join(dir, "locks.db")).connect(t, 3*time.Second)
	first := func(ctx context.Context, db *sql.DB) error {
		lose(t, locks, "shop/migrations")
		select {
		case <-ctx.Done():
			return nil // as a step that is just done
		case <-time.After(margin):
			return errors.New("the context did not end")
		}
	}
	second := func(context.Context, *sql.DB) error { t.Error("the second step was begun"); return nil }
	p := provider(t, openShop(t, filepath.Join(dir, "shop.db")), goose.WithLocker(leaseholdgoose.New(locks, "shop/migrations")), migration(1, first), migration(2, second))
	ctx, stop := leaseholdgoose.Stoppable(t.Context())
	defer stop()
	if _, err := p.Up(ctx); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Up: %v, want ErrLost", err)
	}
	if !errors.Is(context.Cause(ctx), leasehold.ErrLost) {
		t.Errorf("the cause is %v", context.Cause(ctx))
	}
}

// Without Stoppable goose goes on, and Up tells afterwards.
func TestUpTellsOfALossWithoutStoppable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	locks := store(filepath.Join(dir, "locks.db")).connect(t, 0)
	steps := 0
	first := func(context.Context, *sql.DB) error { steps++; lose(t, locks, "shop/migrations"); return nil }
	second := func(context.Context, *sql.DB) error { steps++; return nil }
	p := provider(t, openShop(t, filepath.Join(dir, "shop.db")), goose.WithLocker(leaseholdgoose.New(locks, "shop/migrations")), migration(1, first), migration(2, second))
	if _, err := p.Up(t.Context()); !errors.Is(err, leasehold.ErrLost) || steps != 2 {
		t.Errorf("Up: %v after %d steps, want ErrLost after 2", err, steps)
	}
}
