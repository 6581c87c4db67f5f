package postgres

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// as is a URL with a name, by which its connections are found.
func as(p *servers.Postgres, name string) string { return p.URL() + "&application_name=" + name }

// counted starts a server that counts statements.
func counted(t testing.TB) (p *servers.Postgres, count func() int) {
	p = servers.StartPostgres(t, "shared_preload_libraries=pg_stat_statements")
	p.Must(t, "CREATE EXTENSION pg_stat_statements")
	return p, func() int {
		t.Helper()
		n, err := strconv.Atoi(p.Must(t, "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE '%leasehold\\_%'"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// A waiter that is woken costs next to nothing, and one that polls no more than it may.
func TestPostgresWaitsCheaply(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int{"listening": 5, "polling": 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, count := counted(t)
			listen := ""
			if name == "listening" {
				listen = p.URL()
			}
			databases.WaitsCheaply(t, func() driver.Driver { return opened(t, p.URL(), listen) }, count, most)
		})
	}
}

func TestPostgresRenewsInBatches(t *testing.T) {
	t.Parallel()
	p, count := counted(t)
	databases.RenewsInBatches(t, opened(t, p.URL(), ""), count)
}

// All connections are cut again and again, that which listens too.
func TestPostgresTerminatedConnections(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	lockers := databases.Lockers(t, 3, func() databases.Store { return opened(t, as(p, "storm"), as(p, "storm")) })
	databases.Storm(t, lockers, 4*time.Second, 250*time.Millisecond, func() {
		p.Must(t, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'storm'")
	}, databases.Unknown)
}

func TestPostgresKeepsWhatItGranted(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	databases.KeepsWhatItGranted(t, func() databases.Store { return opened(t, p.URL(), "") }, func() {
		p.Kill()
		p.Start(t)
	})
}

// The server is killed again and again under load: holders never overlap.
func TestPostgresKilledServer(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	lockers := databases.Lockers(t, 3, func() databases.Store { return opened(t, p.URL(), p.URL()) })
	databases.Storm(t, lockers, 6*time.Second, 1500*time.Millisecond, func() {
		p.Kill()
		p.Start(t)
	}, databases.Unknown)
}

func TestPostgresOneConnection(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	for name, listen := range map[string]string{"polling": "", "listening": p.URL()} {
		t.Run(name, func(t *testing.T) {
			d := opened(t, p.URL(), listen)
			databases.OneConnectionIsEnough(t, d)
		})
	}
	t.Run("guard", func(t *testing.T) {
		d := opened(t, p.URL(), "")
		databases.GuardsWrites(t, d)
	})
	t.Run("rows", func(t *testing.T) {
		d := opened(t, p.URL(), "")
		databases.RowsOutliveTheirUse(t, d.DB, d.Driver)
		quick := opened(t, p.URL()+"&synchronous_commit=off", "")
		databases.FencesGrowAfterLostRows(t, quick.DB, quick.Driver)
	})
	// Every transaction serializable: those that fail for it are repeated.
	t.Run("serializable", func(t *testing.T) {
		lockers := databases.Lockers(t, 3, func() databases.Store {
			return opened(t, p.URL()+"&default_transaction_isolation=serializable", p.URL())
		})
		databases.Storm(t, lockers, 2*time.Second, time.Second, databases.Nothing, databases.None)
	})
}

// detour is a driver whose first connection goes over proxy, and later ones straight.
func detour(t testing.TB, p *servers.Postgres, proxy *servers.Proxy) databases.Store {
	t.Helper()
	config, err := pgx.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int64
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			addr = proxy.Addr()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	db := stdlib.OpenDB(*config)
	d, err := sqllock.NewPostgres(db, nil)
	return databases.Opened(t, databases.Store{Driver: d, DB: db}, err)
}

func TestPostgresLateAttemptChangesNothing(t *testing.T) {
	t.Parallel()
	p, count := counted(t)
	opened(t, p.URL(), "")
	proxy := servers.StartProxy(t, p.Addr())
	databases.LateAttemptChangesNothing(t, detour(t, p, proxy), proxy, count)
}

func TestPostgresStatisticsOfASmallerTable(t *testing.T) {
	t.Parallel()
	databases.SmallBefore(t, func(t *testing.T) (s databases.Store, analyze func(), scanned func() string) {
		p := servers.StartPostgres(t, "autovacuum=off")
		s = opened(t, p.URL(), "")
		return s, func() { p.Must(t, "VACUUM ANALYZE leasehold_locks") }, func() string {
			if _, err := s.DB.ExecContext(t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil { // from PostgreSQL 15
				t.Fatal(err)
			}
			return p.Must(t, "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'leasehold_locks'")
		}
	})
}
