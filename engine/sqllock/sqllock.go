package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/dialled"
	"github.com/leasehold-go/leasehold/internal/identifier"
	"github.com/leasehold-go/leasehold/internal/lanes"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/onecall"
	"github.com/leasehold-go/leasehold/internal/rounds"
)

// DefaultPrefix begins the names of the tables: leasehold_locks and so on.
const DefaultPrefix = "leasehold_"

// minTTL leaves a renewal, which is sent after a third of it, time to wait for a few other writers.
// Each commit takes tens of milliseconds on a slow disk.
const minTTL = 100 * time.Millisecond

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// Prefix begins the names of the tables; "": DefaultPrefix. It has letters, digits and
	// underscores, does not begin with a digit, and has at most 40 characters. Drivers with
	// different prefixes share no locks.
	Prefix string
	// Schema qualifies the names of the tables: a schema of PostgreSQL, a database of MySQL; "":
	// the connection's default. It must exist, and is spelled like Prefix. Set it if connections
	// of the pool, or processes, may have different defaults, such as a search_path for each
	// tenant. Each schema with the tables has locks of its own.
	Schema string
	// Listen notifies waiters, and holders that want to know of waiters; nil: waiters poll, and
	// holders learn with their next renewal. The same happens while Listen receives no messages
	// about the locks; see Driver.Listening. Only PostgreSQL has one: package pglisten.
	Listen Listener
	// AllowForeign lets Migrate add the tables to a SQLite file that has other tables, such as
	// the application's, and switch it to WAL mode. Otherwise such a file is refused as a
	// mistake.
	AllowForeign bool
	// Path is the name of the SQLite file, if it is a symbolic link. Once the link leads
	// elsewhere, calls return driver.ErrCorrupt, and leases are lost. "": the file as SQLite
	// resolved it.
	Path string
}

// A Listener receives a database's notifications, on a connection of its own.
type Listener interface {
	// Listen receives the messages sent on channel until ctx ends or the connection breaks. It
	// calls hear with "" once it will miss no later message, then with each message. The error
	// says why it ended; Listen may be called again.
	Listen(ctx context.Context, channel string, hear func(message string)) error
}

// longestPrefix leaves room for the rest of a table's name in each database.
const longestPrefix = 40

func (o *Options) withDefaults() (Options, error) {
	r := *cmp.Or(o, &Options{})
	r.Prefix = cmp.Or(r.Prefix, DefaultPrefix)
	if !identifier.Plain(r.Prefix, longestPrefix) {
		return r, fmt.Errorf("sqllock: Prefix %q is not an identifier of at most 40 letters, digits and underscores", r.Prefix)
	}
	if r.Schema != "" && !identifier.Plain(r.Schema, longestPrefix) {
		return r, fmt.Errorf("sqllock: Schema %q is not an identifier of at most 40 letters, digits and underscores", r.Schema)
	}
	return r, nil
}

// tables returns the prefix of the tables, with their schema.
func (o *Options) tables() string {
	if o.Schema == "" {
		return o.Prefix
	}
	return o.Schema + "." + o.Prefix
}

// A Driver keeps locks in one database. It is safe for concurrent use. All Drivers on the
// database, in one process or many, see the same locks.
type Driver struct {
	db       *sql.DB
	doubt    doubt
	lanes    *lanes.Lanes // of waiters
	dialect  dialect
	texts    statements
	traits   traits
	guard    *fence.SQL
	watch    *watcher // a pointer hides the owners in it from fmt
	batches  *batches // a pointer hides the names in it from fmt
	rows     *rounds.Rounds[change]
	renewals *rounds.Rounds[*renewing] // of exclusive leases, under one name
	roomy    *names                    // shared resources that had room for another claim when their rows were last read
	closed   atomic.Bool

	unburied atomic.Bool // places may be left whose heartbeats a sweep has removed

	gates
}

// gates coordinate the calls of a Driver.
type gates struct {
	writing onecall.Gate           // for statements that write; nil: writers need not take turns
	opening onecall.Gate           // for open
	byRow   chan struct{}          // has an element for each row that a batch renews
	stmts   *prepared              // guarded by opening until checked is set; a pointer hides the names in it from fmt
	checked atomic.Pointer[runner] // nil until the database was checked
}

var (
	_ driver.Operator     = (*Driver)(nil)
	_ driver.BatchRenewer = (*Driver)(nil)
	_ driver.Checker      = (*Driver)(nil)
)

