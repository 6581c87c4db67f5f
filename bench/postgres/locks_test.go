package postgres_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/pglisten"
	"github.com/leasehold-go/leasehold/sqllock"
)

// The locks that are compared.
const (
	ours        = "leasehold"
	oursGlobal  = "leasehold, HandOver -1"
	oursPolling = "leasehold without LISTEN"
	byHand      = "two statements"   // what one writes by hand; it waits for nobody
	advisory    = "pg_advisory_lock" // as one writes it by hand: a connection of its own for each lock
	advisory16  = "pg_advisory_lock, 16 connections"
	oursLong    = "leasehold, sections of 20 ms"
	advisory16s = "pg_advisory_lock, 16 connections, sections of 20 ms"
)

// long is a section that does something.
const long = 20 * time.Millisecond

// pool is how many connections a process has, where it does not need one for each lock.
const pool = 16

// polling is the slowest of sqllock's paces on a server.
const polling = 100 * time.Millisecond

var engine = contest.Engine{Name: "PostgreSQL", Competitors: []contest.Competitor{
	{Name: ours, Open: on(pool, leaseholdWith(true, nil))},
	{Name: oursGlobal, Open: on(pool, leaseholdWith(true, &leasehold.Options{HandOver: -1}))},
	{Name: oursPolling, Open: on(pool, leaseholdWith(false, nil)), Polls: polling},
	{Name: byHand, Open: on(pool, openByHand)},
	{Name: advisory, Open: on(200, openAdvisory), Leases: 200},
	{Name: advisory16, Open: on(pool, openAdvisory), Leases: pool},
	{Name: oursLong, Open: lasting(on(pool, leaseholdWith(true, nil)))},
	{Name: advisory16s, Open: lasting(on(pool, openAdvisory)), Leases: pool},
}}

// A counter counts the statements of a client.
type counter struct{ statements atomic.Int64 }

// TraceQueryStart is called by pgx.
func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	return ctx
}

// TraceQueryEnd is called by pgx.
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// on opens a lock on a pool of its own with so many connections.
func on(connections int, open func(url string, db *sql.DB) (*contest.Locker, error)) func(url string) (*contest.Locker, error) {
	return func(url string) (*contest.Locker, error) {
		config, err := pgx.ParseConfig(url)
		if err != nil {
			return nil, err
		}
		c := &counter{}
		config.Tracer = c
		db := stdlib.OpenDB(*config)
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
		l, err := open(url, db)
		if err != nil {
			return nil, err
		}
		end := l.Close
		l.Commands = c.statements.Load
		l.Close = func() { end(); db.Close() }
		return l, nil
	}
}

func leaseholdWith(listens bool, opts *leasehold.Options) func(url string, db *sql.DB) (*contest.Locker, error) {
	return func(url string, db *sql.DB) (*contest.Locker, error) {
		o := &sqllock.Options{}
		if listens {
			l, err := pglisten.New(url)
			if err != nil {
				return nil, err
			}
			o.Listen = l
		}
		d, err := sqllock.NewPostgres(db, o)
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
func lasting(open func(url string) (*contest.Locker, error)) func(url string) (*contest.Locker, error) {
	return func(url string) (*contest.Locker, error) {
		l, err := open(url)
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
func openByHand(_ string, db *sql.DB) (*contest.Locker, error) {
	_, err := db.Exec(`CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, owner text NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 50)`)
	if err != nil {
		return nil, err
	}
	lock := func(_ context.Context, name string) (contest.Held, error) {
		ctx, owner := context.Background(), rand.Text()
		err := changesOne(db.ExecContext(ctx, `INSERT INTO bare VALUES ($1, $2, now() + interval '10 s')
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE bare.expires <= now()`, name, owner))
		if err != nil {
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error {
			return changesOne(db.ExecContext(ctx, `UPDATE bare SET expires = now() WHERE name = $1 AND owner = $2`, name, owner))
		}}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() {}}, nil
}

func changesOne(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	return contest.LostUnless(n == 1, err)
}

// openAdvisory holds a connection for as long as the lock.
func openAdvisory(_ string, db *sql.DB) (*contest.Locker, error) {
	lock := func(ctx context.Context, name string) (contest.Held, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return contest.Held{}, err
		}
		hash := fnv.New64a()
		hash.Write([]byte(name))
		key := int64(hash.Sum64())
		if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, key); err != nil {
			conn.Close() // the client closes it when ctx ends
			return contest.Held{}, err
		}
		return contest.Held{
			Unlock: func() error {
				defer conn.Close()
				var held bool
				err := conn.QueryRowContext(context.Background(), `SELECT pg_advisory_unlock($1)`, key).Scan(&held)
				return contest.LostUnless(held, err)
			},
		}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() {}}, nil
}
