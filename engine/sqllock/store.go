package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// While another process writes, a statement is repeated every minPause, about as long as a commit
// takes on an SSD. SQLite keeps no queue, so a process that sleeps longer hardly ever finds the
// database free. With 8 processes that only write, pauses that grow to 4 ms quadrupled the longest
// wait, and retries without a pause took the processor from the writer. The pause grows only if a
// writer stays long: to a pauseShare of the time waited.
const (
	minPause   = 250 * time.Microsecond
	maxPause   = 4 * time.Millisecond
	pauseShare = 256
)

// A runner runs statements on some connection.
type runner interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// prepared runs prepared statements, by their texts.
type prepared map[string]*sql.Stmt

func (p prepared) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	return p[text].ExecContext(ctx, args...)
}

func (p prepared) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	return p[text].QueryContext(ctx, args...)
}

func (p prepared) close() error {
	var errs []error
	for _, stmt := range p {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(errs...)
}

// ready returns the runner of the statements. The first call checks the database. If the check
// fails, the next call repeats it.
func (d *Driver) ready(ctx context.Context) (runner, error) {
	if d.closed.Load() {
		return nil, driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, ctx.Err()
	}
	if on := d.checked.Load(); on != nil {
		return *on, d.dialect.intact()
	}
	return d.open(ctx)
}

// open checks the database and prepares the statements, one caller at a time. If the caller's time is
// too short, the next one prepares the rest.
func (d *Driver) open(ctx context.Context) (runner, error) {
	if err := d.opening.Begin(ctx); err != nil {
		return nil, err
	}
	defer d.opening.End()
	if on := d.checked.Load(); on != nil {
		return *on, nil
	}
	if d.closed.Load() {
		return nil, driver.ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.watch.life, cancel)()
	err := d.retry(ctx, nil, func(runner) error {
		if err := d.dialect.check(ctx, d.db); err != nil {
			return err
		}
		return d.prepare(ctx, *d.stmts)
	})
	if err != nil {
		// MariaDB returns this error when it prepares a write. Reads can run, and the next call
		// checks again.
		if astray(err) {
			return d.db, nil
		}
		return nil, err
	}
	var on runner = d.db
	if d.traits.prepares {
		on = *d.stmts
	}
	d.checked.Store(&on)
	return on, nil
}

func (d *Driver) prepare(ctx context.Context, stmts prepared) (err error) {
	if !d.traits.prepares {
		return nil
	}
	d.texts.each(func(text *string) {
		if err != nil || *text == "" || text == &d.texts.purge || stmts[*text] != nil {
			return
		}
		var stmt *sql.Stmt
		if stmt, err = d.db.PrepareContext(ctx, *text); err == nil {
			stmts[*text] = stmt
			d.lanes.Answered(nil) // on a slow link, all of them take longer than a dead one is given
		}
	})
	return err
}

// retry calls fn until the database is not busy with another writer, or ctx ends. Under
// SERIALIZABLE, statements conflict even if they share no row, and long ones may fail again and
// again. So fn is then repeated under READ COMMITTED.
func (d *Driver) retry(ctx context.Context, on runner, fn func(on runner) error) error {
	for start, try := time.Now(), 1; ; try++ {
		began := time.Now()
		err := d.doubt.judge(ctx, began, on, fn(on), d.dialect.explain, fn)
		d.lanes.Answered(err)
		if on != nil && d.dialect.serial(err) {
			err = d.committed(ctx, fn)
		}
		switch {
		case err == nil:
			return nil
		case d.closed.Load():
			return driver.ErrClosed
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return ctx.Err()
		case !d.dialect.busy(err):
			return d.explain(ctx, err)
		case try == d.traits.attempts:
			return fmt.Errorf("%w: %w", ErrContended, err)
		}
		if cause := rest(ctx, max(minPause, min(maxPause, time.Since(start)/pauseShare))); cause != nil {
			return fmt.Errorf("%w while other writers had the database: %w", cause, d.dialect.explain(err))
		}
	}
}

// explain turns an error of the client into one that says what to do. When ctx ends, some clients
// make the server cancel the statement, and return only the server's error.
func (d *Driver) explain(ctx context.Context, err error) error {
	known := d.dialect.explain(err)
	if ctx.Err() != nil && errors.Is(known, ErrTimeout) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return known
}

// write is retry for statements that write. Where the database has one writer at a time, the writes
// of this Driver queue here, and only the first of them competes for the database.
func (d *Driver) write(ctx context.Context, on runner, fn func(on runner) error) error {
	if d.writing != nil {
		if err := d.writing.Begin(ctx); err != nil {
			return err
		}
		defer d.writing.End()
	}
	return d.retry(ctx, on, fn)
}

// writeReady is write, once the database is ready.
func (d *Driver) writeReady(ctx context.Context, fn func(on runner) error) error {
	on, err := d.ready(ctx)
	if err != nil {
		return err
	}
	return d.write(ctx, on, fn)
}

// exec runs a statement that writes.
func (d *Driver) exec(ctx context.Context, text string, args ...any) error {
	return d.writeReady(ctx, func(on runner) error {
		_, err := on.ExecContext(ctx, text, args...)
		return err
	})
}

// number runs a statement by dialect.number.
func (d *Driver) number(ctx context.Context, text string, args ...any) (n int64, found bool, err error) {
	err = d.writeReady(ctx, func(on runner) (err error) {
		n, found, err = d.dialect.number(ctx, on, text, args...)
		return err
	})
	return n, found, err
}

// changed runs a statement by dialect.changed.
func (d *Driver) changed(ctx context.Context, text string, args ...any) (changed bool, err error) {
	err = d.writeReady(ctx, func(on runner) (err error) {
		changed, err = d.dialect.changed(ctx, on, text, args...)
		return err
	})
	return changed, err
}

// endIfSilent makes the database end the surrounding transaction if this process stops inside it,
// so that others do not wait for its rows.
const endIfSilent = `SELECT set_config('idle_in_transaction_session_timeout', '1000', true)`

// committed runs fn, a statement of PostgreSQL, in a READ COMMITTED transaction.
func (d *Driver) committed(ctx context.Context, fn func(on runner) error) error {
	return d.attempt(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted}, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, endIfSilent); err != nil {
			return err
		}
		return fn(tx)
	})
}

// inTx runs fn in a transaction, for dialects that create their tables in one.
func (d *Driver) inTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return d.write(ctx, nil, func(runner) error { return d.attempt(ctx, nil, fn) })
}

// attempt runs one transaction on a connection of the pool.
func (d *Driver) attempt(ctx context.Context, opts *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, opts)
	if err != nil {
		discard(conn)
		return err
	}
	if err = fn(tx); err == nil {
		err = tx.Commit()
	}
	over := err == nil || tx.Rollback() == nil // after a Commit that was sent, Rollback fails
	if !over || astray(d.dialect.explain(err)) {
		discard(conn) // it may still be inside the transaction
	}
	return err
}

// run runs the statements of a schema file. Each ends with a semicolon at the end of a line.
func run(ctx context.Context, on runner, schema, prefix string) error {
	for statement := range strings.SplitSeq(strings.ReplaceAll(schema, "{p}", prefix), ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := on.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
