package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

// A watched connector calls before with each prepared statement and its arguments, before it is executed.
type watched struct {
	sqldriver.Connector
	before func(text string, args []sqldriver.NamedValue)
}

func (w watched) Connect(ctx context.Context) (sqldriver.Conn, error) {
	c, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return watchedConn{c.(fullConn), w.before}, nil
}

// fullConn is what a connection of go-sql-driver can do.
type fullConn interface {
	sqldriver.Conn
	sqldriver.ConnPrepareContext
	sqldriver.ConnBeginTx
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.SessionResetter
	sqldriver.Validator
}

type watchedConn struct {
	fullConn
	before func(text string, args []sqldriver.NamedValue)
}

func (c watchedConn) PrepareContext(ctx context.Context, text string) (sqldriver.Stmt, error) {
	s, err := c.fullConn.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	return watchedStmt{s.(fullStmt), text, c.before}, nil
}

type fullStmt interface {
	sqldriver.Stmt
	sqldriver.StmtExecContext
	sqldriver.StmtQueryContext
	sqldriver.NamedValueChecker
}

type watchedStmt struct {
	fullStmt
	text   string
	before func(text string, args []sqldriver.NamedValue)
}

func (s watchedStmt) ExecContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	s.before(s.text, args)
	return s.fullStmt.ExecContext(ctx, args)
}

func (s watchedStmt) QueryContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	s.before(s.text, args)
	return s.fullStmt.QueryContext(ctx, args)
}

// watchedBy is a driver on m that calls before with each prepared statement that it executes.
func watchedBy(t *testing.T, m *servers.MySQL, before func(text string)) databases.Store {
	t.Helper()
	return watchedWithArgs(t, m, func(text string, _ []sqldriver.NamedValue) { before(text) })
}

// watchedWithArgs is the same with the arguments.
func watchedWithArgs(t *testing.T, m *servers.MySQL, before func(text string, args []sqldriver.NamedValue)) databases.Store {
	t.Helper()
	config, err := mysql.ParseDSN(m.DSN())
	if err != nil {
		t.Fatal(err)
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(watched{connector, before})
	t.Cleanup(func() { db.Close() })
	made, err := sqllock.NewMySQL(db, nil)
	return databases.Migrated(t, databases.Store{Driver: made, DB: db}, err)
}

// A row that somebody locks after a batch was looked through, and before it is renewed, is passed over: the statement
// keeps no others locked while it waits.
func TestMySQLLockedInBetween(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		stranger := opened(t, m.DSN())
		tx, err := stranger.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		locked := false
		d := watchedBy(t, m, func(text string) {
			if strings.Contains(text, "LAST_INSERT_ID(rev + 1)") {
				t.Error("a lease is renewed alone")
			}
			if locked || !strings.Contains(text, "UPDATE (SELECT") {
				return
			}
			locked = true
			if _, err := tx.ExecContext(context.Background(), "SELECT name FROM leasehold_locks WHERE name = 'row/29' FOR UPDATE"); err != nil {
				t.Error(err)
			}
		})
		renewals := make([]driver.Renewal, 40)
		for i := range renewals {
			c, err := d.Claim(driver.Request{Resource: fmt.Sprintf("row/%02d", i), Owner: "me", TTL: time.Minute})
			if err == nil {
				_, err = c.Try(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			renewals[i] = driver.Renewal{Claim: c, TTL: time.Minute}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		d.RenewAll(ctx, renewals)
		if !locked {
			t.Fatal("no statement renews all")
		}
		for i, r := range renewals {
			if (r.Err == nil) != (i != 29) {
				t.Errorf("row/%02d: %v", i, r.Err)
			}
		}
	})
}

// A lease whose row is locked only while the batch is renewed, so that it is passed over and found live, is renewed.
func TestMySQLLockedDuringTheRenewal(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		stranger := opened(t, m.DSN())
		var tx *sql.Tx // while x is locked
		locked := false
		d := watchedBy(t, m, func(text string) {
			var err error
			switch {
			case !locked && strings.Contains(text, "GREATEST(l.expires"):
				locked = true
				if tx, err = stranger.DB.BeginTx(context.Background(), nil); err == nil {
					_, err = tx.ExecContext(context.Background(), "SELECT name FROM leasehold_locks WHERE name = 'x' FOR UPDATE")
				}
			case tx != nil && !strings.Contains(text, "UPDATE (SELECT"):
				err, tx = tx.Rollback(), nil
			}
			if err != nil {
				t.Error(err)
			}
		})
		const ttl = 3 * time.Second
		held := claimtest.New(t, d, driver.Request{Resource: "x", Owner: "me", TTL: ttl})
		claimtest.Granted(t, held)
		claimtest.Granted(t, claimtest.New(t, stranger, driver.Request{Resource: "over later", Owner: "me", TTL: ttl}))
		if g, err := held.Renew(t.Context(), time.Minute); err != nil || g.TTL < time.Minute || !locked || tx != nil {
			t.Fatalf("%v, %v; the row was locked: %v, is locked still: %v", g, err, locked, tx != nil)
		}
		other := func(resource string) error {
			_, err := claimtest.New(t, stranger, driver.Request{Resource: resource, Owner: "other", TTL: ttl}).Try(t.Context())
			return err
		}
		for end := time.Now().Add(20 * time.Second); ; {
			if err := other("over later"); err == nil {
				break
			} else if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err := other("x"); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("beside a lease that was renewed for a minute, another gets %v; want ErrBusy", err)
		}
	})
}

