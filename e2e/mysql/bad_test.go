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

// database is the data source of another database.
func database(m *servers.MySQL, name string) string {
	return strings.Replace(m.DSN(), "/locks", "/"+name, 1)
}

// serverOf is m for the tests that are the same on every server.
func serverOf(m *servers.MySQL) databases.Server {
	return databases.Server{
		Address: m.DSN(), Open: open, Must: m.Must,
		Database: func(name string) string { return database(m, name) },
	}
}

func TestMySQLBadDatabases(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		databases.BadDatabases(t, serverOf(start(t)),
			databases.Bad{Name: "interrupted", Spoil: []string{"CREATE TABLE leasehold_meta (version INT PRIMARY KEY)"}, Try: sqllock.ErrNoSchema},
			databases.Bad{Name: "text_names", Migrated: true, Spoil: []string{"ALTER TABLE leasehold_locks MODIFY name VARCHAR(512) CHARACTER SET utf8mb4"}, Try: driver.ErrCorrupt},
			databases.Bad{Name: "myisam", Migrated: true, Spoil: []string{"ALTER TABLE leasehold_locks ENGINE = MyISAM"}, Try: driver.ErrCorrupt},
			databases.Bad{Name: "no_autocommit", Migrated: true, Client: "?autocommit=0", Try: sqllock.ErrUncommitted},
		)
	})
}

func TestMySQLMigratesAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) { databases.MigratesAtOnce(t, serverOf(start(t))) })
}

// rights are what a user needs who only locks; the page of the engine has them.
var rights = []string{
	"GRANT SELECT ON locks.leasehold_meta TO locker",
	"GRANT SELECT, INSERT, UPDATE ON locks.leasehold_locks TO locker",
	"GRANT SELECT, INSERT, UPDATE ON locks.leasehold_fences TO locker",
	"GRANT SELECT, INSERT, UPDATE, DELETE ON locks.leasehold_places TO locker",
	"GRANT SELECT, INSERT, UPDATE, DELETE ON locks.leasehold_beats TO locker",
}

func TestMySQLLeastRights(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		admin := opened(t, m.DSN())
		m.Must(t, "CREATE USER locker IDENTIFIED BY '"+databases.Canary+"'", "CREATE USER nobody", "GRANT SELECT ON locks.leasehold_meta TO nobody")
		m.Must(t, rights...)
		as := func(user string) string { return strings.Replace(m.DSN(), "root@", user+"@", 1) }
		locker := "locker:" + databases.Canary
		d := opened(t, as(locker)) // which migrates: nothing to do
		nobody, err := open(as("nobody"), nil)
		databases.LeastRights(t, admin, d, databases.Opened(t, nobody, err))
		databases.CommandRuns(t, "mysql://"+locker+"@"+m.Addr()+"/locks")

		m.Must(t, "SET GLOBAL read_only = 1")
		if err := databases.Try(t, d, "free"); !errors.Is(err, sqllock.ErrReadOnly) {
			t.Errorf("Try on a read-only server: %v; want ErrReadOnly", err)
		}
	})
}

const rowWait = "?innodb_lock_wait_timeout=1"

func TestMariaDBTimeLimits(t *testing.T) {
	t.Parallel()
	databases.TimeLimits(t, serverOf(servers.StartMariaDB(t)), map[string]error{
		"?max_statement_time=0.2": sqllock.ErrTimeout,
		rowWait:                   sqllock.ErrContended,
	}, 40*time.Second)
}

// MySQL's max_execution_time ends what only reads, and so no attempt.
func TestMySQLTimeLimits(t *testing.T) {
	t.Parallel()
	databases.TimeLimits(t, serverOf(servers.StartMySQL(t)), map[string]error{
		rowWait + "&max_execution_time=200": sqllock.ErrContended,
	}, 40*time.Second)
}

func TestMySQLPurgePassesOverLockedRows(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) { databases.PurgePassesOverLockedRows(t, serverOf(start(t))) })
}

func TestMySQLHeartbeatsPassOverLockedRows(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) { databases.HeartbeatsPassOverLockedRows(t, serverOf(start(t))) })
}

func TestMySQLTablesRestored(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) { databases.TablesRestored(t, serverOf(start(t))) })
}

func TestMySQLManyTakeAndGiveBack(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) { databases.ManyTakeAndGiveBack(t, serverOf(start(t))) })
}

func TestMySQLLockedRowsHoldUpNoOthers(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) { databases.LockedRowsHoldUpNoOthers(t, serverOf(start(t))) })
}

func TestMySQLFullDiskIsNoGrant(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		dir := servers.MySQLDisk(t, "2m")
		m := start(t, "--loose-innodb-directories="+dir) // MySQL's, which wants to be told
		d := opened(t, m.DSN())
		create := m.Must(t, "SHOW CREATE TABLE locks.leasehold_locks")
		m.Must(t, "DROP TABLE locks.leasehold_locks", strings.Replace(create, "`leasehold_locks`", "locks.leasehold_locks", 1)+" DATA DIRECTORY = '"+dir+"'")
		databases.FullDisk(t, d)
	})
}
