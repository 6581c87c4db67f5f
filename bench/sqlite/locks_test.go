package sqlite_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"

	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/bench/databases"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
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

// A store is a driver that closes its file, too.
type store struct {
	*sqllock.Driver
	db *sql.DB
}

func (s store) Close() error { return errors.Join(s.Driver.Close(), s.db.Close()) }

// open opens the locks in the file at path as another process would.
func open(path string) (store, error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return store{}, err
	}
	db.SetMaxIdleConns(4)
	d, err := sqllock.NewSQLite(db, nil)
	if err == nil {
		err = d.Migrate(context.Background())
	}
	return store{d, db}, err
}

func leaseholdWith(opts *leasehold.Options) func(path string) (*contest.Locker, error) {
	return func(path string) (*contest.Locker, error) {
		s, err := open(path)
		if err != nil {
			return nil, err
		}
		return contest.Leasehold(s, opts)
	}
}

// openDriver does not wait: only its uncontended use is measured.
func openDriver(path string) (*contest.Locker, error) {
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	// As the core does it: a context that can end is watched.
	ctx, cancel := context.WithCancel(context.Background())
	lock := func(_ context.Context, name string) (contest.Held, error) {
		claim, err := s.Claim(driver.Request{Resource: name, Owner: rand.Text(), TTL: contest.TTL, Queue: true})
		if err != nil {
			return contest.Held{}, err
		}
		if _, err := claim.Try(ctx); err != nil {
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error { return claim.Release(ctx, driver.End{}) }}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() { cancel(); s.Close() }}, nil
}

func openByHand(path string) (*contest.Locker, error) {
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	l, err := databases.ByHand(s.db,
		`CREATE TABLE IF NOT EXISTS bare (name TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID`,
		`INSERT INTO bare VALUES (?1, ?2, unixepoch() + 10) ON CONFLICT (name)
			DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE expires <= unixepoch()`,
		`UPDATE bare SET expires = 0 WHERE name = ?1 AND owner = ?2`)
	if err != nil {
		return nil, err
	}
	end := l.Close
	l.Close = func() { end(); s.Close() }
	return l, nil
}