// A waiter that comes after the release of a shared lease has read the queue, and before it writes the row, is not overtaken.
func TestMySQLJoinsInBetween(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		claim := func(d driver.Driver, owner string, queue bool) driver.Claim {
			return claimtest.New(t, d, driver.Request{Resource: "x", Owner: owner, TTL: time.Minute, Mode: driver.Shared, Limit: 1, Queue: queue})
		}
		others := opened(t, m.DSN())
		waiter := claim(others, "waiter", true)
		releases := false
		first := claim(watchedBy(t, m, func(text string) {
			if !releases || !strings.Contains(text, "LAST_INSERT_ID(rev + 1)") {
				return
			}
			releases = false
			if _, err := waiter.Try(context.Background()); !errors.Is(err, driver.ErrBusy) {
				t.Errorf("beside the first: %v; want ErrBusy", err)
			}
		}), "first", false)
		claimtest.Granted(t, first)
		releases = true
		if err := first.Release(t.Context(), driver.End{}); err != nil || releases {
			t.Fatalf("%v; the row was written: %v", err, !releases)
		}
		newcomer := claim(others, "newcomer", false)
		if _, err := newcomer.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("while another waits, a newcomer gets %v; want ErrBusy", err)
		}
	})
}

// A waiter is not overtaken if the row is locked for a moment while it keeps newcomers out, as by a renewal.
func TestMySQLJoinsBesideARenewal(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		stranger := opened(t, m.DSN())
		claim := func(d driver.Driver, owner string, queue bool) driver.Claim {
			return claimtest.New(t, d, driver.Request{Resource: "x", Owner: owner, TTL: time.Minute, Queue: queue})
		}
		first := claim(stranger, "first", false)
		claimtest.Granted(t, first)
		var mu sync.Mutex
		var tx *sql.Tx // of the renewal, while it lasts; guarded by mu
		renewed := false
		waiter := claim(watchedBy(t, m, func(text string) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case tx != nil:
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
				tx, renewed = nil, true
			case !renewed && strings.Contains(text, "SET l.crowd = "):
				var err error
				if tx, err = stranger.DB.BeginTx(context.Background(), nil); err == nil {
					_, err = tx.ExecContext(context.Background(), "SELECT name FROM leasehold_locks WHERE name = 'x' FOR UPDATE")
				}
				if err != nil {
					t.Error(err)
				}
			}
		}), "waiter", true)
		if _, err := waiter.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("beside the first: %v; want ErrBusy", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if tx != nil || !renewed {
			t.Fatalf("the row is locked still: %v, was locked: %v", tx != nil, renewed)
		}
		claimtest.Released(t, first)
		if _, err := claim(stranger, "newcomer", false).Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("while another waits, a newcomer gets %v; want ErrBusy", err)
		}
	})
}

