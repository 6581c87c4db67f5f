package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/sqllock"
)

// margin is how late the machine may be.
const margin = 5 * time.Second

func openDB(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// newSQLite is a Driver that was not migrated.
func newSQLite(t testing.TB, db *sql.DB, opts *sqllock.Options) *sqllock.Driver {
	t.Helper()
	d, err := sqllock.NewSQLite(db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// openSQLite is another process's view of the locks in the file.
func openSQLite(t testing.TB, path string) *sqllock.Driver {
	t.Helper()
	d := newSQLite(t, openDB(t, path), nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	return d
}

// bounded ends long after everything should have.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 6*margin)
	t.Cleanup(cancel)
	return ctx
}

func lockFile(t testing.TB) string { return filepath.Join(t.TempDir(), "locks.db") }

func claim(t testing.TB, d driver.Driver, req driver.Request) driver.Claim {
	t.Helper()
	if req.Resource == "" {
		req.Resource = "orders/42"
	}
	if req.TTL == 0 {
		req.TTL = time.Minute
	}
	if req.Owner == "" {
		req.Owner = fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	}
	c, err := d.Claim(req)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func granted(t testing.TB, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := c.Try(bounded(t))
	if err != nil {
		t.Fatalf("Try: %v; want a grant", err)
	}
	return g
}

func refused(t testing.TB, c driver.Claim) *driver.Busy {
	t.Helper()
	_, err := c.Try(bounded(t))
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok {
		t.Fatalf("Try: %v; want busy", err)
	}
	return busy
}

func released(t testing.TB, c driver.Claim) {
	t.Helper()
	if err := c.Release(bounded(t)); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// wins tries whenever it is told to, as the core does, until it is granted.
func wins(t testing.TB, c driver.Claim) driver.Grant {
	t.Helper()
	for end := time.Now().Add(3 * margin); time.Now().Before(end); {
		g, err := c.Try(bounded(t))
		busy, ok := errors.AsType[*driver.Busy](err)
		if err == nil {
			return g
		} else if !ok {
			t.Fatalf("Try: %v", err)
		}
		select {
		case <-busy.Wake:
		case <-time.After(busy.Retry + time.Millisecond):
		}
	}
	t.Fatal("never granted")
	return driver.Grant{}
}

func mustExec(t testing.TB, db *sql.DB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if _, err := db.Exec(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

func TestSQLiteRefusesAlienFiles(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(t *testing.T, path string){
		"short text": func(t *testing.T, path string) { write(t, path, []byte("not locks\n")) },
		"long text":  func(t *testing.T, path string) { write(t, path, slices.Repeat([]byte("not locks\n"), 2000)) },
		"damaged schema": func(t *testing.T, path string) {
			migrated(t, path)
			scribble(t, path, 100, 4096)
		},
		"another program's": func(t *testing.T, path string) {
			mustExec(t, openDB(t, path), "CREATE TABLE bookmarks (url TEXT)", "INSERT INTO bookmarks VALUES ('x')")
		},
		"another program's with our names": func(t *testing.T, path string) {
			mustExec(t, openDB(t, path), "CREATE TABLE Leasehold_Locks (door TEXT)", "INSERT INTO leasehold_locks VALUES ('front')")
		},
		"other columns": func(t *testing.T, path string) {
			migrated(t, path)
			mustExec(t, openDB(t, path), "ALTER TABLE leasehold_claims RENAME COLUMN ticket TO number")
		},
		"a newer version": func(t *testing.T, path string) {
			migrated(t, path)
			mustExec(t, openDB(t, path), "UPDATE leasehold_meta SET version = 2")
		},
		"no version": func(t *testing.T, path string) {
			migrated(t, path)
			mustExec(t, openDB(t, path), "DELETE FROM leasehold_meta")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := lockFile(t)
			t.Run("fill", func(t *testing.T) { fill(t, path) }) // closes what it opened
			before := folder(t, path)
			t.Run("use", func(t *testing.T) {
				d := newSQLite(t, openDB(t, path), nil)
				err := d.Migrate(bounded(t))
				if !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(fmt.Sprint(err), path) {
					t.Errorf("Migrate: %v; want ErrCorrupt with the path", err)
				}
				if _, err := claim(t, d, driver.Request{}).Try(bounded(t)); err == nil || errors.Is(err, driver.ErrBusy) {
					t.Errorf("Try: %v; want an error", err)
				}
			})
			if after := folder(t, path); after != before {
				t.Error("the folder was changed")
			}
		})
	}
}

// migrated leaves a file with one held lock, all of it in the main file.
func migrated(t *testing.T, path string) {
	db := openDB(t, path)
	d := newSQLite(t, db, nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	granted(t, claim(t, d, driver.Request{}))
	d.Close()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func scribble(t *testing.T, path string, from, to int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := from; i < min(to, len(data)); i++ {
		data[i] = byte(i * 7)
	}
	write(t, path, data)
}

// folder is all files beside path, with what they contain.
func folder(t *testing.T, path string) string {
	t.Helper()
	var all strings.Builder
	files, err := os.ReadDir(filepath.Dir(path))
	for _, f := range files {
		var data []byte
		if err == nil {
			data, err = os.ReadFile(filepath.Join(filepath.Dir(path), f.Name()))
		}
		fmt.Fprintf(&all, "%s %q\n", f.Name(), data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestSQLiteDamagedPageIsNoGrant(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	t.Run("fill", func(t *testing.T) { migrated(t, path); scribble(t, path, 4096, 1<<20) })
	d := newSQLite(t, openDB(t, path), nil)
	err := d.Migrate(bounded(t))
	if err == nil {
		_, err = claim(t, d, driver.Request{}).Try(bounded(t))
	}
	if !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v; want ErrCorrupt with the path", err)
	}
}

func TestSQLiteLivesInAnApplicationsFileIfAsked(t *testing.T) {
	t.Parallel()
	db := openDB(t, lockFile(t))
	mustExec(t, db, "CREATE TABLE orders (id INTEGER)", "INSERT INTO orders VALUES (42)")
	d := newSQLite(t, db, &sqllock.Options{AllowForeign: true, Prefix: "mutex_"})
	for range 2 {
		if err := d.Migrate(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	c := claim(t, d, driver.Request{})
	granted(t, c)
	released(t, c)
	var id int
	if err := db.QueryRow("SELECT id FROM orders").Scan(&id); err != nil || id != 42 {
		t.Errorf("the application's row: %d, %v", id, err)
	}
	// Once there, it is recognized without the option.
	if err := newSQLite(t, db, &sqllock.Options{Prefix: "mutex_"}).Migrate(bounded(t)); err != nil {
		t.Error(err)
	}
}

func TestSQLitePrefixes(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"a b", "1a", "a-b", `a"`, "a;", strings.Repeat("a", 41), "é"} {
		if _, err := sqllock.NewSQLite(nil, &sqllock.Options{Prefix: bad}); err == nil {
			t.Errorf("prefix %q was accepted", bad)
		}
	}
	db := openDB(t, lockFile(t))
	for _, prefix := range []string{"a_", "b_"} {
		d := newSQLite(t, db, &sqllock.Options{Prefix: prefix, AllowForeign: true})
		if err := d.Migrate(bounded(t)); err != nil {
			t.Fatal(err)
		}
		granted(t, claim(t, d, driver.Request{})) // the same name
	}
}

func TestSQLiteNeedsMigrate(t *testing.T) {
	t.Parallel()
	db := openDB(t, lockFile(t))
	d := newSQLite(t, db, nil)
	if _, err := claim(t, d, driver.Request{}).Try(bounded(t)); !errors.Is(err, sqllock.ErrNoSchema) {
		t.Errorf("Try: %v; want ErrNoSchema", err)
	}
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	granted(t, claim(t, d, driver.Request{}))
}

func TestSQLiteInMemoryIsRefused(t *testing.T) {
	t.Parallel()
	if err := newSQLite(t, openDB(t, ":memory:"), nil).Migrate(bounded(t)); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Migrate: %v; want ErrUnsupported", err)
	}
}

func TestSQLiteMigratesAtOnce(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	var all sync.WaitGroup
	start := make(chan struct{})
	for range 10 {
		d := newSQLite(t, openDB(t, path), nil)
		all.Go(func() {
			<-start
			if err := d.Migrate(bounded(t)); err != nil {
				t.Error(err)
			}
			if err := d.RaiseFence(bounded(t), "orders/42", 7); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
	var rows int
	if err := openDB(t, path).QueryRow("SELECT count(*) FROM leasehold_meta").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d version rows, %v", rows, err)
	}
}

func TestSQLitePoolOfOneConnection(t *testing.T) {
	t.Parallel()
	db := openDB(t, lockFile(t))
	db.SetMaxOpenConns(1)
	d := newSQLite(t, db, nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	holder := claim(t, d, driver.Request{})
	granted(t, holder)
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			for range 5 {
				if err := locks.Do(bounded(t), "orders/42", func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		waiter := claim(t, d, driver.Request{Queue: true, Mode: mode})
		refused(t, waiter)
		released(t, waiter)
	}
	released(t, holder)
	all.Wait()
}

func TestSQLiteReadOnlyIsNoGrant(t *testing.T) {
	t.Parallel()
	t.Run("folder", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "locks.db")
		if err := os.Chmod(filepath.Dir(path), 0o555); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if runtime.GOOS != "linux" {
				t.Skip("needs a user other than root")
			}
			path = "/proc/leasehold.db" // permissions do not stop root
		}
		d := newSQLite(t, openDB(t, path), nil)
		if err := d.Migrate(bounded(t)); err == nil || errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("Migrate: %v; want the error of the system", err)
		}
		if _, err := claim(t, d, driver.Request{}).Try(bounded(t)); err == nil || errors.Is(err, driver.ErrBusy) {
			t.Errorf("Try: %v; want the error of the system", err)
		}
	})
	t.Run("file", func(t *testing.T) {
		path := lockFile(t)
		writable := openSQLite(t, path)
		d := newSQLite(t, openDB(t, "file:"+path+"?mode=ro"), nil)
		if _, err := claim(t, d, driver.Request{}).Try(bounded(t)); err == nil || errors.Is(err, driver.ErrBusy) {
			t.Errorf("Try: %v; want the error of the system", err)
		}
		granted(t, claim(t, writable, driver.Request{}))
		if st, err := d.Inspect(bounded(t), "orders/42"); err != nil || len(st.Holders) != 1 {
			t.Errorf("Inspect: %+v, %v; reading is allowed", st, err)
		}
	})
}

func TestSQLiteFullDiskIsNoGrant(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	other := openSQLite(t, path)
	db := openDB(t, path+"?_pragma=max_page_count(8)")
	d := newSQLite(t, db, nil)
	full := ""
	for i := range 1000 {
		c := claim(t, d, driver.Request{Resource: fmt.Sprint(i), Note: strings.Repeat("n", 500)})
		if _, err := c.Try(bounded(t)); err != nil {
			if errors.Is(err, driver.ErrBusy) {
				t.Fatal(err)
			}
			full = fmt.Sprint(i)
			break
		}
	}
	if full == "" {
		t.Fatal("the disk never was full")
	}
	st, err := other.Inspect(bounded(t), full)
	if err != nil || len(st.Holders) > 0 {
		t.Errorf("Inspect: %+v, %v; want no holder", st, err)
	}
	granted(t, claim(t, other, driver.Request{Resource: full}))
}

func TestSQLiteEvictionReachesTheHolder(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	d, operator := openSQLite(t, path), openSQLite(t, path)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		name := fmt.Sprint("mode ", mode)
		holder := claim(t, d, driver.Request{Resource: name, Owner: "the-holder" + name, Mode: mode})
		old := granted(t, holder)
		if err := operator.Evict(bounded(t), name, "the-holder", "x"); !errors.Is(err, driver.ErrLost) {
			t.Errorf("eviction of a part of an owner: %v", err)
		}
		if err := operator.Evict(bounded(t), name, "the-holder"+name, "disk is on fire"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err := holder.Renew(bounded(t), time.Minute)
			if !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "evicted: disk is on fire") {
				t.Errorf("Renew: %v; want ErrLost with the reason", err)
			}
		}
		if err := holder.Release(bounded(t)); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release: %v; want ErrLost", err)
		}
		st, err := operator.Inspect(bounded(t), name)
		if err != nil || len(st.Holders) > 0 || st.Fence <= old.Fence {
			t.Errorf("Inspect: %+v, %v; want no holder and a fence above %d", st, err, old.Fence)
		}
		if g := granted(t, claim(t, operator, driver.Request{Resource: name})); g.Fence <= st.Fence {
			t.Errorf("fence %d after the eviction's %d", g.Fence, st.Fence)
		}
	}
}

func TestSQLiteDeletedFile(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	d := openSQLite(t, path)
	holder := claim(t, d, driver.Request{})
	old := granted(t, holder)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil {
			t.Fatal(err)
		}
	}
	if g := granted(t, claim(t, openSQLite(t, path), driver.Request{})); g.Fence <= old.Fence {
		t.Errorf("fence %d after %d", g.Fence, old.Fence)
	}
	if _, err := holder.Renew(bounded(t), time.Minute); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew: %v; want ErrLost: nobody sees that lease any more", err)
	}
	if _, err := claim(t, d, driver.Request{Resource: "other"}).Try(bounded(t)); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("Try in the deleted file: %v; want ErrCorrupt", err)
	}
}

func TestSQLiteDeadWaiterLosesItsPlace(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	holder, dead, next := openSQLite(t, path), openSQLite(t, path), openSQLite(t, path)
	held := claim(t, holder, driver.Request{})
	granted(t, held)
	refused(t, claim(t, dead, driver.Request{Queue: true, Note: "dead"}))
	dead.Close()
	waiter := claim(t, next, driver.Request{Queue: true, Note: "next"})
	refused(t, waiter)
	released(t, held)
	refused(t, waiter) // the dead one's turn
	wins(t, waiter)
	// What is left where nobody contends is removed by the next Migrate.
	refused(t, claim(t, holder, driver.Request{Queue: true, Note: "dead"}))
	mustExec(t, openDB(t, path), "UPDATE leasehold_claims SET expires = 1")
	openSQLite(t, path)
	var rows int
	if err := openDB(t, path).QueryRow("SELECT count(*) FROM leasehold_claims").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d claims left, %v", rows, err)
	}
}

func TestSQLiteServesInOrderOfFirstTry(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	drivers := []*sqllock.Driver{openSQLite(t, path), openSQLite(t, path)}
	held := claim(t, drivers[0], driver.Request{})
	granted(t, held)
	const waiters = 10
	order := make(chan int, waiters)
	var all sync.WaitGroup
	for i := range waiters {
		c := claim(t, drivers[i%2], driver.Request{Queue: true})
		refused(t, c)
		all.Go(func() {
			wins(t, c)
			order <- i
			released(t, c)
		})
	}
	released(t, held)
	all.Wait()
	close(order)
	for want := range waiters {
		if got, ok := <-order; got != want || !ok {
			t.Errorf("waiter %d was served as number %d", got, want)
		}
	}
}

// Nothing is written when a lease ends by itself: the watcher must find out all the same.
func TestSQLiteExpiryWakes(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	granted(t, claim(t, openSQLite(t, path), driver.Request{TTL: time.Second}))
	waiter := claim(t, openSQLite(t, path), driver.Request{Queue: true})
	busy := refused(t, waiter)
	if busy.Retry <= 0 || busy.Retry > time.Second {
		t.Errorf("Retry %v; want what is left of the lease", busy.Retry)
	}
	select {
	case <-busy.Wake:
	case <-time.After(margin):
		t.Fatal("not woken")
	}
	granted(t, waiter)
}

func TestSQLiteListsByBytes(t *testing.T) {
	t.Parallel()
	d := openSQLite(t, lockFile(t))
	names := []string{"A", "a", "a%", "a%b", "a_", "ab", "a\U0010ffff", "\u00e9", "e\u0301"}
	for _, name := range names {
		granted(t, claim(t, d, driver.Request{Resource: name}))
	}
	for _, prefix := range []string{"", "a", "a%", "a_", "A", "\u00e9", "b"} {
		var want, got []string
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		states, err := d.List(bounded(t), prefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range states {
			got = append(got, st.Resource)
		}
		if !slices.Equal(got, want) {
			t.Errorf("List(%q): %q; want %q", prefix, got, want)
		}
	}
}

// A connection that went back to the pool inside a transaction would keep everybody out.
func TestSQLiteCancelledCallsLeaveNoTransaction(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	other := openSQLite(t, path)
	db := openDB(t, path)
	db.SetMaxOpenConns(1)
	d := newSQLite(t, db, nil)
	granted(t, claim(t, other, driver.Request{Resource: "held"}))
	cancelled := 0
	for i := range 300 {
		c := claim(t, d, driver.Request{Resource: []string{"held", "free"}[i%2], Queue: true})
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(time.Millisecond))
		if _, err := c.Try(ctx); err != nil && ctx.Err() != nil {
			cancelled++
		}
		cancel()
		if err := c.Release(bounded(t)); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release: %v", err)
		}
		check := claim(t, other, driver.Request{})
		granted(t, check)
		released(t, check)
	}
	if cancelled == 0 {
		t.Error("no call was cancelled")
	}
	st, err := other.Inspect(bounded(t), "free")
	if err != nil || len(st.Holders)+len(st.Waiters) > 0 {
		t.Errorf("Inspect: %+v, %v; want nothing left behind", st, err)
	}
}

// An application that writes for long holds up grants, which end with their context,
// also where the connections were opened to wait for longer.
func TestSQLiteLongWriteByOthers(t *testing.T) {
	t.Parallel()
	for _, options := range []string{"", "?_busy_timeout=60000&_txlock=immediate"} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			longWriteByOthers(t, options)
		})
	}
}

