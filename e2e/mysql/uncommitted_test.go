package mysql

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func claimed(t testing.TB, d driver.Driver, name string, mode driver.Mode) driver.Claim {
	t.Helper()
	return claimtest.New(t, d, driver.Request{Resource: name, Owner: fmt.Sprint("owner of ", name), TTL: time.Minute, Mode: mode})
}

// New connections of a server whose autocommit was switched off would grant in a transaction that stays open.
func TestMySQLAutocommitIsSwitchedOff(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		dsn := as(t, m, "locker")
		d := opened(t, dsn)
		calls := map[string]func(ctx context.Context) error{}
		held := map[string]driver.Claim{}
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			held[mode.String()] = claimed(t, d, "held "+mode.String(), mode)
			fresh := claimed(t, d, "fresh "+mode.String(), mode)
			calls["Try "+mode.String()] = func(ctx context.Context) error { _, err := fresh.Try(ctx); return err }
		}
		for name, c := range held {
			claimtest.Granted(t, c)
			calls["Renew "+name] = func(ctx context.Context) error { _, err := c.Renew(ctx, time.Minute); return err }
			calls["Note "+name] = func(ctx context.Context) error { return c.Note(ctx, "noted") }
		}
		calls["RaiseFence"] = func(ctx context.Context) error { return d.RaiseFence(ctx, "raised", 1<<40) }
		calls["Evict"] = func(ctx context.Context) error {
			return d.Evict(ctx, "held exclusive", "owner of held exclusive", "a test")
		}

		m.Must(t, "SET GLOBAL autocommit = 0")
		m.Cut(t, "locker")
		const rows = "SELECT COALESCE(SUM(rev), 0) FROM locks.leasehold_locks"
		before := m.Must(t, rows)
		for name, call := range calls {
			if err := call(t.Context()); !errors.Is(err, sqllock.ErrUncommitted) || errors.Is(err, driver.ErrLost) {
				t.Errorf("%s with autocommit=0: %v; want ErrUncommitted", name, err)
			}
		}
		if after := m.Must(t, rows); after != before {
			t.Errorf("the rows have changed: %s before, %s after", before, after)
		}

		m.Must(t, "SET GLOBAL autocommit = 1") // connections of before stay as they were opened
		delete(calls, "Evict")
		for name, call := range calls {
			if err := soon(t, func() error { return call(t.Context()) }); err != nil {
				t.Errorf("%s with autocommit=1 again: %v", name, err)
			}
		}
		for name, c := range held {
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Errorf("Release of the %s lease: %v", name, err)
			}
		}
	})
}

// soon calls call until it has no error, for some seconds.
func soon(t testing.TB, call func() error) (err error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = call(); err == nil {
			return nil
		}
	}
	return err
}

// An application that shares the pool has left transactions open. MySQL does not tell: see NewMySQL.
func TestMariaDBTransactionsLeftOpen(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	d := opened(t, m.DSN())
	leaveOpen := func() {
		for range 4 { // which are all taken at once
			conn, err := d.DB.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.ExecContext(t.Context(), "START TRANSACTION"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		leaveOpen()
		c := claimed(t, d, "left "+mode.String(), mode)
		if err := soon(t, func() error { _, err := c.Try(t.Context()); return err }); err != nil {
			t.Fatalf("%v Try: %v", mode, err)
		}
		if n := m.Must(t, "SELECT COUNT(*) FROM locks.leasehold_locks WHERE name = 'left "+mode.String()+"'"); n != "1" {
			t.Errorf("%v: others see %s rows of what was granted; want 1", mode, n)
		}
		leaveOpen()
		if err := soon(t, func() error { _, err := c.Renew(t.Context(), time.Minute); return err }); err != nil {
			t.Errorf("%v Renew: %v", mode, err)
		}
	}
}

// With completion_type=CHAIN the end of a transaction begins another, so that each transaction of a shared pool leaves one
// open, those of sql.DB.BeginTx too.
func TestMySQLTransactionsChain(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		d := opened(t, as(t, m, "locker"))
		m.Must(t, "SET GLOBAL completion_type = CHAIN")
		m.Cut(t, "locker")
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			tx, err := d.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			name := "chained " + mode.String()
			c := claimed(t, d, name, mode)
			_, err = c.Try(t.Context())
			granted := m.Must(t, "SELECT COUNT(*) FROM locks.leasehold_locks WHERE name = '"+name+"' AND (owner <> '' OR crowd > 0)")
			if err == nil && granted != "1" {
				t.Errorf("%v Try: others see %s rows of what was granted; want 1", mode, granted)
			}
			if err != nil && !errors.Is(err, sqllock.ErrUncommitted) {
				t.Errorf("%v Try: %v; want ErrUncommitted", mode, err)
			}
		}
		m.Must(t, "SET GLOBAL completion_type = NO_CHAIN")
		if err := soon(t, func() error { return databases.Try(t, d, "mended") }); err != nil {
			t.Errorf("Try with completion_type=NO_CHAIN again: %v", err)
		}
	})
}
