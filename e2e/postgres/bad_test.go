package postgres

import (
	"context"
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

	"github.com/jackc/pgx/v5"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/sqllock"
)

const margin = 5 * time.Second

// fresh makes a database of its own and returns its URL.
func fresh(t testing.TB, p *servers.Postgres, name, options string) string {
	t.Helper()
	p.Must(t, "CREATE DATABASE "+name+" "+options)
	return strings.Replace(p.URL(), "/postgres?", "/"+name+"?", 1)
}

func claimOn(t testing.TB, d driver.Driver, name string) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: name, Owner: fmt.Sprint("owner-of-", name, time.Now().UnixNano()), TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tryOn is what an attempt on d ends with.
func tryOn(t testing.TB, d driver.Driver, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*margin)
	defer cancel()
	_, err := claimOn(t, d, name).Try(ctx)
	return err
}

func on(t testing.TB, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func notMigrated(t testing.TB, url string, opts *sqllock.Options) *sqllock.Driver {
	t.Helper()
	s, err := open(url, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	d, err := sqllock.NewPostgres(s.db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestPostgresBadDatabases(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	for name, test := range map[string]struct {
		options string
		spoil   []string
		want    error
		migrate error
	}{
		"no_tables":  {want: sqllock.ErrNoSchema},
		"alien":      {spoil: []string{"CREATE TABLE leasehold_locks (door text)"}, want: sqllock.ErrNoSchema, migrate: driver.ErrCorrupt},
		"newer":      {spoil: []string{"CREATE TABLE leasehold_meta (version int)", "INSERT INTO leasehold_meta VALUES (2)"}, want: driver.ErrCorrupt, migrate: driver.ErrCorrupt},
		"alien_meta": {spoil: []string{"CREATE TABLE leasehold_meta (door text)"}, want: driver.ErrCorrupt, migrate: driver.ErrCorrupt},
		"latin":      {options: "ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", want: sqllock.ErrNoSchema, migrate: driver.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			url := fresh(t, p, name, test.options)
			on(t, url, test.spoil...)
			d := notMigrated(t, url, nil)
			if err := tryOn(t, d, "x"); !errors.Is(err, test.want) {
				t.Errorf("Try: %v; want %v", err, test.want)
			}
			err := d.Migrate(t.Context())
			if err == nil && test.migrate != nil {
				err = tryOn(t, d, "x")
			}
			if !errors.Is(err, test.migrate) {
				t.Errorf("Migrate and Try: %v; want %v", err, test.migrate)
			}
		})
	}
	t.Run("spoilt later", func(t *testing.T) {
		for i, test := range []struct {
			spoil string
			want  error
		}{
			{`ALTER TABLE leasehold_locks ALTER name TYPE text COLLATE "POSIX"`, driver.ErrCorrupt},
			{"ALTER TABLE leasehold_locks DROP COLUMN crowd", driver.ErrCorrupt},
			{"ALTER TABLE leasehold_locks DROP CONSTRAINT leasehold_locks_pkey", driver.ErrCorrupt},
			{"DROP TABLE leasehold_locks", sqllock.ErrNoSchema},
			{"UPDATE leasehold_locks SET claims = 'not JSON', crowd = expires + 1000000000, expires = 0", driver.ErrCorrupt},
		} {
			url := fresh(t, p, fmt.Sprint("spoilt", i), "")
			before := opened(t, url, "")
			if err := tryOn(t, before, "x"); err != nil {
				t.Fatal(err)
			}
			on(t, url, test.spoil)
			if err := tryOn(t, notMigrated(t, url, nil), "x"); !errors.Is(err, test.want) {
				t.Errorf("%s: Try: %v; want %v", test.spoil, err, test.want)
			}
		}
	})
}

func TestPostgresMigratesAtOnce(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	p.Must(t, "CREATE SCHEMA apart")
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range 10 {
		opts := &sqllock.Options{Prefix: "mutex_"}
		if i%2 == 0 {
			opts.Schema = "apart"
		}
		d := notMigrated(t, p.URL(), opts)
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
	// Other schemas are other locks, by the same names.
	for _, schema := range []string{"", "apart"} {
		if err := tryOn(t, notMigrated(t, p.URL(), &sqllock.Options{Prefix: "mutex_", Schema: schema}), "orders/42"); err != nil {
			t.Error(err)
		}
	}
}

func TestPostgresStandbyIsNoGrant(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	primary := opened(t, p.URL(), "")
	if err := tryOn(t, primary, "held"); err != nil {
		t.Fatal(err)
	}
	s := p.StartStandby(t)
	d := notMigrated(t, s.URL(), nil)
	if err := d.Migrate(t.Context()); err != nil {
		t.Errorf("Migrate, where the tables are: %v", err)
	}
	if err := tryOn(t, d, "free"); !errors.Is(err, sqllock.ErrReadOnly) {
		t.Errorf("Try: %v; want ErrReadOnly", err)
	}
	if err := tryOn(t, d, "held"); err == nil {
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
}

const canary = "s3cr3t-canary"

func TestPostgresLeastRights(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	admin := opened(t, p.URL(), "")
	p.Must(t, "CREATE ROLE locker LOGIN PASSWORD '"+canary+"'", "CREATE ROLE nobody LOGIN")
	p.Must(t, rights...)
	url := strings.Replace(p.URL(), "postgres@", "locker:"+canary+"@", 1)
	d := opened(t, url, url) // which migrates: nothing to do
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
	waiter, err := d.Claim(driver.Request{Resource: "x", Owner: "a waiter", TTL: time.Minute, Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = waiter.Try(t.Context())
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok {
		t.Fatalf("Try: %v", err)
	}
	if err := c.Release(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-busy.Wake:
	case <-time.After(margin):
		t.Error("not woken")
	}
	if _, err := waiter.Try(t.Context()); err != nil {
		t.Error(err)
	}
	if err := d.Evict(t.Context(), "x", "a waiter", "a test"); err != nil {
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
	nobody := notMigrated(t, strings.Replace(p.URL(), "postgres@", "nobody@", 1), nil)
	if err := tryOn(t, nobody, "x"); !errors.Is(err, sqllock.ErrDenied) {
		t.Errorf("Try without rights: %v; want ErrDenied", err)
	}
	commandRuns(t, strings.Replace(url, "?sslmode=disable", "", 1))
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
func blocking(t testing.TB, url, name string) (free func()) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	free = sync.OnceFunc(func() { conn.Close(context.Background()) })
	t.Cleanup(free)
	if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1 FROM leasehold_locks WHERE name = $1 FOR UPDATE", name); err != nil {
		t.Fatal(err)
	}
	return free
}

func TestPostgresTimeLimits(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d := opened(t, p.URL(), "")
	c := claimOn(t, d, "x")
	if _, err := c.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for setting, want := range map[string]error{"statement_timeout": sqllock.ErrTimeout, "lock_timeout": sqllock.ErrContended} {
		free := blocking(t, p.URL(), "x")
		limited := opened(t, p.URL()+"&"+setting+"=100ms", "")
		start := time.Now()
		if err := tryOn(t, limited, "x"); !errors.Is(err, want) {
			t.Errorf("Try with %s: %v; want %v", setting, err, want)
		}
		if took := time.Since(start); took > 2*margin {
			t.Errorf("Try with %s took %v", setting, took)
		}
		free()
		if err := tryOn(t, d, "x"); err != nil {
			t.Errorf("after %s: %v; want a grant", setting, err)
		}
		if st, err := d.Inspect(t.Context(), "x"); err == nil && len(st.Holders) == 1 {
			if err := d.Evict(t.Context(), "x", st.Holders[0].Owner, "the next round"); err != nil {
				t.Error(err)
			}
		}
	}
}

// A batch of renewals and a transaction lock the same two rows in opposite orders, and the
// database ends the batch, which is repeated.
func TestPostgresDeadlockIsRepeated(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, "deadlock_timeout=500ms")
	d := opened(t, p.URL(), "")
	var renewals []driver.Renewal
	for _, name := range []string{"a", "b"} {
		c := claimOn(t, d, name)
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		renewals = append(renewals, driver.Renewal{Claim: c, TTL: time.Minute})
	}
	cross(t, p, d.Driver, renewals, "a", "b")
	cross(t, p, d.Driver, renewals, "b", "a") // one of them is not the order of the batch
	for end := time.Now().Add(3 * margin); p.Must(t, "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'") == "0"; {
		if time.Now().After(end) {
			t.Fatal("there was no deadlock")
		}
	}
}

// cross locks the rows of two names by a transaction that waits for ever, with a batch of
// renewals in between.
func cross(t *testing.T, p *servers.Postgres, d *sqllock.Driver, renewals []driver.Renewal, first, second string) {
	tx, err := pgx.Connect(t.Context(), p.URL()+"&deadlock_timeout=1h")
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close(context.Background())
	do := func(text string) {
		if _, err := tx.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	do("BEGIN")
	do("UPDATE leasehold_locks SET note = 'x' WHERE name = '" + first + "'")
	batch := slices.Clone(renewals)
	var renewing sync.WaitGroup
	renewing.Go(func() { d.RenewAll(t.Context(), batch) })
	for end := time.Now().Add(margin); p.Must(t, "SELECT count(*) FROM pg_locks WHERE NOT granted") == "0"; {
		if time.Now().After(end) {
			t.Fatal("the batch does not wait")
		}
	}
	do("UPDATE leasehold_locks SET note = 'x' WHERE name = '" + second + "'")
	do("COMMIT")
	renewing.Wait()
	for _, r := range batch {
		if r.Err != nil {
			t.Errorf("renewal: %v", r.Err)
		}
	}
}

// A full disk: an error that says so, and no lock.
func TestPostgresFullDiskIsNoGrant(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	dir := p.Disk(t, "2m")
	p.Must(t, "CREATE TABLESPACE small LOCATION '"+dir+"'")
	url := p.URL() + "&default_tablespace=small"
	d := opened(t, url, "")
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
