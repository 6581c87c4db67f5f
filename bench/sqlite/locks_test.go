package sqlite_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"

	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/sqllock"
)

// The locks that are compared, all with synchronous=FULL.
const (
	ours       = "leasehold"
	oursGlobal = "leasehold, HandOver -1"
	ourDriver  = "leasehold's driver alone"
	byHand     = "two statements, prepared" // what one writes by hand
)

var engine = contest.Engine{Name: "SQLite", Competitors: []contest.Competitor{
	{Name: ours, Open: leaseholdWith(nil), Polls: polling},
	{Name: oursGlobal, Open: leaseholdWith(&leasehold.Options{HandOver: -1}), Polls: polling},
	{Name: ourDriver, Open: openDriver},
	{Name: byHand, Open: openByHand},
}}

// open opens the locks in the file at path as another process would.
func open(path string) (*sqllock.Driver, *sql.DB, error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxIdleConns(4)
	d, err := sqllock.NewSQLite(db, nil)
	if err == nil {
		err = d.Migrate(context.Background())
	}
	return d, db, err
}

func leaseholdWith(opts *leasehold.Options) func(path string) (*contest.Locker, error) {
	return func(path string) (*contest.Locker, error) {
		d, db, err := open(path)
		if err != nil {
			return nil, err
		}
		locks, err := leasehold.New(d, opts)
		if err != nil {
			return nil, err
		}
		end := func() { locks.Close(); d.Close(); db.Close() }
		return &contest.Locker{Lock: contest.Leasehold(locks), Close: end}, nil
	}
}

// openDriver does not wait: only its uncontended use is measured.
func openDriver(path string) (*contest.Locker, error) {
	d, db, err := open(path)
	if err != nil {
		return nil, err
	}
	// As the core does it: a context that can end is watched.
	ctx, cancel := context.WithCancel(context.Background())
	lock := func(_ context.Context, name string) (contest.Held, error) {
		claim, err := d.Claim(driver.Request{Resource: name, Owner: rand.Text(), TTL: contest.TTL, Queue: true})
		if err != nil {
			return contest.Held{}, err
		}
		if _, err := claim.Try(ctx); err != nil {
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error { return claim.Release(ctx) }}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() { cancel(); d.Close(); db.Close() }}, nil
}

// openByHand does not wait either. It takes and frees a row in two statements.
func openByHand(path string) (*contest.Locker, error) {
	d, db, err := open(path)
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS bare (name TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID`)
	if err != nil {
		return nil, err
	}
	take, err1 := db.Prepare(`INSERT INTO bare VALUES (?1, ?2, unixepoch() + 10) ON CONFLICT (name)
		DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE expires <= unixepoch()`)
	free, err2 := db.Prepare(`UPDATE bare SET expires = 0 WHERE name = ?1 AND owner = ?2`)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	lock := func(_ context.Context, name string) (contest.Held, error) {
		owner := rand.Text()
		if err := change(take, name, owner); err != nil {
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error { return change(free, name, owner) }}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() { take.Close(); free.Close(); d.Close(); db.Close() }}, nil
}

// change runs a statement that must change one row.
func change(stmt *sql.Stmt, name, owner string) error {
	res, err := stmt.Exec(name, owner)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	return contest.LostUnless(n == 1, err)
}
