// Package dialled opens pools of database connections whose old connections can be closed.
//
// A firewall that loses its table drops all connections silently, and a failover leaves all of
// them at the former primary. In both cases a newer connection leads to the right place.
package dialled

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/links"
)

// A connection that was unused for askAfter is checked by a round trip when it leaves the pool.
// Busy connections need no check.
const askAfter = 100 * time.Millisecond

// Open returns a pool of the connections that c makes. They have all methods of package driver
// that a client should have; see full. It does not connect.
func Open(c driver.Connector) *sql.DB {
	p := new(Pool)
	db := sql.OpenDB(&connector{c, p})
	p.Links.Condemn, p.Links.Ask = p.condemn, db.PingContext
	return db
}

// A Pool is the state of a *sql.DB that Open has made.
type Pool struct {
	Links links.Links // with them, calls wait for answers

	condemned atomic.Pointer[time.Time] // connections from before it are not used any more; nil: all are used
}

// Of returns the pool of db, or nil if Open has not made it.
func Of(db *sql.DB) *Pool {
	if p, ok := db.Driver().(pooled); ok {
		return p.Pool
	}
	return nil
}

// Condemn closes each connection that was dialled before t as soon as it is idle, because of
// what one of them has reported.
func (p *Pool) Condemn(t time.Time) {
	p.condemn(t)
	p.Links.Note()
}

func (p *Pool) condemn(t time.Time) {
	for {
		was := p.condemned.Load()
		if was != nil && !was.Before(t) || p.condemned.CompareAndSwap(was, &t) {
			return
		}
	}
}

// CondemnedSince reports whether connections from before t are condemned, and some from after it
// too.
func (p *Pool) CondemnedSince(t time.Time) bool {
	last := p.condemned.Load()
	return last != nil && last.After(t)
}

func (p *Pool) believes(dialled time.Time) bool {
	t := p.condemned.Load()
	return t == nil || !dialled.Before(*t)
}

type connector struct {
	driver.Connector
	pool *Pool
}

// Connect implements [driver.Connector].
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	start := time.Now() // from now on, the name may lead elsewhere at any moment
	made, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	all, ok := made.(full)
	if !ok {
		made.Close()
		return nil, errors.ErrUnsupported
	}
	return &conn{full: all, pool: c.pool, dialled: start, used: time.Now()}, nil
}

// Driver implements [driver.Connector].
func (c *connector) Driver() driver.Driver { return pooled{c.Connector.Driver(), c.pool} }

// pooled lets Of find the pool of a *sql.DB.
type pooled struct {
	driver.Driver
	*Pool
}

// full is what package sql uses of a connection, except for driver.Validator.
type full interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.NamedValueChecker
}

// conn is a connection with a known age. Package sql uses it in one goroutine at a time.
type conn struct {
	full
	pool    *Pool
	dialled time.Time
	used    time.Time // when it came back to the pool
	silent  bool      // it was asked for an answer and gave none
}

// ResetSession implements [driver.SessionResetter]. It is called when the connection leaves the
// pool.
func (c *conn) ResetSession(ctx context.Context) error {
	if !c.pool.believes(c.dialled) || time.Since(c.used) >= askAfter && !c.answers(ctx) {
		return driver.ErrBadConn
	}
	return c.full.ResetSession(ctx)
}

// answers asks the server for an answer. If none comes, connections of the same age may be dead as
// well, unless the call had too little time for a busy server to answer.
func (c *conn) answers(ctx context.Context) bool {
	start, within := time.Now(), c.pool.Links.Patience()
	if end, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(end)/2)
	}
	asked, stop := context.WithTimeout(ctx, within)
	defer stop()
	err := c.Ping(asked)
	c.silent = err != nil && asked.Err() != nil
	if c.silent && ctx.Err() == nil && within >= links.Least {
		c.pool.Condemn(start)
	}
	return err == nil
}

// IsValid implements [driver.Validator]. It is called when the connection returns to the pool.
func (c *conn) IsValid() bool {
	c.used = time.Now()
	if inner, ok := c.full.(driver.Validator); ok && !inner.IsValid() {
		return false
	}
	return c.pool.believes(c.dialled)
}

// Close implements [driver.Conn]. Some clients say goodbye to the server and wait until it has
// heard, for seconds if nothing comes back. So Close does not wait for the client.
func (c *conn) Close() error {
	if c.pool.believes(c.dialled) && !c.silent {
		return c.full.Close()
	}
	go c.full.Close()
	return nil
}
