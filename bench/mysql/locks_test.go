package mysql_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/sqllock"
)

// The locks that are compared.
const (
	ours       = "leasehold"
	oursGlobal = "leasehold, HandOver -1"
	byHand     = "two statements" // what one writes by hand; it waits for nobody
	getLock    = "GET_LOCK"       // as one writes it by hand: a connection of its own for each lock
	getLock16  = "GET_LOCK, 16 connections"
	oursLong   = "leasehold, sections of 20 ms"
	getLock16s = "GET_LOCK, 16 connections, sections of 20 ms"
)

// long is a section that does something.
const long = 20 * time.Millisecond

// pool is how many connections a process has, where it does not need one for each lock.
const pool = 16

// polling is the slowest of sqllock's paces on a server.
const polling = 100 * time.Millisecond

var engine = contest.Engine{Name: "MariaDB", Competitors: []contest.Competitor{
	{Name: ours, Open: on(pool, leaseholdWith(nil)), Polls: polling},
	{Name: oursGlobal, Open: on(pool, leaseholdWith(&leasehold.Options{HandOver: -1})), Polls: polling},
	{Name: byHand, Open: on(pool, openByHand)},
	{Name: getLock, Open: on(200, openGetLock), Leases: 200},
	{Name: getLock16, Open: on(pool, openGetLock), Leases: pool},
	{Name: oursLong, Open: lasting(on(pool, leaseholdWith(nil))), Polls: polling},
	{Name: getLock16s, Open: lasting(on(pool, openGetLock)), Leases: pool},
}}

// A wire counts what a client writes: a packet a statement.
type wire struct {
	net.Conn
	packets *atomic.Int64
}

func (w wire) Write(p []byte) (int, error) {
	w.packets.Add(1)
	return w.Conn.Write(p)
}

// on opens a lock on a pool of its own with so many connections.
func on(connections int, open func(db *sql.DB) (*contest.Locker, error)) func(dsn string) (*contest.Locker, error) {
	return func(dsn string) (*contest.Locker, error) {
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			return nil, err
		}
		config.InterpolateParams = true // else what is not prepared takes two round trips
		var packets atomic.Int64
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return wire{conn, &packets}, err
		}
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return nil, err
		}
		db := sql.OpenDB(connector)
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
		l, err := open(db)
		if err != nil {
			return nil, err
		}
		end := l.Close
		l.Commands = packets.Load
		l.Close = func() { end(); db.Close() }
		return l, nil
	}
}

func leaseholdWith(opts *leasehold.Options) func(db *sql.DB) (*contest.Locker, error) {
	return func(db *sql.DB) (*contest.Locker, error) {
		d, err := sqllock.NewMySQL(db, nil)
		if err != nil {
			return nil, err
		}
		if err := d.Migrate(context.Background()); err != nil {
			return nil, err
		}
		locks, err := leasehold.New(d, opts)
		if err != nil {
			return nil, err
		}
		return &contest.Locker{Lock: contest.Leasehold(locks), Close: func() { locks.Close(); d.Close() }}, nil
	}
}

// lasting has each section last a while.
func lasting(open func(dsn string) (*contest.Locker, error)) func(dsn string) (*contest.Locker, error) {
	return func(dsn string) (*contest.Locker, error) {
		l, err := open(dsn)
		if err != nil {
			return nil, err
		}
		lock := l.Lock
		l.Lock = func(ctx context.Context, name string) (contest.Held, error) {
			held, err := lock(ctx, name)
			if err == nil {
				time.Sleep(long)
			}
			return held, err
		}
		return l, nil
	}
}

// openByHand takes and frees a row in two statements.
func openByHand(db *sql.DB) (*contest.Locker, error) {
	_, err := db.Exec(`CREATE TABLE IF NOT EXISTS bare (name VARBINARY(255) PRIMARY KEY, owner VARBINARY(64) NOT NULL, expires DATETIME(6) NOT NULL)`)
	if err != nil {
		return nil, err
	}
	take, err1 := db.Prepare(`INSERT INTO bare VALUES (?, ?, NOW(6) + INTERVAL 10 SECOND) ON DUPLICATE KEY UPDATE
		owner = IF(expires <= NOW(6), VALUES(owner), owner), expires = IF(owner = VALUES(owner), VALUES(expires), expires)`)
	free, err2 := db.Prepare(`UPDATE bare SET expires = NOW(6) WHERE name = ? AND owner = ?`)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	lock := func(_ context.Context, name string) (contest.Held, error) {
		owner := rand.Text()
		if err := changes(take.Exec(name, owner)); err != nil {
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error { return changes(free.Exec(name, owner)) }}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() { take.Close(); free.Close() }}, nil
}

func changes(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	return contest.LostUnless(n > 0, err)
}

// openGetLock holds a connection for as long as the lock.
func openGetLock(db *sql.DB) (*contest.Locker, error) {
	lock := func(ctx context.Context, name string) (contest.Held, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return contest.Held{}, err
		}
		var held bool
		err = conn.QueryRowContext(ctx, `SELECT GET_LOCK(?, 3600)`, name).Scan(&held)
		if err := contest.LostUnless(held, err); err != nil {
			conn.Close() // the client closes it when ctx ends
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error {
			defer conn.Close()
			var held bool
			err := conn.QueryRowContext(context.Background(), `SELECT RELEASE_LOCK(?)`, name).Scan(&held)
			return contest.LostUnless(held, err)
		}}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() {}}, nil
}
