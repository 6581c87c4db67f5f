package sqllock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A sqliteFile is the file that the connections have open, with the files beside it.
type sqliteFile struct {
	path  string      // as SQLite has resolved it: its log and its shared memory are beside this path
	named string      // as the program names it
	info  os.FileInfo // nil until Migrate or the check has passed

	log, memory companion
}

// companions are the suffixes of the log and of the shared memory.
var companions = [2]string{"-wal", "-shm"}

// openFile describes the file at path. The program calls it named, unless that is "".
func openFile(path, named string) (*sqliteFile, error) {
	if named == "" {
		named = path
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f := &sqliteFile{path: path, named: named, info: info}
	if !f.isNamed() {
		return nil, fmt.Errorf("%w: Path %q is not the sqlite file that is open, which is %q", driver.ErrCorrupt, named, path)
	}
	return f, nil
}

// oneName refuses a file with several names. SQLite keeps the log and the locks beside the name by
// which it opened the file, so processes that use another name would not see them.
func oneName(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // SQLite creates it with one name
	case err != nil:
		return err
	case linkCount(info) > 1:
		return fmt.Errorf("%w: %q has %d names (hard links), whose users do not see each other's locks: keep one",
			driver.ErrUnsupported, path, linkCount(info))
	case isMount(path):
		return fmt.Errorf("%w: %q is mounted alone, without what SQLite keeps beside it: mount its folder",
			driver.ErrUnsupported, path)
	}
	return nil
}

// intact checks the names of the files. Otherwise open connections would go on using deleted files
// while other processes create new ones.
func (s *sqlite) intact() error {
	f := s.file.Load()
	switch {
	case !f.isNamed():
		return f.replaced()
	case f.cut():
		return fmt.Errorf("%w: sqlite file %q was cut off while it was open: open it anew", driver.ErrCorrupt, f.named)
	case f.log.lost(f.path+companions[0]) || f.memory.lost(f.path+companions[1]):
		return fmt.Errorf("%w: the files %s or %s beside sqlite file %q were deleted while it was open: open it anew",
			driver.ErrCorrupt, companions[0], companions[1], f.path)
	}
	return nil
}

// opened records the file that the connections have open, unless another has replaced it since.
// Then they go on with the former one. The caller keeps a connection open.
func (s *sqlite) opened() error {
	before := s.file.Load()
	file, err := openFile(before.path, s.named)
	switch {
	case err != nil:
		return err
	case before.info == nil && file.isOpen():
		s.file.CompareAndSwap(before, file)
	case before.info == nil || !os.SameFile(before.info, file.info):
		return file.replaced()
	}
	return nil
}

// isOpen reports whether this process has the file open, as far as the system tells.
func (f *sqliteFile) isOpen() bool {
	path, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return true
	}
	all, ok := openAs(path)
	return !ok || slices.ContainsFunc(all, func(one os.FileInfo) bool { return os.SameFile(one, f.info) })
}

// descriptors is a folder of Linux, with a link for each file that this process has open.
const descriptors = "/proc/self/fd/"

// openAs describes the files that this process has open with the base name of path, and deleted
// ones of any name. ok is false if the system does not tell. Of other files it only reads the links
// to them, which asks no file server. A stat of such a file may hang.
func openAs(path string) (all []os.FileInfo, ok bool) {
	links, err := os.ReadDir(descriptors)
	for _, one := range links {
		link := descriptors + one.Name()
		file, err := os.Readlink(link)
		deleted := strings.HasSuffix(file, " (deleted)")
		if err != nil || !deleted && !strings.EqualFold(filepath.Base(file), filepath.Base(path)) { // some file systems fold case
			continue
		}
		if info, err := os.Stat(link); err == nil { // opens nothing; see heldDeleted
			all = append(all, info)
		}
	}
	return all, runtime.GOOS == "linux" && err == nil
}

// isNamed reports whether the name still leads to the file.
func (f *sqliteFile) isNamed() bool {
	info, err := os.Stat(f.named)
	return err == nil && os.SameFile(info, f.info)
}

func (f *sqliteFile) replaced() error {
	return fmt.Errorf("%w: sqlite file %q was deleted, moved or replaced while it was open: open it anew", driver.ErrCorrupt, f.named)
}

// minPage is the smallest page size of SQLite.
const minPage = 512

// cut reports whether the file has lost its first page. It has one once check has passed.
func (f *sqliteFile) cut() bool {
	info, err := os.Stat(f.path)
	return err == nil && info.Size() < minPage
}

// A companion is a file that SQLite keeps beside the database while any connection is open. The
// last connection to close deletes it, and the next one to open creates another.
type companion struct {
	last atomic.Pointer[os.FileInfo] // as last seen; nil: it did not exist
}

// lost reports whether the file was deleted while a connection uses it.
func (c *companion) lost(path string) bool {
	info, err := os.Stat(path)
	last := c.last.Load()
	switch {
	case last != nil && err == nil && os.SameFile(*last, info):
		return false
	case last != nil && staysDeleted(path, *last):
		return true
	case err == nil:
		c.last.Store(&info)
	default:
		c.last.Store(nil)
	}
	return false
}

// staysDeleted reports whether this process keeps a deleted file open for longer than SQLite takes
// to close it.
func staysDeleted(path string, file os.FileInfo) bool {
	for range 10 {
		if !heldDeleted(path, file) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}
