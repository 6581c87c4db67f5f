package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// margin is how late the machine may be.
const margin = 5 * time.Second

func openDB(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// newSQLite is a Driver that was not migrated.
func newSQLite(t testing.TB, db *sql.DB, opts *sqllock.Options) *sqllock.Driver {
	t.Helper()
	d, err := sqllock.NewSQLite(db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// openSQLite is another process's view of the locks in the file.
func openSQLite(t testing.TB, path string) *sqllock.Driver {
	t.Helper()
	d := newSQLite(t, openDB(t, path), nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	return d
}

// bounded ends long after everything should have.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 6*margin)
	t.Cleanup(cancel)
	return ctx
}

func lockFile(t testing.TB) string { return filepath.Join(servers.DataDir(t), "locks.db") }

func claim(t testing.TB, d driver.Driver, req driver.Request) driver.Claim {
	t.Helper()
	req.Resource = cmp.Or(req.Resource, "orders/42")
	req.TTL = cmp.Or(req.TTL, time.Minute)
	req.Owner = cmp.Or(req.Owner, fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()))
	return claimtest.New(t, d, req)
}

func granted(t testing.TB, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := c.Try(bounded(t))
	if err != nil {
		t.Fatalf("Try: %v; want a grant", err)
	}
	return g
}

func refused(t testing.TB, c driver.Claim) *driver.Busy {
	t.Helper()
	_, err := c.Try(bounded(t))
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok {
		t.Fatalf("Try: %v; want busy", err)
	}
	return busy
}

func released(t testing.TB, c driver.Claim) {
	t.Helper()
	if err := c.Release(bounded(t), driver.End{}); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// wins tries whenever it is told to, as the core does, until it is granted.
func wins(t testing.TB, c driver.Claim) driver.Grant {
	t.Helper()
	for end := time.Now().Add(3 * margin); time.Now().Before(end); {
		g, err := c.Try(bounded(t))
		busy, ok := errors.AsType[*driver.Busy](err)
		if err == nil {
			return g
		} else if !ok {
			t.Fatalf("Try: %v", err)
		}
		select {
		case <-busy.Wake:
		case <-time.After(busy.Retry + time.Millisecond):
		}
	}
	t.Fatal("never granted")
	return driver.Grant{}
}

func mustExec(t testing.TB, db *sql.DB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if _, err := db.Exec(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}
