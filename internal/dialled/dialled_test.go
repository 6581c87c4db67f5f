package dialled

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// answerWithin is how long an idle connection may take to answer.
var answerWithin = new(Pool).Links.Patience()

// farewell is how long Close waits, like pgx's.
const farewell = 5 * time.Second

// A network makes connections that fall silent when it forgets them.
type network struct {
	mu    sync.Mutex
	made  []*line
	pings int
}

type line struct {
	network *network
	silent  bool // guarded by network.mu
	closed  bool // guarded by network.mu
}

func (n *network) Connect(context.Context) (driver.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &line{network: n}
	n.made = append(n.made, l)
	return l, nil
}

func (*network) Driver() driver.Driver { return nil }

func (n *network) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.made {
		l.silent = true
	}
}

// live returns how many connections were made, and how many of them are open.
func (n *network) live() (made, open int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.made {
		if !l.closed {
			open++
		}
	}
	return len(n.made), open
}

func (l *line) ask(ctx context.Context) error {
	l.network.mu.Lock()
	silent := l.silent
	l.network.mu.Unlock()
	if silent {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (l *line) Ping(ctx context.Context) error {
	l.network.mu.Lock()
	l.network.pings++
	l.network.mu.Unlock()
	return l.ask(ctx)
}

func (l *line) ExecContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(0), l.ask(ctx)
}

// Close waits for the server to answer its goodbye.
func (l *line) Close() error {
	ctx, stop := context.WithTimeout(context.Background(), farewell)
	defer stop()
	l.network.mu.Lock()
	l.closed = true
	l.network.mu.Unlock()
	return l.ask(ctx)
}

func (*line) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return nil, errors.ErrUnsupported
}
func (*line) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (*line) PrepareContext(context.Context, string) (driver.Stmt, error) {
	return nil, errors.ErrUnsupported
}
func (*line) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }
func (*line) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return nil, errors.ErrUnsupported
}
func (*line) ResetSession(context.Context) error       { return nil }
func (*line) CheckNamedValue(*driver.NamedValue) error { return nil }

// pooledTest runs test with a pool of n idle connections.
func pooledTest(t *testing.T, n int, test func(t *testing.T, db *sql.DB, net *network)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := new(network)
		db := Open(net)
		db.SetMaxIdleConns(n)
		var all []*sql.Conn
		for range n {
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, conn)
		}
		for _, conn := range all {
			conn.Close()
		}
		test(t, db, net)
		db.Close()
		time.Sleep(farewell + time.Second)
	})
}

func exec(t *testing.T, db *sql.DB, within time.Duration) error {
	ctx, stop := context.WithTimeout(t.Context(), within)
	defer stop()
	_, err := db.ExecContext(ctx, "x")
	return err
}

func TestForgottenConnectionsCostOnePing(t *testing.T) {
	pooledTest(t, 4, func(t *testing.T, db *sql.DB, net *network) {
		time.Sleep(askAfter)
		net.forget()
		start := time.Now()
		if err := exec(t, db, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > answerWithin {
			t.Errorf("a call took %v; want %v at most", took, answerWithin)
		}
		start = time.Now()
		for range 4 {
			if err := exec(t, db, time.Second); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("those that followed took %v", took)
		}
		if made, _ := net.live(); made != 5 {
			t.Errorf("%d connections were made; want one more than four", made)
		}
	})
}

// A call with half a second waits half as long.
func TestPingLeavesTimeForAnotherConnection(t *testing.T) {
	pooledTest(t, 4, func(t *testing.T, db *sql.DB, net *network) {
		time.Sleep(askAfter)
		net.forget()
		if err := exec(t, db, answerWithin/2); err != nil {
			t.Error(err)
		}
	})
}

// A call with little time gives up the connections that it asks. It does not know whether a busy
// server is about to answer, so the others stay.
func TestCallInAHurryKeepsThePool(t *testing.T) {
	pooledTest(t, 4, func(t *testing.T, db *sql.DB, net *network) {
		time.Sleep(askAfter)
		net.forget()
		if err := exec(t, db, 100*time.Millisecond); err != nil {
			t.Error(err)
		}
		if Of(db).CondemnedSince(time.Time{}) {
			t.Error("it has condemned all connections")
		}
	})
}

func TestBusyConnectionsAreNotAsked(t *testing.T) {
	pooledTest(t, 1, func(t *testing.T, db *sql.DB, net *network) {
		for range 100 {
			if err := exec(t, db, time.Second); err != nil {
				t.Fatal(err)
			}
			time.Sleep(askAfter / 2)
		}
		if net.pings != 0 {
			t.Errorf("%d pings of a connection that was never idle for %v", net.pings, askAfter)
		}
	})
}

func TestCondemnedConnectionsAreClosed(t *testing.T) {
	pooledTest(t, 3, func(t *testing.T, db *sql.DB, net *network) {
		busy, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		p := Of(db)
		p.Condemn(time.Now())
		p.Condemn(time.Now().Add(-time.Hour)) // this time is condemned already
		if err := exec(t, db, time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := busy.ExecContext(t.Context(), "x"); err != nil {
			t.Errorf("a connection in use: %v; want it to stay in use", err)
		}
		busy.Close()
		synctest.Wait()
		if made, open := net.live(); made != 4 || open != 1 {
			t.Errorf("%d connections were made, %d are open; want 4 and 1", made, open)
		}
	})
}

func TestOfIsNilForOthers(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(new(network))
	defer db.Close()
	if Of(db) != nil {
		t.Error("a pool that Open has not made is ours")
	}
}
