package stores

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// databaseStore is a driver that closes its own connections.
type databaseStore struct {
	*sqllock.Driver
	db *sql.DB
}

func (s databaseStore) Close() error { return errors.Join(s.Driver.Close(), s.db.Close()) }

// A paced connector does not go on asking a server that refuses the user.
type paced struct {
	sqldriver.Connector
	refuses func(error) bool
	logins  storeurl.Logins
}

// Connect implements [sqldriver.Connector].
func (p *paced) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if err := p.logins.Begin(); err != nil {
		return nil, err
	}
	conn, err := p.Connector.Connect(ctx)
	p.logins.Ended(err, p.refuses(err))
	return conn, err
}

// openDatabase opens a store on db, with the driver that open makes.
func openDatabase(ctx context.Context, u *storeurl.URL, db *sql.DB, open func(*sql.DB, *sqllock.Options) (*sqllock.Driver, error), opts *sqllock.Options, create bool) (driver.Driver, error) {
	// Opening a connection costs more than a grant: the pool keeps as many as many goroutines use at once, whose requests
	// share statements. It closes them when they are not needed, as other processes may need them.
	db.SetMaxIdleConns(20)
	db.SetConnMaxIdleTime(time.Minute)
	opts.Prefix, opts.Schema = u.Options.Get("prefix"), u.Options.Get("schema")
	d, err := open(db, opts)
	if err != nil {
		db.Close() // its error would only hide the first
		return nil, u.Wrong("%v", err)
	}
	s := databaseStore{d, db}
	err = s.prepare(ctx, create)
	if errors.Is(err, ErrNoTables) {
		return nil, &noTables{s}
	}
	if err != nil {
		go s.Close() // which may wait for a server that is silent, and for nothing else
		return nil, err
	}
	return s, nil
}

// prepare makes the tables. A server that is silent must not be waited for without end.
func (s databaseStore) prepare(ctx context.Context, create bool) error {
	first, cancel := storeurl.Waiting(ctx)
	defer cancel()
	err := s.Ping(first)
	switch {
	case first.Err() != nil:
		return storeurl.Silent(first, err)
	case err != nil:
		return err
	}
	if create {
		return s.Migrate(ctx)
	}
	return existing(ctx, s.Driver)
}

// ErrNoTables: the database has no lock tables, and [OpenExisting] creates none.
var ErrNoTables = errors.New("it has no lock tables: nothing was ever locked in it")

// noTables is ErrNoTables with the store, which is open.
type noTables struct{ store driver.Driver }

func (*noTables) Error() string { return ErrNoTables.Error() }
func (*noTables) Unwrap() error { return ErrNoTables }

// NoTables reports whether err says that a database has no lock tables.
func NoTables(err error) bool {
	return errors.Is(err, ErrNoTables) || errors.Is(err, sqllock.ErrNoSchema)
}

// ErrNoBucket: NATS has no bucket of that name, which [Open] would make, and [OpenExisting] does not. The first
// call of the driver says so.
var ErrNoBucket = natslock.ErrNoBucket

// existing is an error where no lock was ever taken. Whoever asks about any tells it.
func existing(ctx context.Context, d *sqllock.Driver) error {
	_, err := d.Inspect(ctx, "any")
	if errors.Is(err, sqllock.ErrNoSchema) {
		return ErrNoTables
	}
	return err
}

// databaseAt is the one host and the name of the database.
func databaseAt(u *storeurl.URL, port string) (addr, name string, err error) {
	if len(u.Hosts) != 1 || len(u.Path) != 1 {
		return "", "", u.Wrong("takes one host and one database: %s://host/database", u.Scheme)
	}
	return u.HostPorts(port)[0], u.Path[0], nil
}
