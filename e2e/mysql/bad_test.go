package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/sqllock"
)

const margin = 5 * time.Second

// fresh makes a database of its own and returns its data source.
func fresh(t testing.TB, m *servers.MariaDB, name string) string {
	t.Helper()
	m.Must(t, "CREATE DATABASE "+name)
	return strings.Replace(m.DSN(), "/locks", "/"+name, 1)
}

func claimOn(t testing.TB, d driver.Driver, name string) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: name, Owner: fmt.Sprint("owner-", time.Now().UnixNano()), TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tryOn is what an attempt on d ends with.
func tryOn(t testing.TB, d driver.Driver, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*margin)
	defer cancel()
	_, err := claimOn(t, d, name).Try(ctx)
	return err
}

func on(t testing.TB, dsn string, statements ...string) {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func notMigrated(t testing.TB, dsn string, opts *sqllock.Options) *sqllock.Driver {
	t.Helper()
	s, err := open(dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	d, err := sqllock.NewMySQL(s.db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestMySQLBadDatabases(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	for name, test := range map[string]struct {
		spoil   []string
		want    error
		migrate error
	}{
		"no_tables":   {want: sqllock.ErrNoSchema},
		"interrupted": {spoil: []string{"CREATE TABLE leasehold_meta (version INT PRIMARY KEY)"}, want: sqllock.ErrNoSchema},
		"alien":       {spoil: []string{"CREATE TABLE leasehold_locks (door TEXT)"}, want: sqllock.ErrNoSchema, migrate: driver.ErrCorrupt},
		"newer":       {spoil: []string{"CREATE TABLE leasehold_meta (version INT)", "INSERT INTO leasehold_meta VALUES (2)"}, want: driver.ErrCorrupt, migrate: driver.ErrCorrupt},
		"alien_meta":  {spoil: []string{"CREATE TABLE leasehold_meta (door TEXT)"}, want: driver.ErrCorrupt, migrate: driver.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			dsn := fresh(t, m, name)
			on(t, dsn, test.spoil...)
			d := notMigrated(t, dsn, nil)
			if err := tryOn(t, d, "x"); !errors.Is(err, test.want) {
				t.Errorf("Try: %v; want %v", err, test.want)
			}
			err := d.Migrate(t.Context())
			if err == nil {
				err = tryOn(t, d, "x")
			}
			if !errors.Is(err, test.migrate) {
				t.Errorf("Migrate and Try: %v; want %v", err, test.migrate)
			}
		})
	}
	for i, spoil := range []string{
		"ALTER TABLE leasehold_locks MODIFY name VARCHAR(512) CHARACTER SET utf8mb4",
		"ALTER TABLE leasehold_locks ENGINE = MyISAM",
		"ALTER TABLE leasehold_locks DROP COLUMN crowd",
	} {
		dsn := fresh(t, m, fmt.Sprint("spoilt", i))
		opened(t, dsn)
		on(t, dsn, spoil)
		if err := tryOn(t, notMigrated(t, dsn, nil), "x"); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("%s: Try: %v; want ErrCorrupt", spoil, err)
		}
	}
	opened(t, m.DSN())
	if err := tryOn(t, notMigrated(t, m.DSN()+"?autocommit=0", nil), "x"); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Try without autocommit: %v; want ErrUnsupported", err)
	}
}

func TestMySQLMigratesAtOnce(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	m.Must(t, "CREATE DATABASE apart")
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range 10 {
		opts := &sqllock.Options{Prefix: "mutex_"}
		if i%2 == 0 {
			opts.Schema = "apart"
		}
		d := notMigrated(t, m.DSN(), opts)
		all.Go(func() {
			<-start
			if err := d.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
			if err := d.RaiseFence(t.Context(), "orders/42", 7); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
	// Other databases are other locks, by the same names.
	for _, schema := range []string{"", "apart"} {
		if err := tryOn(t, notMigrated(t, m.DSN(), &sqllock.Options{Prefix: "mutex_", Schema: schema}), "orders/42"); err != nil {
			t.Error(err)
		}
	}
}

// rights are what a user needs who only locks; the page of the engine has them.
var rights = []string{
	"GRANT SELECT ON locks.leasehold_meta TO locker",
	"GRANT SELECT, INSERT, UPDATE ON locks.leasehold_locks TO locker",
	"GRANT SELECT, INSERT, UPDATE ON locks.leasehold_fences TO locker",
}

const canary = "s3cr3t-canary"

func TestMySQLLeastRights(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	admin := opened(t, m.DSN())
	m.Must(t, "CREATE USER locker IDENTIFIED BY '"+canary+"'", "CREATE USER nobody", "GRANT SELECT ON locks.leasehold_meta TO nobody")
	m.Must(t, rights...)
	dsn := strings.Replace(m.DSN(), "root@", "locker:"+canary+"@", 1)
	d := opened(t, dsn) // which migrates: nothing to do
	c := claimOn(t, d, "x")
	if _, err := c.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Renew(t.Context(), 2*time.Minute); err != nil {
		t.Error(err)
	}
	if err := c.(driver.Noter).Note(t.Context(), "a note"); err != nil {
		t.Error(err)
	}
	if err := d.RaiseFence(t.Context(), "y", 7); err != nil {
		t.Error(err)
	}
	if err := d.Evict(t.Context(), "x", ownerOf(t, d, "x"), "a test"); err != nil {
		t.Error(err)
	}
	if all, err := d.List(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("List: %v, %v", all, err)
	}
	if err := d.Purge(t.Context()); !errors.Is(err, sqllock.ErrDenied) || strings.Contains(err.Error(), canary) {
		t.Errorf("Purge: %v; want ErrDenied", err)
	}
	if err := admin.Purge(t.Context()); err != nil {
		t.Error(err)
	}
	nobody := notMigrated(t, strings.Replace(m.DSN(), "root@", "nobody@", 1), nil)
	if err := tryOn(t, nobody, "x"); !errors.Is(err, sqllock.ErrDenied) {
		t.Errorf("Try without rights: %v; want ErrDenied", err)
	}
	commandRuns(t, "mysql://locker:"+canary+"@"+m.Addr()+"/locks")

	m.Must(t, "SET GLOBAL read_only = 1")
	if err := tryOn(t, d, "free"); !errors.Is(err, sqllock.ErrReadOnly) {
		t.Errorf("Try on a read-only server: %v; want ErrReadOnly", err)
	}
}

func ownerOf(t testing.TB, d driver.Inspector, name string) string {
	t.Helper()
	st, err := d.Inspect(t.Context(), name)
	if err != nil || len(st.Holders) != 1 {
		t.Fatalf("Inspect: %+v, %v; want one holder", st, err)
	}
	return st.Holders[0].Owner
}

// commandRuns runs the command on a store.
func commandRuns(t *testing.T, url string) {
	binary := filepath.Join(t.TempDir(), "leasehold")
	build := exec.Command("go", "build", "-o", binary, "github.com/leasehold-go/leasehold/cmd/leasehold")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"run", "job", "--", "true"}, {"ls"}, {"show", "job"}} {
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+url)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), canary) {
			t.Errorf("leasehold %v: %v\n%s", args, err, out)
		}
	}
}

