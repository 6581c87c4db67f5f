package stores

import (
	"context"
	"database/sql"
	"errors"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/sqllock"
)

// databaseStore is a driver that closes its own connections.
type databaseStore struct {
	*sqllock.Driver
	db *sql.DB
}

func (s databaseStore) Close() error { return errors.Join(s.Driver.Close(), s.db.Close()) }

// prepare makes the tables. A server that is silent must not be waited for without end.
func (s databaseStore) prepare(ctx context.Context, create bool) error {
	first, cancel := context.WithTimeout(ctx, contactBound)
	defer cancel()
	err := s.db.PingContext(first)
	switch {
	case first.Err() != nil:
		return silent(err)
	case err != nil:
		return err
	}
	if create {
		return s.Migrate(ctx)
	}
	return existing(ctx, s.Driver)
}

// existing is an error where no lock was ever taken. Whoever asks about any tells it.
func existing(ctx context.Context, d *sqllock.Driver) error {
	_, err := d.Inspect(ctx, "any")
	if errors.Is(err, sqllock.ErrNoSchema) {
		return errors.New("it has no lock tables: nothing was ever locked in it")
	}
	return err
}

// openDatabase returns a store on db, with the driver that open makes.
func openDatabase(u *serverURL, db *sql.DB, open func(*sql.DB, *sqllock.Options) (*sqllock.Driver, error), opts *sqllock.Options) (driver.Driver, string, error) {
	db.SetMaxIdleConns(4) // opening one costs more than a grant
	opts.Prefix, opts.Schema = u.options.Get("prefix"), u.options.Get("schema")
	d, err := open(db, opts)
	if err != nil {
		db.Close() // its error would only hide the first
		return nil, "", u.wrong("%v", err)
	}
	return databaseStore{d, db}, u.text, nil
}

// databaseAt is the one host and the name of the database.
func (u *serverURL) databaseAt(port string) (addr, name string, err error) {
	if len(u.hosts) != 1 || len(u.path) != 1 {
		return "", "", u.wrong("takes one host and one database: %s://host/database", u.scheme)
	}
	return withPort(u.hosts[0], port), u.path[0], nil
}
