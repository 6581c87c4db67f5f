package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A late connects as modernc.org/sqlite does, and leaves one statement on its way when its
// caller has gone, as database/sql allows: such as one that another process is to run.
type late struct {
	path string
	db   *sql.DB // runs what comes late
	next atomic.Pointer[lateStatement]
}

type lateStatement struct {
	begins  string
	letGo   chan struct{}
	arrived chan error
}

func (l *late) Driver() sqldriver.Driver { return l.db.Driver() }

func (l *late) Connect(context.Context) (sqldriver.Conn, error) {
	conn, err := l.db.Driver().Open(l.path)
	if err != nil {
		return nil, err
	}
	return lateConn{conn.(fullConn), l}, nil
}

// fullConn is what a connection of modernc.org/sqlite can do.
type fullConn interface {
	sqldriver.Conn
	sqldriver.ConnPrepareContext
	sqldriver.ConnBeginTx
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.SessionResetter
	sqldriver.Validator
}

type lateConn struct {
	fullConn
	late *late
}

func (c lateConn) PrepareContext(ctx context.Context, text string) (sqldriver.Stmt, error) {
	stmt, err := c.fullConn.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	return lateStmt{stmt.(fullStmt), text, c.late}, nil
}

type fullStmt interface {
	sqldriver.Stmt
	sqldriver.StmtExecContext
	sqldriver.StmtQueryContext
}

type lateStmt struct {
	fullStmt
	text string
	late *late
}

func (s lateStmt) QueryContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	held := s.late.next.Load()
	if held == nil || !strings.HasPrefix(s.text, held.begins) || !s.late.next.CompareAndSwap(held, nil) {
		return s.fullStmt.QueryContext(ctx, args)
	}
	var values []any
	for _, a := range args {
		values = append(values, a.Value)
	}
	go func() {
		<-held.letGo
		_, err := s.late.db.Exec(s.text, values...)
		held.arrived <- err
	}()
	<-ctx.Done()
	return nil, ctx.Err()
}

// What arrives after its claim was given up grants nothing, and is in nobody's way.
func TestSQLiteLateAttemptChangesNothing(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	l := &late{path: path, db: openDB(t, path)}
	db := sql.OpenDB(l)
	t.Cleanup(func() { db.Close() })
	d := newSQLite(t, db, nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	c := claim(t, d, driver.Request{})
	granted(t, c) // all is prepared
	released(t, c)

	attempt := &lateStatement{begins: "INSERT INTO", letGo: make(chan struct{}), arrived: make(chan error, 1)}
	l.next.Store(attempt)
	gone := claim(t, d, driver.Request{})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := gone.Try(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Try without an answer: %v", err)
	}
	if l.next.Load() != nil {
		t.Fatal("the attempt was not held back")
	}
	if err := gone.Release(bounded(t), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Fatalf("Release: %v; want ErrLost, as nothing had arrived", err)
	}
	close(attempt.letGo)
	if err := <-attempt.arrived; err != nil {
		t.Fatal(err)
	}
	if st, err := d.Inspect(bounded(t), "orders/42"); err != nil || len(st.Holders) > 0 {
		t.Errorf("after a late attempt: %+v, %v; want no holder", st, err)
	}
	next := claim(t, openSQLite(t, path), driver.Request{})
	granted(t, next)
	released(t, next)
}
