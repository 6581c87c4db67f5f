package sqllock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A sqliteFile is the file that the connections have open, and what belongs to it.
type sqliteFile struct {
	path  string      // as SQLite has resolved it: its log and its shared memory are beside it
	named string      // as the program names it
	info  os.FileInfo // nil until the check has passed

	log, memory companion
}

// companions are what SQLite's names of the log and of the shared memory end with.
var companions = [2]string{"-wal", "-shm"}

// openFile describes the file at path, which the program calls named, if not "".
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

// oneName refuses a file that others may open by another name: what SQLite keeps beside it
// under its name, the log and the locks, they would not see.
func oneName(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // it is made with one name
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

// intact looks at the names of the files: connections that are open would go on using
// deleted ones, while other processes make new ones.
func (s *sqlite) intact() error {
	f := s.file.Load()
	switch {
	case !f.isNamed():
		return fmt.Errorf("%w: sqlite file %q was deleted, moved or replaced while it was open: open it anew", driver.ErrCorrupt, f.named)
	case f.cut():
		return fmt.Errorf("%w: sqlite file %q was cut off while it was open: open it anew", driver.ErrCorrupt, f.named)
	case f.log.lost(f.path+companions[0]) || f.memory.lost(f.path+companions[1]):
		return fmt.Errorf("%w: the files %s or %s beside sqlite file %q were deleted while it was open: open it anew",
			driver.ErrCorrupt, companions[0], companions[1], f.path)
	}
	return nil
}

// isNamed reports whether the name is still that of the file.
func (f *sqliteFile) isNamed() bool {
	info, err := os.Stat(f.named)
	return err == nil && os.SameFile(info, f.info)
}

// minPage is the least that SQLite has in one page.
const minPage = 512

// cut reports whether the file has lost its first page, which it has from the check on.
func (f *sqliteFile) cut() bool {
	info, err := os.Stat(f.path)
	return err == nil && info.Size() < minPage
}

// A companion is a file that SQLite keeps beside the database while any connection is open.
// The last of them to close deletes it, and the next one makes another.
type companion struct {
	last atomic.Pointer[os.FileInfo] // as it was last seen; nil: not there
}

// lost reports whether the file was deleted from under a connection.
func (c *companion) lost(path string) bool {
	info, err := os.Stat(path)
	last := c.last.Load()
	switch {
	case last != nil && err == nil && os.SameFile(*last, info):
		return false
	case last != nil && staysDeleted(*last):
		return true
	case err == nil:
		c.last.Store(&info)
	default:
		c.last.Store(nil)
	}
	return false
}

// staysDeleted reports whether this process has a deleted file open, and not only for the
// moment that SQLite takes to close it.
func staysDeleted(file os.FileInfo) bool {
	for range 10 {
		if !heldDeleted(file) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}
