package sqlite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// refusesFile checks that nobody gets a lock at path, and that it is said why.
func refusesFile(t *testing.T, path, why string) {
	t.Helper()
	d := newSQLite(t, openDB(t, path), nil)
	for _, err := range []error{d.Migrate(bounded(t)), tryErr(t, d)} {
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), path) || !strings.Contains(fmt.Sprint(err), why) {
			t.Errorf("%v; want ErrUnsupported with the path and %q", err, why)
		}
	}
}

func tryErr(t *testing.T, d *sqllock.Driver) error {
	_, err := claim(t, d, driver.Request{}).Try(bounded(t))
	return err
}

// Processes that open a file by different names share neither its log nor its locks.
func TestSQLiteRefusesHardLinks(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the number of links is not told here")
	}
	path, other := lockFile(t), lockFile(t)
	d := openSQLite(t, path)
	holder := claim(t, d, driver.Request{})
	granted(t, holder)
	if err := os.Link(path, other); err != nil {
		t.Fatal(err)
	}
	refusesFile(t, other, "hard link")
	refusesFile(t, path, "hard link")
	if _, err := holder.Renew(bounded(t), time.Minute); err != nil {
		t.Errorf("Renew: %v; such as a backup by links does the present holder no harm", err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	refused(t, claim(t, openSQLite(t, path), driver.Request{}))
}

func TestSQLiteRefusesMountedFiles(t *testing.T) {
	t.Parallel()
	path, mounted := lockFile(t), filepath.Join(t.TempDir(), "lo cks.db")
	granted(t, claim(t, openSQLite(t, path), driver.Request{}))
	write(t, mounted, nil)
	if out, err := exec.Command("mount", "--bind", path, mounted).CombinedOutput(); err != nil {
		t.Skipf("needs the right to mount: %v: %s", err, out)
	}
	defer func() {
		if out, err := exec.Command("umount", "-l", mounted).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	}()
	refusesFile(t, mounted, "mount its folder")
}

// A folder that is mounted has everything that belongs to the file.
func TestSQLiteInMountedFolder(t *testing.T) {
	t.Parallel()
	path, mounted := lockFile(t), t.TempDir()
	granted(t, claim(t, openSQLite(t, path), driver.Request{}))
	if out, err := exec.Command("mount", "--bind", filepath.Dir(path), mounted).CombinedOutput(); err != nil {
		t.Skipf("needs the right to mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", mounted).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	refused(t, claim(t, openSQLite(t, filepath.Join(mounted, filepath.Base(path))), driver.Request{}))
}

// Whoever has the file open goes on with the files that were deleted; who comes makes new ones.
func TestSQLiteDeletedCompanions(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("files that are open cannot be deleted here")
	}
	for _, gone := range [][]string{{"-wal"}, {"-shm"}, {"-wal", "-shm"}} {
		t.Run(strings.Join(gone, ""), func(t *testing.T) {
			t.Parallel()
			path := lockFile(t)
			d := openSQLite(t, path)
			holder := claim(t, d, driver.Request{})
			granted(t, holder)
			if _, err := holder.Renew(bounded(t), time.Minute); err != nil {
				t.Fatal(err)
			}
			for _, suffix := range gone {
				if err := os.Remove(path + suffix); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := holder.Renew(bounded(t), time.Minute); !errors.Is(err, driver.ErrLost) || !errors.Is(err, driver.ErrCorrupt) {
				t.Errorf("Renew: %v; want ErrLost: who comes does not see that lease", err)
			}
			if err := tryErr(t, d); !errors.Is(err, driver.ErrCorrupt) {
				t.Errorf("Try: %v; want ErrCorrupt", err)
			}
		})
	}
}

// A pool that closes its connections deletes these files itself.
func TestSQLiteCompanionsComeAndGo(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	db := openDB(t, path)
	db.SetMaxIdleConns(0)
	d := newSQLite(t, db, nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	for i := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for n := range 25 {
				c, err := d.Claim(driver.Request{Resource: fmt.Sprint(i), Owner: fmt.Sprintf("owner-%d-%d", i, n), TTL: time.Minute})
				if err == nil {
					_, err = c.Try(bounded(t))
				}
				if err == nil {
					_, err = c.Renew(bounded(t), time.Minute)
				}
				if err == nil {
					err = c.Release(bounded(t), driver.End{})
				}
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
}

func TestSQLiteMovedFolder(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	holder := claim(t, openSQLite(t, path), driver.Request{})
	granted(t, holder)
	if err := os.Rename(filepath.Dir(path), filepath.Dir(path)+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	granted(t, claim(t, openSQLite(t, path), driver.Request{}))
	if _, err := holder.Renew(bounded(t), time.Minute); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew: %v; want ErrLost", err)
	}
}

// Such as current, a symbolic link to the folder of the present release.
func TestSQLiteMovedSymbolicLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "current")
	point := func(to string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if err := os.Symlink(to, link); err != nil {
			t.Skip(err)
		}
	}
	point("1")
	path := filepath.Join(link, "locks.db")
	d := newSQLite(t, openDB(t, path), &sqllock.Options{Path: path})
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	holder := claim(t, d, driver.Request{})
	granted(t, holder)
	if _, err := holder.Renew(bounded(t), time.Minute); err != nil {
		t.Fatal(err)
	}
	point("2")
	granted(t, claim(t, openSQLite(t, path), driver.Request{}))
	if _, err := holder.Renew(bounded(t), time.Minute); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew: %v; want ErrLost: others lock elsewhere now", err)
	}
	if err := tryErr(t, d); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("Try: %v; want ErrCorrupt", err)
	}
}

func TestSQLitePathOfAnotherFile(t *testing.T) {
	t.Parallel()
	path, other := lockFile(t), lockFile(t)
	openSQLite(t, path)
	openSQLite(t, other)
	d := newSQLite(t, openDB(t, path), &sqllock.Options{Path: other})
	if err := tryErr(t, d); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), other) {
		t.Errorf("Try: %v; want ErrCorrupt with %s", err, other)
	}
}

// Migrate leaves a file as it is that the Path does not lead to.
func TestSQLiteMigrateWithPathOfAnotherFile(t *testing.T) {
	t.Parallel()
	path, other := lockFile(t), lockFile(t)
	openSQLite(t, other)
	t.Run("fill", func(t *testing.T) { mustExec(t, openDB(t, path), "CREATE TABLE orders (id INTEGER)") }) // closes what it opened
	before := folder(t, path)
	t.Run("migrate", func(t *testing.T) {
		d := newSQLite(t, openDB(t, path), &sqllock.Options{Path: other, AllowForeign: true})
		if err := d.Migrate(bounded(t)); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), other) {
			t.Errorf("Migrate: %v; want ErrCorrupt with %s", err, other)
		}
	})
	if after := folder(t, path); after != before {
		t.Error("the folder was changed")
	}
}

// A file that somebody cuts to nothing, as `> locks.db` does, is no longer where the leases are:
// the connections that are open would go on with what they remember of it.
func TestSQLiteCutFile(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	d := openSQLite(t, path)
	holder := claim(t, d, driver.Request{})
	granted(t, holder)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := tryErr(t, d); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(fmt.Sprint(err), path) {
		t.Errorf("Try: %v; want ErrCorrupt with the path", err)
	}
	if _, err := holder.Renew(bounded(t), time.Minute); !errors.Is(err, driver.ErrLost) || !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("Renew: %v; want ErrLost, as ErrCorrupt", err)
	}
}
