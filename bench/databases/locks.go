package databases

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
)

// Locks that are compared on every server, beside its own.
const (
	ours       = "leasehold"
	oursGlobal = "leasehold, HandOver -1"
	oursLong   = "leasehold" + ofLong
	byHand     = "two statements" // the lock that users write by hand; it does not wait
)

const (
	long   = 20 * time.Millisecond // a section with some work
	ofLong = ", sections of 20 ms"
)

const (
	pool   = 16 // connections per process, if not each lock needs one
	pooled = ", 16 connections"
	many   = 200 // connections, if each lock needs one
)

// Polling is the longest of sqllock's polling intervals on a server.
const Polling = 100 * time.Millisecond

// competitors are Leasehold, the locks by hand, and the server's own locks as users write them:
// with a connection each.
func (s *Server) competitors() []contest.Competitor {
	var all []contest.Competitor
	for _, d := range s.Drivers {
		all = append(all, contest.Competitor{Name: d.Name, Open: s.on(pool, d.lock(nil)), Polls: d.Polls})
	}
	first := s.Drivers[0]
	return append(all,
		contest.Competitor{Name: oursGlobal, Open: s.on(pool, first.lock(&leasehold.Options{HandOver: -1})), Polls: first.Polls},
		contest.Competitor{Name: oursLong, Open: lasting(s.on(pool, first.lock(nil))), Polls: first.Polls},
		contest.Competitor{Name: byHand, Open: s.on(pool, s.byHand)},
		contest.Competitor{Name: s.Own, Open: s.on(many, s.own), Leases: many},
		contest.Competitor{Name: s.Own + pooled, Open: s.on(pool, s.own), Leases: pool},
		contest.Competitor{Name: s.Own + pooled + ofLong, Open: lasting(s.on(pool, s.own)), Leases: pool},
	)
}

// on returns an Open function for a lock on a pool of its own, with the given number of
// connections.
func (s *Server) on(connections int, open func(addr string, db *sql.DB) (*contest.Locker, error)) func(addr string) (*contest.Locker, error) {
	return func(addr string) (*contest.Locker, error) {
		db, statements, err := s.Open(addr)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
		l, err := open(addr, db)
		if err != nil {
			return nil, err
		}
		end := l.Close
		l.Commands = statements
		l.Close = func() { end(); db.Close() }
		return l, nil
	}
}

func (d Driver) lock(opts *leasehold.Options) func(addr string, db *sql.DB) (*contest.Locker, error) {
	return func(addr string, db *sql.DB) (*contest.Locker, error) {
		driver, err := d.New(addr, db)
		if err != nil {
			return nil, err
		}
		if err := driver.Migrate(context.Background()); err != nil {
			return nil, err
		}
		return contest.Leasehold(driver, opts)
	}
}

// lasting makes each section last for a while.
func lasting(open func(addr string) (*contest.Locker, error)) func(addr string) (*contest.Locker, error) {
	return func(addr string) (*contest.Locker, error) {
		l, err := open(addr)
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

func (s *Server) byHand(_ string, db *sql.DB) (*contest.Locker, error) {
	return ByHand(db, s.Create, s.Take, s.Free)
}

// ByHand acquires and frees a row in two statements. Each changes one row or none, and gets the
// name and the owner. create creates the table unless it exists. ByHand does not wait, so it is
// measured only without contention.
func ByHand(db *sql.DB, create, take, free string) (*contest.Locker, error) {
	if _, err := db.Exec(create); err != nil {
		return nil, err
	}
	taking, err1 := db.Prepare(take)
	freeing, err2 := db.Prepare(free)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	lock := func(_ context.Context, name string) (contest.Held, error) {
		owner := rand.Text()
		if err := changes(taking.Exec(name, owner)); err != nil {
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error { return changes(freeing.Exec(name, owner)) }}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() { taking.Close(); freeing.Close() }}, nil
}

func changes(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	return contest.LostUnless(n > 0, err)
}

// own holds a connection for as long as the lock.
func (s *Server) own(_ string, db *sql.DB) (*contest.Locker, error) {
	lock := func(ctx context.Context, name string) (contest.Held, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return contest.Held{}, err
		}
		if err := holds(ctx, conn, s.Lock, name); err != nil {
			conn.Close() // the client closes it when ctx ends
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() error {
			defer conn.Close()
			return holds(context.Background(), conn, s.Unlock, name)
		}}, nil
	}
	return &contest.Locker{Lock: lock, Close: func() {}}, nil
}

// holds runs a statement that returns whether the lock is held, or was.
func holds(ctx context.Context, conn *sql.Conn, statement, name string) error {
	var held bool
	err := conn.QueryRowContext(ctx, statement, name).Scan(&held)
	return contest.LostUnless(held, err)
}
