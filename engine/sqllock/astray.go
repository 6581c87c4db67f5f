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

// doubtEvery is the least time between two occasions of giving up connections because of a server's
// answer. While a name leads to a standby, each new connection gets the same answer.
const doubtEvery = 500 * time.Millisecond

// astray reports whether err concerns the connection and not the database. The connection leads to
// a server that is no longer the primary, or its statements do not commit by themselves. Nothing
// was written. Another connection may be better.
func astray(err error) bool {
	return errors.Is(err, ErrReadOnly) || errors.Is(err, ErrUncommitted)
}

// A doubt decides which connections of a pool are trusted.
//
// In a pool of package dialled, which Leasehold made, these are the connections that were made
// since one was last in doubt. Connections of a caller's pool do not reveal their age. So each that
// leads astray is dropped, and one more attempt than there were idle connections is made.
type doubt struct {
	db   *sql.DB
	ours *dialled.Pool             // nil: the pool is the caller's
	last atomic.Pointer[time.Time] // when connections were last given up for a server's answer
}

// judge evaluates the result of fn on a connection, in a call that began at start. If the
// connection led astray, it runs fn again on another. explain is the dialect's.
func (d *doubt) judge(ctx context.Context, start time.Time, on runner, err error, explain func(error) error, fn func(on runner) error) error {
	switch {
	case err == nil:
		d.calls().Answered(start)
	case ctx.Err() != nil:
		d.calls().Hung(start)
	case !astray(explain(err)):
	case d.ours != nil && d.ours.CondemnedSince(start): // another call has given up this connection
		return fn(on)
	case !d.may(time.Now()):
	case d.ours != nil:
		d.ours.Condemn(time.Now())
		return fn(on)
	default:
		return d.drop(ctx, on, err, explain, fn)
	}
	return err
}

// repeated makes a call that may be applied twice. If the connections prove dead, it makes the call
// once more.
func (d *Driver) repeated(ctx context.Context, call func(ctx context.Context) error) error {
	attempt, answer := d.doubt.calls().Begin(ctx)
	err := call(attempt)
	if again(ctx, answer, err) {
		return call(ctx)
	}
	return err
}

// again ends an attempt with the result err. It reports whether to make it once more. The call must
// bear being applied twice.
func again(ctx context.Context, attempt *links.Call, err error) bool {
	return links.Again(ctx, attempt.End(err)) && unanswered(err)
}

// calls returns the links of the pool, or nil if the pool is the caller's.
func (d *doubt) calls() *links.Links {
	if d.ours == nil {
		return nil
	}
	return &d.ours.Links
}

// may reports whether connections may be given up again by now.
func (d *doubt) may(now time.Time) bool {
	last := d.last.Load()
	return (last == nil || now.Sub(*last) >= doubtEvery) && d.last.CompareAndSwap(last, &now)
}

// drop runs fn on one connection after another, and removes from the pool those that lead astray. If
// on is nil, fn takes connections from the pool itself.
func (d *doubt) drop(ctx context.Context, on runner, err error, explain func(error) error, fn func(on runner) error) error {
	for range d.db.Stats().Idle + 1 {
		conn, none := d.db.Conn(ctx)
		if none != nil {
			return err
		}
		var use runner = conn
		if on == nil { // fn would wait for conn if the pool has only one
			discard(conn)
			use = nil
		}
		if err = fn(use); !astray(explain(err)) {
			conn.Close() // its error would say that it is gone
			return err
		}
		discard(conn)
	}
	return err
}

// discard closes a connection that must not go back to its pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // Raw returns the same error
	conn.Close()
}
