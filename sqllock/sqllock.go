// Package sqllock keeps locks in a SQL database that the program has anyway, through
// database/sql. It imports no client: the program opens the database with its own.
//
// A resource is a row. An exclusive acquire of a free resource is one statement, and so
// is every renewal and release; the database's clock decides what has expired. Who has
// to wait gets a row of its own, in the order of the first attempt, and is woken when
// its turn has come.
package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// DefaultPrefix begins the names of the tables: leasehold_locks and so on.
const DefaultPrefix = "leasehold_"

// minTTL leaves a renewal, sent at a third of it, time to wait behind a few other
// writers' commits, of tens of milliseconds each on a slow disk.
const minTTL = 100 * time.Millisecond

// ErrNoSchema: the database has no lock tables. Call Driver.Migrate.
var ErrNoSchema = errors.New("the lock tables are missing: call Migrate")

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// Prefix begins the names of the tables; "": DefaultPrefix. Letters, digits and
	// underscores, not a digit first, at most 40. Drivers with different prefixes
	// share no locks.
	Prefix string
	// AllowForeign lets Migrate add the tables to a SQLite file that has tables of
	// others, such as the application's own, and switch it to WAL mode. Without it
	// such a file is refused as a mistake.
	AllowForeign bool
}

var validPrefix = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Prefix == "" {
		r.Prefix = DefaultPrefix
	}
	if !validPrefix.MatchString(r.Prefix) {
		return r, fmt.Errorf("sqllock: Prefix %q is not an identifier of at most 40 letters, digits and underscores", r.Prefix)
	}
	return r, nil
}

// A Driver keeps locks in one database. It is safe for concurrent use. Several Drivers,
// of one process or many, see the same locks.
type Driver struct {
	db      *sql.DB
	dialect dialect
	texts   statements
	watch   watcher
	closed  atomic.Bool

	writing  chan struct{}                        // has a token while somebody writes; nil: any number may at once
	opening  chan struct{}                        // holds a token while nobody is in open
	prepared atomic.Pointer[map[string]*sql.Stmt] // by text; nil until the database was checked
}

var (
	_ driver.Inspector   = (*Driver)(nil)
	_ driver.Evictor     = (*Driver)(nil)
	_ driver.FenceRaiser = (*Driver)(nil)
	_ driver.Lingerer    = (*claim)(nil)
)

// newDriver does no I/O.
func newDriver(db *sql.DB, dialect dialect, prefix string) *Driver {
	d := &Driver{db: db, dialect: dialect, texts: dialect.statements().withPrefix(prefix), opening: make(chan struct{}, 1)}
	d.opening <- struct{}{}
	if d.texts.oneWriter {
		d.writing = make(chan struct{}, 1)
	}
	d.watch.init(d)
	return d
}

// Migrate creates the tables where they are missing, and removes what is left of claims
// that expired long ago. It may be called by any number of processes at once and again.
// It returns driver.ErrCorrupt for a database that is damaged, not Leasehold's, or of a
// newer Leasehold, and driver.ErrUnsupported for one that cannot keep locks; both are
// left as they were.
func (d *Driver) Migrate(ctx context.Context) error {
	if d.closed.Load() {
		return driver.ErrClosed
	}
	if err := d.dialect.create(ctx, d); err != nil {
		return err
	}
	stale, err := d.count(ctx, d.texts.stale)
	if err == nil && stale > 0 {
		// What cannot be removed, on a full disk say, harms nobody: it has expired.
		_, _ = d.exec(ctx, d.texts.purge)
	}
	return err
}

// Features: everything is promised but Step, which is the millisecond of the tables.
func (d *Driver) Features() driver.Features {
	return driver.Features{Fencing: true, Shared: true, Fair: true, Wakes: true, Resumes: true,
		MinTTL: minTTL, Step: time.Millisecond}
}

// Claim implements driver.Driver.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if d.closed.Load() {
		return nil, driver.ErrClosed
	}
	if req.Mode > driver.Shared {
		return nil, fmt.Errorf("%w: mode %d", driver.ErrUnsupported, req.Mode)
	}
	return &claim{d: d, req: req}, nil
}

// Close ends the wait of all claims, which find out by themselves, and frees prepared
// statements. Leases stay until they expire. The *sql.DB stays open. Later calls on the
// Driver and its claims return ErrClosed.
func (d *Driver) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	d.watch.close()
	<-d.opening // whoever prepares is done, and the next one sees closed
	defer func() { d.opening <- struct{}{} }()
	var errs []error
	if all := d.prepared.Load(); all != nil {
		for _, stmt := range *all {
			errs = append(errs, stmt.Close())
		}
	}
	return errors.Join(errs...)
}
