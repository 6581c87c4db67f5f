package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// A watched connector calls before with each prepared statement, before it is executed.
type watched struct {
	sqldriver.Connector
	before func(text string)
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
	before func(text string)
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
	before func(text string)
}

func (s watchedStmt) ExecContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	s.before(s.text)
	return s.fullStmt.ExecContext(ctx, args)
}

// A row that somebody locks after a batch was looked through, and before it is renewed, is passed over: the statement
// keeps no others locked while it waits.
func TestMySQLLockedInBetween(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		stranger := opened(t, m.DSN())
		config, err := mysql.ParseDSN(m.DSN())
		if err != nil {
			t.Fatal(err)
		}
		connector, err := mysql.NewConnector(config)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := stranger.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		locked := false
		db := sql.OpenDB(watched{connector, func(text string) {
			if locked || !strings.Contains(text, "UPDATE (SELECT") {
				return
			}
			locked = true
			if _, err := tx.ExecContext(context.Background(), "SELECT name FROM leasehold_locks WHERE name = 'row/29' FOR UPDATE"); err != nil {
				t.Error(err)
			}
		}})
		t.Cleanup(func() { db.Close() })
		made, err := sqllock.NewMySQL(db, nil)
		d := databases.Migrated(t, databases.Store{Driver: made, DB: db}, err)
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
