package mysql

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// counted starts a server and returns what counts the prepared statements it has run.
func counted(t testing.TB, start starter) (m *servers.MySQL, count func() int) {
	m = start(t)
	return m, func() int {
		t.Helper()
		n, err := strconv.Atoi(m.Must(t, "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func TestMySQLWaitsCheaply(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m, count := counted(t, start)
		databases.WaitsCheaply(t, func() driver.Driver { return opened(t, m.DSN()) }, count, 20)
	})
}

func TestMySQLRenewsInBatches(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m, count := counted(t, start)
		databases.RenewsInBatches(t, opened(t, m.DSN()), count)
	})
}

// as is the data source of a user called name, by which its connections are found.
func as(t testing.TB, m *servers.MySQL, name string) string {
	m.Must(t, "CREATE USER IF NOT EXISTS "+name, "GRANT ALL ON locks.* TO "+name)
	return strings.Replace(m.DSN(), "root@", name+"@", 1)
}

// All connections are cut again and again.
func TestMySQLKilledConnections(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		dsn := as(t, m, "storm")
		lockers := databases.Lockers(t, 3, func() databases.Store { return opened(t, dsn) })
		databases.Storm(t, lockers, 4*time.Second, 250*time.Millisecond, func() { m.Cut(t, "storm") }, databases.Unknown)
	})
}

func TestMySQLKeepsWhatItGranted(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		databases.KeepsWhatItGranted(t, func() databases.Store { return opened(t, m.DSN()) }, func() {
			m.Kill()
			m.Start(t)
		})
	})
}

// The server is killed again and again under load: holders never overlap.
func TestMySQLKilledServer(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		lockers := databases.Lockers(t, 3, func() databases.Store { return opened(t, m.DSN()) })
		databases.Storm(t, lockers, 6*time.Second, 2*time.Second, func() {
			m.Kill()
			m.Start(t)
		}, databases.Unknown)
	})
}

// The server closes connections that were idle for a while: nobody notices.
func TestMySQLWaitTimeout(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t, "--wait-timeout=3", "--interactive-timeout=3")
		d := opened(t, m.DSN())
		l := databases.Locker(t, d, leasehold.Options{TTL: time.Minute})
		held, err := l.Acquire(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			claimtest.Eventually(t, "the server closes idle connections", func() bool {
				return m.Must(t, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'locks'") == "0"
			})
			if err := held.Extend(t.Context(), time.Minute); err != nil {
				t.Errorf("Extend: %v", err)
			}
			if lease, err := l.Acquire(t.Context(), "other"); err != nil {
				t.Errorf("Acquire: %v", err)
			} else if err := lease.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
		if err := held.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
}

func TestMySQLOneConnection(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		t.Run("polling", func(t *testing.T) {
			d := opened(t, m.DSN())
			databases.OneConnectionIsEnough(t, d)
		})
		t.Run("guard", func(t *testing.T) {
			d := opened(t, m.DSN())
			databases.GuardsWrites(t, d)
		})
		t.Run("rows", func(t *testing.T) {
			d := opened(t, m.DSN())
			databases.RowsOutliveTheirUse(t, d.DB, d.Driver)
			databases.FencesGrowAfterLostRows(t, d.DB, d.Driver)
		})
		isolation := "?transaction_isolation=%27SERIALIZABLE%27"
		if m.Must(t, "SHOW VARIABLES LIKE 'tx_isolation'") != "" { // as MariaDB calls it
			isolation = "?tx_isolation=%27SERIALIZABLE%27"
		}
		// Counting found rows in place of changed ones, statements as text, a client that
		// speaks another character set, modes that forgive much, or read statements in another way.
		for i, options := range []string{"?clientFoundRows=true", "?interpolateParams=true", "?charset=latin1", isolation, "?time_zone=%27-11%3A00%27",
			"?sql_mode=%27%27", "?sql_mode=%27ANSI%2CNO_BACKSLASH_ESCAPES%2CNO_UNSIGNED_SUBTRACTION%27"} {
			t.Run(options, func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprint("options", i)
				m.Must(t, "CREATE DATABASE "+name)
				dsn := database(m, name) + options
				h := locktest.Harness{Open: func(t testing.TB) driver.Driver { return opened(t, dsn) }}
				for _, c := range locktest.Cases() {
					switch c.Name {
					case "NamesAreDistinct", "OneOfManyWins", "ListIsSortedAndLiteral", "LimitIsNeverPassed", "NoteIsReplaced":
						t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
					}
				}
			})
		}
	})
}

var detours atomic.Int64

// detour is a driver whose first connection goes over proxy, and later ones straight.
func detour(t testing.TB, m *servers.MySQL, proxy *servers.Proxy) databases.Store {
	var dials atomic.Int64
	network := "detour" + strconv.FormatInt(detours.Add(1), 10)
	mysql.RegisterDialContext(network, func(ctx context.Context, addr string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			addr = proxy.Addr()
		}
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	})
	d, err := open(strings.Replace(m.DSN(), "tcp(", network+"(", 1), nil)
	return databases.Opened(t, d, err)
}

func TestMySQLLateAttemptChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m, count := counted(t, start)
		opened(t, m.DSN())
		proxy := servers.StartProxy(t, m.Addr())
		databases.LateAttemptChangesNothing(t, detour(t, m, proxy), proxy, count)
	})
}

func TestMySQLStatisticsOfASmallerTable(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		databases.SmallBefore(t, func(t *testing.T) (s databases.Store, analyze func(), scanned func() string) {
			m := start(t, "--innodb-stats-auto-recalc=0")
			s = opened(t, m.DSN())
			return s, func() { m.Must(t, "ANALYZE TABLE locks.leasehold_locks") }, func() string {
				return m.Must(t, "SHOW GLOBAL STATUS LIKE 'Handler_read_rnd_next'")
			}
		})
	})
}
