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
	// A call that ends without an answer casts doubt on the connections of then, if no call had one for that long.
	silence = 250 * time.Millisecond
	// doubtEvery is how often connections are given up for what a server says: while a name leads to a standby, each new
	// one says the same.
	doubtEvery = 500 * time.Millisecond
	// A call that may be repeated is, when it has had no answer for repeatAfter and a connection that is made then has
	// one within repeatAfter: together less than half of the 5 s that the core gives a call.
	repeatAfter = time.Second
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
	ours *dialled.Pool             // nil: the pool is the caller's
	last atomic.Pointer[time.Time] // when connections were given up for what a server said

	answered atomic.Pointer[time.Time] // when a call had an answer, in a pool of ours
}

// judge takes in what fn came to on a connection, by a call that began at start, and runs fn again where that connection
// led astray. explain is the dialect's.
func (d *doubt) judge(ctx context.Context, start time.Time, on runner, err error, explain func(error) error, fn func(on runner) error) error {
	if d.ours != nil && (err == nil || ctx.Err() == nil) {
		now := time.Now()
		d.answered.Store(&now)
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		if d.ours != nil && time.Since(d.silentSince(start)) >= silence {
			d.ours.Condemn(start)
		}
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

// A firstCall is made once more if the connections of then are dead. nil: it is not.
type firstCall struct {
	ctx    context.Context // of both
	stop   context.CancelFunc
	look   *time.Timer
	looked chan struct{} // closed after look has set dead
	dead   bool
}

// first begins a call, which has the context that it returns; again follows.
func (d *doubt) first(ctx context.Context) (context.Context, *firstCall) {
	if d.ours == nil {
		return ctx, nil
	}
	call, stop := context.WithCancel(ctx)
	f := &firstCall{ctx: ctx, stop: stop, looked: make(chan struct{})}
	start := time.Now()
	f.look = time.AfterFunc(repeatAfter, func() {
		defer close(f.looked)
		if f.dead = d.dead(call, start); f.dead {
			stop()
		}
	})
	return call, f
}

// again ends the call, which came to err, and reports whether to make it once more.
func (f *firstCall) again(err error) bool {
	if f == nil {
		return false
	}
	ended := f.look.Stop()
	f.stop()
	if ended {
		return false
	}
	<-f.looked
	return err != nil && f.dead && f.ctx.Err() == nil
}

// dead waits until it can tell whether connections that were made before start lead nowhere: all were silent for
// repeatAfter, and one that is made now has an answer. While others have answers, the server may be slow, or a row locked.
func (d *doubt) dead(ctx context.Context, start time.Time) bool {
	for !d.ours.CondemnedSince(start) {
		left := repeatAfter - time.Since(d.silentSince(start))
		if left <= 0 {
			return d.leadsAnew(ctx, start)
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// silentSince is when a call had an answer, if that was after start, else start.
func (d *doubt) silentSince(start time.Time) time.Time {
	if last := d.answered.Load(); last != nil && last.After(start) {
		return *last
	}
	return start
}

// leadsAnew condemns the connections that were made before start, and reports whether one that is made now has an answer.
func (d *doubt) leadsAnew(ctx context.Context, start time.Time) bool {
	d.ours.Condemn(start)
	ctx, stop := context.WithTimeout(ctx, repeatAfter)
	defer stop()
	return d.db.PingContext(ctx) == nil
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
