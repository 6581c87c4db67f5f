package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/dialled"
)

const (
	// A call that has waited for silence and still has no answer casts doubt on the connections of then.
	silence = 250 * time.Millisecond
	// doubtEvery is how often connections are given up for what a server says: while a name leads to a standby, each new
	// one says the same.
	doubtEvery = 500 * time.Millisecond
)

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
	ours *dialled.Pool // nil: the pool is the caller's
	last atomic.Pointer[time.Time]
}

// call runs fn on a connection that is believed. explain is the dialect's.
func (d *doubt) call(ctx context.Context, on runner, explain func(error) error, fn func(on runner) error) error {
	start := time.Now()
	err := fn(on)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		if d.ours != nil && time.Since(start) >= silence {
			d.ours.Condemn(start)
		}
	case astray(explain(err)) && d.may(time.Now()):
		if d.ours != nil {
			d.ours.Condemn(time.Now())
			return fn(on)
		}
		return d.drop(ctx, err, explain, fn)
	}
	return err
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
