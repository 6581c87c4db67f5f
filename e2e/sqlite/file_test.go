package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

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
			mustExec(t, openDB(t, path), "ALTER TABLE leasehold_locks RENAME COLUMN record TO number")
		},
		"a newer version": func(t *testing.T, path string) {
			migrated(t, path)
			mustExec(t, openDB(t, path), "UPDATE leasehold_meta SET version = 4")
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
	// A connection that was in use is closed after that, and the last one moves the log into the file.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path + "-wal"); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the log stays")
		}
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
		if _, err := claim(t, d, driver.Request{}).Try(bounded(t)); !errors.Is(err, driver.ErrReadOnly) || !strings.Contains(err.Error(), path) {
			t.Errorf("Try: %v; want ErrReadOnly, and the file", err)
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
			if !errors.Is(err, sqllock.ErrFull) || !strings.Contains(err.Error(), fmt.Sprintf("%q", filepath.Dir(path))) {
				t.Fatalf("Try: %v; want ErrFull, and the folder", err)
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

// The connections that have created the tables keep the former file open.
func TestSQLiteFileReplacedBeforeTheFirstCall(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("files that are open cannot be replaced here")
	}
	path, other := lockFile(t), lockFile(t)
	migrated(t, other)
	d := openSQLite(t, path)
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if err := tryErr(t, d); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), path) {
		t.Errorf("Try: %v; want ErrCorrupt, and the file", err)
	}
}

// A program's connections are older than its Driver, and keep the former file open.
func TestSQLiteFileReplacedBeforeTheDriver(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the system does not list the files that a process has open")
	}
	for name, migrates := range map[string]bool{"migrates": true, "does not migrate": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, other := lockFile(t), lockFile(t)
			migrated(t, path)
			migrated(t, other)
			db := openDB(t, path)
			mustExec(t, db, "SELECT max(version) FROM leasehold_meta")
			if err := os.Rename(other, path); err != nil {
				t.Fatal(err)
			}
			d := newSQLite(t, db, nil)
			call := func() error { return tryErr(t, d) }
			if migrates {
				call = func() error { return d.Migrate(bounded(t)) }
			}
			for range 2 {
				if err := call(); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), path) {
					t.Errorf("%v; want ErrCorrupt, and the file", err)
				}
			}
		})
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