// blocking keeps the row of a resource locked until the test ends or free is called.
func blocking(t testing.TB, dsn, name string) (tx *sql.Tx, free func()) {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if tx, err = db.BeginTx(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	free = sync.OnceFunc(func() { _ = tx.Rollback() }) // or it was committed
	t.Cleanup(free)
	if _, err := tx.Exec("UPDATE leasehold_locks SET note = 'x' WHERE name = ?", name); err != nil {
		t.Fatal(err)
	}
	return tx, free
}

func TestMySQLTimeLimits(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	d := opened(t, m.DSN())
	if err := d.RaiseFence(t.Context(), "x", 7); err != nil {
		t.Fatal(err)
	}
	for setting, want := range map[string]error{"max_statement_time=0.2": sqllock.ErrTimeout, "innodb_lock_wait_timeout=1": sqllock.ErrContended} {
		_, free := blocking(t, m.DSN(), "x")
		limited := opened(t, m.DSN()+"?"+setting)
		start := time.Now()
		if err := tryOn(t, limited, "x"); !errors.Is(err, want) {
			t.Errorf("Try with %s: %v; want %v", setting, err, want)
		}
		if took := time.Since(start); took > 5*margin {
			t.Errorf("Try with %s took %v", setting, took)
		}
		free()
		if err := tryOn(t, d, "x"); err != nil {
			t.Errorf("after %s: %v; want a grant", setting, err)
		}
		if err := d.Evict(t.Context(), "x", ownerOf(t, d, "x"), "the next round"); err != nil {
			t.Error(err)
		}
	}
}

// A batch of renewals and a transaction lock the same two rows in opposite orders, and the
// database ends the batch, which has written less, and is repeated.
func TestMySQLDeadlockIsRepeated(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	d := opened(t, m.DSN())
	var renewals []driver.Renewal
	for _, name := range []string{"a", "b", "c"} {
		c := claimOn(t, d, name)
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		renewals = append(renewals, driver.Renewal{Claim: c, TTL: time.Minute})
	}
	tx, _ := blocking(t, m.DSN(), "c")
	for i := range 10 { // the database ends who has written less
		if _, err := tx.Exec("INSERT INTO leasehold_fences VALUES (?, 1, '')", i); err != nil {
			t.Fatal(err)
		}
	}
	batch := slices.Clone(renewals)
	var renewing sync.WaitGroup
	renewing.Go(func() { d.RenewAll(t.Context(), batch) })
	for end := time.Now().Add(margin); m.Must(t, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") == "0"; {
		if time.Now().After(end) {
			t.Fatal("the batch does not wait")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := tx.Exec("UPDATE leasehold_locks SET note = 'x' WHERE name = 'a'"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	renewing.Wait()
	for _, r := range batch {
		if r.Err != nil {
			t.Errorf("renewal: %v", r.Err)
		}
	}
	if n := m.Must(t, "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"); n == "0" {
		t.Error("there was no deadlock")
	}
}

// A full disk: an error that says so, and no lock.
func TestMySQLFullDiskIsNoGrant(t *testing.T) {
	t.Parallel()
	m := servers.StartMariaDB(t)
	dir := m.Disk(t, "2m")
	d := opened(t, m.DSN())
	create := m.Must(t, "SHOW CREATE TABLE locks.leasehold_locks")
	m.Must(t, "DROP TABLE locks.leasehold_locks", strings.Replace(create, "`leasehold_locks`", "locks.leasehold_locks", 1)+" DATA DIRECTORY = '"+dir+"'")
	for i := range 5000 {
		name := fmt.Sprint(strings.Repeat("long/", 90), i)
		err := tryOn(t, d, name)
		if err == nil {
			continue
		}
		if !errors.Is(err, sqllock.ErrFull) {
			t.Fatalf("Try: %v; want ErrFull", err)
		}
		if st, err := d.Inspect(t.Context(), name); err != nil || len(st.Holders) > 0 {
			t.Errorf("Inspect: %+v, %v; want no holder", st, err)
		}
		return
	}
	t.Error("the disk never was full")
}