// newDriver builds a Driver. It does no I/O.
func newDriver(db *sql.DB, dialect dialect, o *Options) (*Driver, error) {
	if db == nil {
		return nil, errors.New("sqllock: no database")
	}
	d := &Driver{db: db, doubt: doubt{db: db, ours: dialled.Of(db)}, dialect: dialect, texts: dialect.statements().withPrefix(o.tables()), traits: dialect.traits(),
		gates: gates{opening: onecall.New(), byRow: make(chan struct{}, mostRows), stmts: &prepared{}}}
	answers := new(links.Answers)
	if calls := d.doubt.calls(); calls != nil {
		answers = &calls.Answers
	}
	d.lanes = lanes.New(answers, unanswered, db.PingContext) // a locked row is no sign of a dead server
	if d.traits.oneWriter {
		d.writing = onecall.New()
	}
	var err error
	d.guard, err = fence.NewSQL(d.traits.fence, o.tables()+"fences")
	d.watch = &watcher{}
	d.batches = &batches{grants: batcher{send: d.grantBatch}, gives: batcher{send: d.giveBatch}}
	d.rows, d.renewals, d.roomy = rounds.New(d.changeAll), rounds.New(d.renewCalls), new(names)
	d.watch.init(d, o.Listen, wakeChannel(o.Prefix))
	return d, err
}

// Ping gets a connection from the database. If it fails, the error says what to do, as [ErrAuth]
// does.
func (d *Driver) Ping(ctx context.Context) error { return d.explain(ctx, d.db.PingContext(ctx)) }

// purgeShare is how many calls of Migrate there are for each that also purges, because a purge
// reads all rows.
const purgeShare = 32

// Migrate creates missing tables, and occasionally does what Purge does. Any number of processes
// may call it concurrently and repeatedly. It returns [driver.ErrCorrupt] for a database that is
// damaged, not Leasehold's, or from a newer Leasehold. It returns [driver.ErrUnsupported] for
// one that cannot keep locks. Both are left unchanged.
func (d *Driver) Migrate(ctx context.Context) error {
	if d.closed.Load() {
		return driver.ErrClosed
	}
	err := d.dialect.create(ctx, d)
	if err == nil && rand.N(purgeShare) == 0 {
		// A failure, such as a missing right, does no harm: the rows have expired.
		_ = d.Purge(ctx)
	}
	return err
}

// Purge removes the queue places of dead processes, and the rows of resources that were not used
// for a day. No fence goes back, because the clock is above it by then. Locked rows stay for the
// next time.
func (d *Driver) Purge(ctx context.Context) error {
	d.unburied.Store(true) // another process may have ended in its sweep
	if err := d.sweep(ctx); err != nil {
		return err
	}
	for last := ""; ; {
		names, err := d.readNames(ctx, d.texts.idle, last)
		if err != nil {
			return err
		}
		// Not prepared with the others. A user who only acquires locks lacks the right to delete
		// rows, and gets the error even if there is nothing to remove.
		err = d.write(ctx, d.db, func(on runner) error {
			_, err := on.ExecContext(ctx, d.texts.purge, list(names...))
			return err
		})
		if errors.Is(err, ErrContended) { // the next purge removes rows that are locked now
			err = nil
		}
		if err != nil || len(names) == 0 {
			return err
		}
		last = names[len(names)-1]
	}
}

// Features implements [driver.Driver]. SQL databases support every feature, but holders are
// recalled only through [Options.Listen]. Step is the microsecond of the tables.
func (d *Driver) Features() driver.Features {
	return driver.Features{Engine: d.traits.engine, Fencing: true, Shared: true, Weights: true, Limits: true, Fair: true, Wakes: true, Resumes: true,
		Lingers: true, Bars: true, Notes: true, Raises: true, Tells: true, Recalls: d.watch.listener != nil, Keeps: true,
		MinTTL: minTTL, Step: time.Microsecond}
}

// Claim implements [driver.Driver].
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if d.closed.Load() {
		return nil, driver.ErrClosed
	}
	if req.Mode > driver.Shared {
		return nil, fmt.Errorf("%w: mode %d", driver.ErrUnsupported, req.Mode)
	}
	req.Note = printable(req.Note)
	return &claim{d: d, req: req, recall: d.recallOf(&req)}, nil
}

// mostClosing bounds how long Close waits for statements in flight, and for the first call.
const mostClosing = time.Second

// Close wakes all waiting claims, whose next call returns ErrClosed, and closes prepared
// statements. Leases stay until they expire. The *sql.DB stays open. Later calls on the Driver
// and its claims return ErrClosed.
func (d *Driver) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	d.watch.close()
	// A first call may ignore its context. Each statement is closed once its calls have ended. One
	// may wait for a row, or for a silent server.
	ctx, cancel := context.WithTimeout(context.Background(), mostClosing)
	defer cancel()
	if ended, err := abandon.Call(ctx, func() (bool, error) {
		d.opening <- struct{}{} // no call prepares any more, and the next one sees closed
		defer d.opening.End()
		return true, d.stmts.close()
	}); ended {
		return err
	}
	return nil
}

// printable returns text without bytes that some databases refuse: invalid UTF-8 and NUL.
func printable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}
