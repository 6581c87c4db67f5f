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

// openDatabase makes the tables where they are missing, with what open has made of db.
func openDatabase(ctx context.Context, u *serverURL, db *sql.DB, open func(*sql.DB, *sqllock.Options) (*sqllock.Driver, error), opts *sqllock.Options) (driver.Driver, string, error) {
	db.SetMaxIdleConns(4) // opening one costs more than a grant
	opts.Prefix, opts.Schema = u.options.Get("prefix"), u.options.Get("schema")
	d, err := open(db, opts)
	if err != nil {
		db.Close() // its error would only hide the first
		return nil, "", u.wrong("%v", err)
	}
	if err := d.Migrate(ctx); err != nil {
		return nil, "", errors.Join(err, databaseStore{d, db}.Close())
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
