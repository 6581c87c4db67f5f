package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// How a statement waits for the database that another process writes to: it asks again
// every minPause, about as long as a commit takes on an SSD, because SQLite keeps no
// queue and whoever sleeps longer hardly ever finds it free. (Measured with 8 processes
// that do nothing but write: sleeps that grow to 4 ms wait 4 times as long at the worst,
// and asking without a sleep takes the processor from the writer.) Only where a writer
// keeps it for long, the pause grows, to a pauseShare of the time waited.
const (
	minPause   = 250 * time.Microsecond
	maxPause   = 4 * time.Millisecond
	pauseShare = 256
)

// A runner runs statements: on any connection or inside a transaction.
type runner interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// prepared runs the statements that open has prepared: parsing them takes longer than
// running them.
type prepared struct {
	stmts map[string]*sql.Stmt
	tx    *sql.Tx // nil: on any connection
}

func (p prepared) stmt(ctx context.Context, text string) *sql.Stmt {
	if p.tx != nil {
		return p.tx.StmtContext(ctx, p.stmts[text])
	}
	return p.stmts[text]
}

func (p prepared) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	return p.stmt(ctx, text).ExecContext(ctx, args...)
}

func (p prepared) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	return p.stmt(ctx, text).QueryContext(ctx, args...)
}

// ready returns the prepared statements. The first call checks the database; a failed
// check is repeated by the next call.
func (d *Driver) ready(ctx context.Context) (map[string]*sql.Stmt, error) {
	if d.closed.Load() {
		return nil, driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if all := d.prepared.Load(); all != nil {
		return *all, d.dialect.intact()
	}
	return d.open(ctx)
}

// open checks the database and prepares all statements, one caller at a time. They are
// prepared here and not when first used, because that may be inside a transaction, and
// preparing takes a connection of its own: a pool of one would deadlock.
func (d *Driver) open(ctx context.Context) (map[string]*sql.Stmt, error) {
	select {
	case <-d.opening:
		defer func() { d.opening <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if all := d.prepared.Load(); all != nil {
		return *all, nil
	}
	if d.closed.Load() {
		return nil, driver.ErrClosed
	}
	stmts := make(map[string]*sql.Stmt)
	err := d.retry(ctx, func() error {
		if err := d.dialect.check(ctx, d.db); err != nil {
			return err
		}
		return d.prepare(ctx, stmts)
	})
	if err != nil {
		for _, stmt := range stmts {
			stmt.Close()
		}
		return nil, err
	}
	d.prepared.Store(&stmts)
	return stmts, nil
}

func (d *Driver) prepare(ctx context.Context, stmts map[string]*sql.Stmt) error {
	var errs error
	d.texts.each(func(text *string) {
		if errs != nil || stmts[*text] != nil {
			return
		}
		stmts[*text], errs = d.db.PrepareContext(ctx, *text)
		if errs != nil {
			delete(stmts, *text)
		}
	})
	return errs
}

// retry calls fn until the database is not busy with another writer or ctx ends.
func (d *Driver) retry(ctx context.Context, fn func() error) error {
	for start := time.Now(); ; {
		err := fn()
		switch {
		case err == nil:
			return nil
		case d.closed.Load():
			return driver.ErrClosed
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return context.Cause(ctx)
		case !d.dialect.busy(err):
			return d.dialect.explain(err)
		}
		pause := max(minPause, min(maxPause, time.Since(start)/pauseShare))
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return fmt.Errorf("%w while other writers had the database: %w", context.Cause(ctx), d.dialect.explain(err))
		}
	}
}

// write is retry for what writes. Where the database has one writer at a time, those of
// this Driver come in order, and only the first of them asks.
func (d *Driver) write(ctx context.Context, fn func() error) error {
	if d.writing == nil {
		return d.retry(ctx, fn)
	}
	select {
	case d.writing <- struct{}{}:
		defer func() { <-d.writing }()
		return d.retry(ctx, fn)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// transact runs fn in a transaction, which is committed if fn says so. After an error
// the outcome is unknown only if it came from the commit.
func (d *Driver) transact(ctx context.Context, fn func(on runner) (commit bool, err error)) error {
	stmts, err := d.ready(ctx)
	if err != nil {
		return err
	}
	return d.inTx(ctx, func(tx *sql.Tx) (bool, error) { return fn(prepared{stmts, tx}) })
}

// inTx is transact on plain connections, which need not be ready.
func (d *Driver) inTx(ctx context.Context, fn func(tx *sql.Tx) (commit bool, err error)) error {
	return d.write(ctx, func() error {
		conn, err := d.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		ended, err := attempt(ctx, conn, fn)
		if !ended {
			// The connection may still be inside the transaction: throw it away.
			_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
		}
		return err
	})
}

// attempt runs one transaction; ended says that it is certainly over.
func attempt(ctx context.Context, conn *sql.Conn, fn func(tx *sql.Tx) (commit bool, err error)) (ended bool, err error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	commit, err := fn(tx)
	if err == nil && commit {
		err = tx.Commit()
		return err == nil, err
	}
	undone := tx.Rollback()
	if err == nil {
		err = undone
	}
	return undone == nil, err
}

// exec runs a statement that is a whole operation and returns how many rows it changed.
func (d *Driver) exec(ctx context.Context, text string, args ...any) (rows int64, err error) {
	stmts, err := d.ready(ctx)
	if err != nil {
		return 0, err
	}
	err = d.write(ctx, func() error {
		res, err := stmts[text].ExecContext(ctx, args...)
		if err == nil {
			rows, err = res.RowsAffected()
		}
		return err
	})
	return rows, err
}

// number runs a statement that is a whole operation; see dialect.number.
func (d *Driver) number(ctx context.Context, text string, args ...any) (n int64, found bool, err error) {
	stmts, err := d.ready(ctx)
	if err != nil {
		return 0, false, err
	}
	err = d.write(ctx, func() error {
		n, found, err = d.dialect.number(ctx, prepared{stmts, nil}, text, args...)
		return err
	})
	return n, found, err
}

// look reads resources outside of a transaction, without what has expired.
func (d *Driver) look(ctx context.Context, text string, arg any) (all []resource, err error) {
	stmts, err := d.ready(ctx)
	if err != nil {
		return nil, err
	}
	err = d.retry(ctx, func() error {
		all, err = d.read(ctx, prepared{stmts, nil}, text, arg)
		return err
	})
	for i := range all {
		all[i].dropExpired()
	}
	return all, err
}

// value reads one value; sql.ErrNoRows if there is none.
func (d *Driver) value(ctx context.Context, into any, text string, args ...any) error {
	stmts, err := d.ready(ctx)
	if err != nil {
		return err
	}
	return d.retry(ctx, func() error { return stmts[text].QueryRowContext(ctx, args...).Scan(into) })
}