func longWriteByOthers(t *testing.T, options string) {
	path := lockFile(t)
	openSQLite(t, path)
	d := openSQLite(t, path+options)
	held := claim(t, d, driver.Request{Resource: "held"})
	granted(t, held)
	conn, err := openDB(t, path).Conn(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(bounded(t), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	c := claim(t, d, driver.Request{Queue: true})
	start := time.Now()
	for call, do := range map[string]func(ctx context.Context) error{
		"Try":     func(ctx context.Context) error { _, err := c.Try(ctx); return err },
		"Renew":   func(ctx context.Context) error { _, err := held.Renew(ctx, time.Minute); return err },
		"Release": held.Release,
		"Evict":   func(ctx context.Context) error { return d.Evict(ctx, "held", "database is locked", "no reason") },
		"Try shared": func(ctx context.Context) error {
			_, err := claim(t, d, driver.Request{Mode: driver.Shared}).Try(ctx)
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		if err := do(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v; want the end of its context", call, err)
		}
		cancel()
	}
	if took := time.Since(start); took > margin {
		t.Errorf("the calls took %v, their contexts 1.5 s", took)
	}
	refused(t, claim(t, d, driver.Request{Resource: "held"})) // needs no write
	if st, err := d.Inspect(bounded(t), "orders/42"); err != nil || len(st.Holders) > 0 {
		t.Errorf("Inspect: %+v, %v; reading goes on", st, err)
	}
	var trying sync.WaitGroup
	var tried error
	trying.Go(func() { _, tried = c.Try(bounded(t)) })
	if _, err := conn.ExecContext(bounded(t), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if trying.Wait(); tried != nil {
		t.Errorf("Try: %v; want a grant once the writer is done", tried)
	}
	if err := d.Evict(bounded(t), "database is locked", "nobody", ""); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Evict: %v; want ErrLost", err)
	}
}

func TestSQLiteClosed(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	d := openSQLite(t, path)
	granted(t, claim(t, openSQLite(t, path), driver.Request{}))
	waiter := claim(t, d, driver.Request{Queue: true})
	busy := refused(t, waiter)
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-busy.Wake:
	case <-time.After(margin):
		t.Error("Close woke nobody")
	}
	_, try := waiter.Try(bounded(t))
	_, renew := waiter.Renew(bounded(t), time.Minute)
	_, claimed := d.Claim(driver.Request{})
	for call, err := range map[string]error{"Try": try, "Renew": renew, "Release": waiter.Release(bounded(t)),
		"Claim": claimed, "Migrate": d.Migrate(bounded(t))} {
		if !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s: %v; want ErrClosed", call, err)
		}
	}
}