// A Try that waits for a row is made again over a new connection, and the server goes on with the first statement. If the
// second attempt is refused, the first is not granted either.
func TestMySQLRefusedTryIsNotGrantedLater(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		holds := opened(t, m.DSN())
		tries, err := stores.Open(t.Context(), "mysql://root@"+m.Addr()+"/locks")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tries.Close() })
		waiting := func() string {
			return m.Must(t, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
		}
		holder := claimtest.New(t, holds, driver.Request{Resource: "x", Owner: "holder", TTL: time.Minute})
		claimtest.Granted(t, holder)
		tx, err := opened(t, m.DSN()).DB.BeginTx(context.Background(), nil)
		if err == nil {
			defer tx.Rollback()
			_, err = tx.ExecContext(t.Context(), "SELECT name FROM leasehold_locks WHERE name = 'x' FOR UPDATE")
		}
		if err != nil {
			t.Fatal(err)
		}
		ended := func(call func() error) <-chan error {
			done := make(chan error, 1)
			go func() { done <- call() }()
			return done
		}
		released := ended(func() error { return holder.Release(context.Background(), driver.End{}) })
		claimtest.Eventually(t, "the release waits for the row", func() bool { return waiting() == "1" })
		late := claimtest.New(t, tries, driver.Request{Resource: "x", Owner: "late", TTL: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		tried := ended(func() error { _, err := late.Try(ctx); return err })
		claimtest.Eventually(t, "the second attempt has an answer, or waits for the row too", func() bool { return len(tried) == 1 || waiting() == "3" })
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := <-released; err != nil {
			t.Error(err)
		}
		refused := errors.Is(<-tried, driver.ErrBusy)
		claimtest.Eventually(t, "nothing waits", func() bool { return waiting() == "0" })
		s, err := holds.Inspect(t.Context(), "x")
		if err != nil || refused && len(s.Holders) > 0 {
			t.Errorf("refused: %v, and later %d hold, %v", refused, len(s.Holders), err)
		}
	})
}

// A release that shares a statement tells why its lease was ended by force before.
func TestMySQLSharedReleaseOfAnEvictedLease(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		const alone = 8 // more share a statement
		m := start(t)
		opened(t, m.DSN())
		var single, shared atomic.Int64
		let := make(chan struct{})
		d := watchedBy(t, m, func(text string) {
			switch {
			case strings.Contains(text, "SET l.owner = ''"):
				shared.Add(1)
			case strings.Contains(text, "SET rev = rev + 1, owner = ''"):
				single.Add(1)
				<-let
			}
		})
		var all sync.WaitGroup
		defer all.Wait()
		defer close(let)
		claims := make([]driver.Claim, alone+2)
		for i := range claims {
			c, err := d.Claim(driver.Request{Resource: fmt.Sprint(i), Owner: "me", TTL: time.Minute})
			if err == nil {
				_, err = c.Try(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			claims[i] = c
		}
		if err := d.Evict(t.Context(), "0", "me", "maintenance"); err != nil {
			t.Fatal(err)
		}
		release := func(i int, want error) func() {
			return func() {
				if err := claims[i].Release(context.Background(), driver.End{}); !errors.Is(err, want) {
					t.Errorf("release of %d: %v; want %v", i, err, want)
				}
			}
		}
		for i := range alone {
			all.Go(release(2+i, nil))
		}
		claimtest.Eventually(t, "releases hang", func() bool { return single.Load() == alone })
		var both sync.WaitGroup
		both.Go(release(0, driver.ErrEvicted))
		both.Go(release(1, nil))
		both.Wait()
		if shared.Load() == 0 {
			t.Error("no statement is shared")
		}
	})
}
