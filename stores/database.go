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

// databaseStore is a driver that also closes its pool.
type databaseStore struct {
	*sqllock.Driver
	db *sql.DB
}

func (s databaseStore) Close() error { return errors.Join(s.Driver.Close(), s.db.Close()) }

// A paced connector limits how often a server is asked that refuses the user.
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

// openDatabase opens a store on db, with a driver that open makes. Unless the error is ErrNoTables,
// it closes db if it fails.
func openDatabase(ctx context.Context, u *storeurl.URL, db *sql.DB, open func(*sql.DB, *sqllock.Options) (*sqllock.Driver, error), opts *sqllock.Options, create bool) (driver.Driver, error) {
	// Opening a connection costs more than a grant. So the pool keeps as many connections as many
	// goroutines use at once, because their requests share statements. It closes idle ones, because
	// other processes may need them.
	db.SetMaxIdleConns(20)
	db.SetConnMaxIdleTime(time.Minute)
	opts.Prefix, opts.Schema = u.Options.Get("prefix"), u.Options.Get("schema")
	d, err := open(db, opts)
	if err != nil {
		db.Close() // its error would only hide the first one
		return nil, u.Wrong("%v", err)
	}
	s := databaseStore{d, db}
	return s.opened(s.prepare(ctx, create))
}

// opened returns s, or the error of its preparation. Then it also closes s, unless the error is
// ErrNoTables.
func (s databaseStore) opened(err error) (driver.Driver, error) {
	switch {
	case err == nil:
		return s, nil
	case !errors.Is(err, ErrNoTables):
		go s.Close() // in the background, because it may wait for a server that does not answer, or for another process
	}
	return nil, err
}

// prepare creates the tables, or checks that they exist. It limits how long it waits for a server
// that does not answer.
func (s databaseStore) prepare(ctx context.Context, create bool) error {
	first, cancel := storeurl.Waiting(ctx)
	defer cancel()
	if err := s.Ping(first); err != nil {
		return storeurl.Silent(first, err)
	}
	if create {
		return s.Migrate(ctx)
	}
	return s.existing(ctx)
}

// ErrNoTables: the database has no lock tables, and [OpenExisting] creates none.
var ErrNoTables = errors.New("it has no lock tables: nothing was ever locked in it")

// noTables is ErrNoTables with the open store.
type noTables struct{ store driver.Driver }

func (*noTables) Error() string { return ErrNoTables.Error() }
func (*noTables) Unwrap() error { return ErrNoTables }

// NoTables reports whether err means that a database has no lock tables.
func NoTables(err error) bool {
	return errors.Is(err, ErrNoTables) || errors.Is(err, sqllock.ErrNoSchema)
}

// ErrNoBucket: the NATS bucket does not exist. [Open] creates it, [OpenExisting] does not. The
// driver's first call returns the error.
var ErrNoBucket = natslock.ErrNoBucket

// existing returns ErrNoTables if the database has no tables. It inspects any resource to find out.
func (s databaseStore) existing(ctx context.Context) error {
	_, err := s.Inspect(ctx, "any")
	if errors.Is(err, sqllock.ErrNoSchema) {
		return &noTables{s}
	}
	return err
}

// databaseAt returns the host and port of u, and the name of its database. u must have exactly one
// of each.
func databaseAt(u *storeurl.URL, port string) (addr, name string, err error) {
	if len(u.Hosts) != 1 || len(u.Path) != 1 {
		return "", "", u.Wrong("takes one host and one database: %s://host/database", u.Scheme)
	}
	return u.HostPorts(port)[0], u.Path[0], nil
}
