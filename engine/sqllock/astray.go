package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/dialled"
	"github.com/leasehold-go/leasehold/internal/links"
)

// doubtEvery is how often connections are given up for what a server says: while a name leads to a standby, each new
// one says the same.
const doubtEvery = 500 * time.Millisecond

// astray reports whether err is the answer of a connection, not of the database: it leads to a server that is the primary
// no more, or nothing commits by itself on it. Nothing was written. Another connection may lead elsewhere.
func astray(err error) bool {
	return errors.Is(err, ErrReadOnly) || errors.Is(err, ErrUncommitted)
}

// A doubt is which connections of a pool are believed.
//
// In a pool of package dialled, which is ours, one that was made since a connection was in doubt. The connections of a
// caller's pool tell no age: each that leads astray is dropped, and as many others are tried as were idle, and one.
type doubt struct {
	db   *sql.DB
	ours *dialled.Pool             // nil: the pool is the caller's
	last atomic.Pointer[time.Time] // when connections were given up for what a server said
}

// judge takes in what fn came to on a connection, by a call that began at start, and runs fn again where that connection
// led astray. explain is the dialect's.
func (d *doubt) judge(ctx context.Context, start time.Time, on runner, err error, explain func(error) error, fn func(on runner) error) error {
	switch {
	case err == nil:
		d.calls().Answered(start)
	case ctx.Err() != nil:
		d.calls().Hung(start)
	case !astray(explain(err)):
	case d.ours != nil && d.ours.CondemnedSince(start): // by a call beside this one
		return fn(on)
	case !d.may(time.Now()):
	case d.ours != nil:
		d.ours.Condemn(time.Now())
		return fn(on)
	default:
		return d.drop(ctx, err, explain, fn)
	}
	return err
}

// repeated makes a call that may be served twice. It makes it once more if the connections of then are dead.
func (d *Driver) repeated(ctx context.Context, call func(ctx context.Context) error) error {
	attempt, answer := d.doubt.calls().Begin(ctx)
	err := call(attempt)
	if again(ctx, answer, err) {
		return call(ctx)
	}
	return err
}

// again ends an attempt, which came to err. It reports whether to make it once more, which a call must bear.
func again(ctx context.Context, attempt *links.Call, err error) bool {
	return links.Again(ctx, attempt.End(err)) && unanswered(err)
}

// calls are the links of the pool; nil: the pool is the caller's.
func (d *doubt) calls() *links.Links {
	if d.ours == nil {
		return nil
	}
	return &d.ours.Links
}

// may reports whether it is time to give up connections again.
func (d *doubt) may(now time.Time) bool {
	last := d.last.Load()
	return (last == nil || now.Sub(*last) >= doubtEvery) && d.last.CompareAndSwap(last, &now)
}

// drop runs fn on one connection after the other, and takes out of the pool those that lead astray.
func (d *doubt) drop(ctx context.Context, err error, explain func(error) error, fn func(on runner) error) error {
	for range d.db.Stats().Idle + 1 {
		conn, none := d.db.Conn(ctx)
		if none != nil {
			return err
		}
		if err = fn(conn); !astray(explain(err)) {
			conn.Close() // its error is that it is gone
			return err
		}
		discard(conn)
	}
	return err
}

// discard closes a connection that must not go back to its pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // which it returns
	conn.Close()
}
