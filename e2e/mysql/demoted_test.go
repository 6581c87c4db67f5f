package mysql

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The former primary is set read-only, and its connections stay.
func TestMySQLDemotedPrimary(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		former, next := start(t, servers.Replicates(1)...), start(t, servers.Replicates(2)...)
		dsn := as(t, former, "locker")
		opened(t, former.DSN()) // migrates
		next.Follow(t, former)
		name := servers.StartProxy(t, former.Addr())
		atName := strings.Replace(dsn, former.Addr(), name.Addr(), 1)
		databases.FailsOver(t, databases.Failover{
			URL:   "mysql://locker@" + name.Addr() + "/locks",
			Store: func(t testing.TB) databases.Store { return opened(t, atName) },
			Demote: func(t testing.TB) {
				former.Must(t, "SET GLOBAL read_only = 1")
				caughtUp(t, next, former)
				next.Unfollow(t)
			},
			Next: func(t testing.TB) databases.Store { return opened(t, next.DSN()) },
			Move: func(t testing.TB) { name.Move(next.Addr()) },
		})
	})
}

// A server that is read-only lets an administrator write. It grants to no such user either: others are granted elsewhere.
func TestMySQLGrantsNothingReadOnly(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		d := opened(t, m.DSN()) // of root
		calls := map[string]func() error{}
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			held, fresh := claimed(t, d, "held "+mode.String(), mode), claimed(t, d, "fresh "+mode.String(), mode)
			if _, err := held.Try(t.Context()); err != nil {
				t.Fatal(err)
			}
			calls["Try "+mode.String()] = func() error { return second(fresh.Try(t.Context())) }
			calls["Renew "+mode.String()] = func() error { return second(held.Renew(t.Context(), time.Minute)) }
			calls["Note "+mode.String()] = func() error { return held.Note(t.Context(), "noted") }
			defer func() {
				if err := held.Release(t.Context(), driver.End{}); err != nil {
					t.Errorf("%v Release: %v", mode, err)
				}
			}()
		}
		calls["RaiseFence"] = func() error { return d.RaiseFence(t.Context(), "raised", 1<<40) }
		m.Must(t, "SET GLOBAL read_only = 1")
		for name, call := range calls {
			if err := call(); !errors.Is(err, sqllock.ErrReadOnly) || errors.Is(err, driver.ErrLost) {
				t.Errorf("%s on a server that is read-only: %v; want ErrReadOnly", name, err)
			}
		}
		if _, err := d.Inspect(t.Context(), "held exclusive"); err != nil {
			t.Errorf("Inspect: %v", err)
		}
		m.Must(t, "SET GLOBAL read_only = 0")
		for name, call := range calls {
			if err := soon(t, call); err != nil {
				t.Errorf("%s when it is not any more: %v", name, err)
			}
		}
	})
}

// caughtUp waits until a replica has what its source has.
func caughtUp(t testing.TB, replica, source *servers.MySQL) {
	t.Helper()
	const state = "CHECKSUM TABLE locks.leasehold_locks"
	want := source.Must(t, state)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		got, err := replica.Ask(state)
		if err == nil && got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the replica has %s, %v; want %s: %s", got, err, want, replica.Trouble())
		}
	}
}

// A replica that repeats statements, not rows, does so in transactions, at another time, read-only.
func TestMySQLStatementsAreRepeated(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		source := start(t, append(servers.Replicates(1), "--binlog-format=STATEMENT")...)
		replica := start(t, append(servers.Replicates(2), "--binlog-format=STATEMENT", "--read-only")...)
		d := opened(t, source.DSN())
		replica.Follow(t, source)
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			one, other := claimed(t, d, "kept "+mode.String(), mode), claimed(t, d, "released "+mode.String(), mode)
			for _, err := range []error{
				second(one.Try(t.Context())), second(other.Try(t.Context())), second(one.Renew(t.Context(), 2*time.Minute)), other.Release(t.Context(), driver.End{}),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := d.Rehearse(t.Context()); err != nil {
			t.Error(err)
		}
		caughtUp(t, replica, source)
	})
}

func second(_ driver.Grant, err error) error { return err }
