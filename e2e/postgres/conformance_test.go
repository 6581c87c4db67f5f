package postgres

import (
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite.
func TestMain(m *testing.M) { databases.Main(m, openAddress) }

// openAddress opens what address says: a URL for the statements and, after a blank, one to
// listen at.
func openAddress(address string) (driver.Driver, error) {
	url, listen, _ := strings.Cut(address, " ")
	return open(url, listen)
}

func open(url, listen string) (databases.Store, error) {
	if listen == "" {
		return openWith(url, nil)
	}
	l, err := pglisten.New(listen)
	if err != nil {
		return databases.Store{}, err
	}
	return openWith(url, &sqllock.Options{Listen: l})
}

func openWith(url string, opts *sqllock.Options) (databases.Store, error) {
	return databases.Open("pgx", url, sqllock.NewPostgres, opts)
}

// opened is a driver of its own on tables that are there.
func opened(t testing.TB, url, listen string) databases.Store {
	t.Helper()
	s, err := open(url, listen)
	return databases.Migrated(t, s, err)
}

func harness(p *servers.Postgres, address string) locktest.Harness {
	return locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := openAddress(address)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Address:      address,
		Pause:        func(testing.TB) (resume func()) { return p.Pause() },
		Restart:      func(t testing.TB) { p.Kill(); p.Start(t) },
		FlushState:   func(t testing.TB) { p.Must(t, "DELETE FROM leasehold_locks") },
		Hang:         databases.HangRow(func(t testing.TB) databases.Store { return opened(t, p.URL(), "") }),
		NoLossNotice: true,
	}
}

func TestPostgresConformance(t *testing.T) {
	apart.Run(t, func(t *testing.T) {
		p := servers.StartPostgres(t)
		opened(t, p.URL(), "")
		locktest.Run(t, harness(p, p.URL()+" "+p.URL()))
	})
}

func TestPostgresIsLinearizable(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	opened(t, p.URL(), "")
	linear.Check(t, func(t testing.TB) driver.Driver { return opened(t, p.URL(), p.URL()) })
}
