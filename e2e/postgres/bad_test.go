package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// serverOf is p for the tests that are the same on every server.
func serverOf(p *servers.Postgres) databases.Server {
	return databases.Server{
		Address: p.URL(), Open: openWith, Must: p.Must,
		Database: func(name string) string { return strings.Replace(p.URL(), "/postgres?", "/"+name+"?", 1) },
	}
}

func TestPostgresBadDatabases(t *testing.T) {
	t.Parallel()
	databases.BadDatabases(t, serverOf(servers.StartPostgres(t)),
		databases.Bad{Name: "latin", Create: "ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", Try: sqllock.ErrNoSchema, Migrate: driver.ErrUnsupported},
		databases.Bad{Name: "posix", Migrated: true, Spoil: []string{`ALTER TABLE leasehold_locks ALTER name TYPE text COLLATE "POSIX"`}, Try: driver.ErrCorrupt},
		databases.Bad{Name: "no_key", Migrated: true, Spoil: []string{"ALTER TABLE leasehold_locks DROP CONSTRAINT leasehold_locks_pkey"}, Try: driver.ErrCorrupt},
		databases.Bad{Name: "no_table", Migrated: true, Spoil: []string{"DROP TABLE leasehold_locks"}, Try: sqllock.ErrNoSchema},
		databases.Bad{Name: "bad_claims", Migrated: true, Spoil: []string{"UPDATE leasehold_locks SET record = 'not JSON', crowd = expires + 1000000000000, expires = 0"}, Try: driver.ErrCorrupt},
	)
}

func TestPostgresMigratesAtOnce(t *testing.T) {
	t.Parallel()
	databases.MigratesAtOnce(t, serverOf(servers.StartPostgres(t)))
}

func TestPostgresTablesRestored(t *testing.T) {
	t.Parallel()
	databases.TablesRestored(t, serverOf(servers.StartPostgres(t)))
}

func TestPostgresStandbyIsNoGrant(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	primary := opened(t, p.URL(), "")
	if err := databases.Try(t, primary, "held"); err != nil {
		t.Fatal(err)
	}
	s, err := open(p.StartStandby(t).URL(), "")
	d := databases.Opened(t, s, err)
	if err := d.Migrate(t.Context()); err != nil {
		t.Errorf("Migrate, where the tables are: %v", err)
	}
	if err := databases.Try(t, d, "free"); !errors.Is(err, sqllock.ErrReadOnly) {
		t.Errorf("Try: %v; want ErrReadOnly", err)
	}
	if err := databases.Try(t, d, "held"); err == nil {
		t.Error("a standby granted what is held")
	}
	if st, err := d.Inspect(t.Context(), "held"); err != nil || len(st.Holders) != 1 {
		t.Errorf("Inspect: %+v, %v; reading is allowed", st, err)
	}
}

// rights are what a user needs who only locks; the page of the engine has them.
var rights = []string{
	"GRANT SELECT ON leasehold_meta TO locker",
	"GRANT SELECT, INSERT, UPDATE ON leasehold_locks, leasehold_fences TO locker",
	"GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold_places, leasehold_beats TO locker",
}

func TestPostgresLeastRights(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	admin := opened(t, p.URL(), "")
	p.Must(t, "CREATE ROLE locker LOGIN PASSWORD '"+databases.Canary+"'", "CREATE ROLE nobody LOGIN")
	p.Must(t, rights...)
	as := func(user string) string { return strings.Replace(p.URL(), "postgres@", user+"@", 1) }
	locker := as("locker:" + databases.Canary)
	nobody, err := open(as("nobody"), "")
	// The second migrates: nothing to do.
	d := opened(t, locker, locker)
	databases.LeastRights(t, admin, d, databases.Opened(t, nobody, err))
	guard, err := fence.NewSQL(fence.Postgres, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Migrate(t.Context(), d.DB); err != nil {
		t.Errorf("a guard on a table that is there: %v", err)
	}
	databases.CommandRuns(t, strings.Replace(locker, "?sslmode=disable", "", 1))
}

func TestPostgresTimeLimits(t *testing.T) {
	t.Parallel()
	databases.TimeLimits(t, serverOf(servers.StartPostgres(t)), map[string]error{
		"&statement_timeout=100ms": sqllock.ErrTimeout,
		"&lock_timeout=100ms":      sqllock.ErrContended,
	}, 40*time.Second)
}

func TestPostgresPurgePassesOverLockedRows(t *testing.T) {
	t.Parallel()
	databases.PurgePassesOverLockedRows(t, serverOf(servers.StartPostgres(t)))
}

func TestPostgresHeartbeatsPassOverLockedRows(t *testing.T) {
	t.Parallel()
	databases.HeartbeatsPassOverLockedRows(t, serverOf(servers.StartPostgres(t)))
}

func TestPostgresManyTakeAndGiveBack(t *testing.T) {
	databases.ManyTakeAndGiveBack(t, serverOf(servers.StartPostgres(t)))
}

func TestPostgresLockedRowsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	databases.LockedRowsHoldUpNoOthers(t, serverOf(servers.StartPostgres(t)))
}

func TestPostgresFullDiskIsNoGrant(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	dir := p.Disk(t, "2m")
	p.Must(t, "CREATE TABLESPACE small LOCATION '"+dir+"'")
	databases.FullDisk(t, opened(t, p.URL()+"&default_tablespace=small", ""))
}
