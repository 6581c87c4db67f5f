package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	_ "modernc.org/sqlite" // registers the database/sql driver "sqlite"
)

// sqliteStore is a store in a file.
type sqliteStore struct {
	databaseStore
	path string
	own  bool // the default file of the user: it is created even if the caller only looks
}

// prepare creates the file and its tables, or checks that they exist.
func (s sqliteStore) prepare(ctx context.Context, create bool) error {
	err := s.find(create || s.own)
	if err != nil {
		return err
	}
	if create || s.own {
		err = s.Migrate(ctx)
	} else {
		err = s.existing(ctx)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", s.path, err)
	}
	return nil
}

// finding is held while a file may be created. To close a file drops all locks of this process on
// it, so nobody may open it with SQLite before.
var finding sync.Mutex

// find checks that the file exists, or creates it. To SQLite, an empty file is a new database.
func (s sqliteStore) find(create bool) error {
	finding.Lock()
	defer finding.Unlock()
	folder := filepath.Dir(s.path)
	switch _, err := os.Stat(s.path); {
	case err == nil:
		return s.permitted(create)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case !create:
		return fmt.Errorf("open %s: no such file", s.path)
	case s.own:
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("create the folder of your own file: %w; name another file, sqlite:PATH", err)
		}
	}
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o644) // the mode that SQLite uses
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open %s: its folder does not exist, create it first", s.path)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// permitted refuses a file that this process may not write. Even to read a file that no process has
// open, SQLite creates files beside it. They would belong to the reader, and the owner of the file
// could not write them.
func (s sqliteStore) permitted(create bool) error {
	denied := writable(s.path)
	switch {
	case denied == nil:
		return nil
	case create:
		return fmt.Errorf("open %s: %w: to lock is to write it, and files beside it", s.path, denied)
	}
	for _, beside := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(s.path + beside); err != nil {
			return fmt.Errorf("open %s: %w: who may not write it can look at it only while another process has it open", s.path, denied)
		}
	}
	return nil
}

// openSQLite opens the file that the URL names; see sqlitePath.
func openSQLite(ctx context.Context, url string, create bool) (driver.Driver, error) {
	_, rest, _ := storeurl.Cut(url)
	path, err := sqlitePath(rest)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", lockDSN(path))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxIdleConns(4) // opening a connection costs more than a grant
	d, err := sqllock.NewSQLite(db, &sqllock.Options{Path: path})
	if err != nil {
		db.Close() // its error would only hide the first one
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s := sqliteStore{databaseStore{d, db}, path, rest == ""}
	return s.opened(s.prepare(ctx, create))
}

func resolveSQLite(url string) (string, error) {
	scheme, rest, _ := storeurl.Cut(url)
	path, err := sqlitePath(rest)
	if err != nil {
		return "", err
	}
	return scheme + ":" + path, nil
}

// lockDSN returns the data source name of a store. It sets no busy timeout: sqllock waits for other
// writers by itself, with finer steps than SQLite. Only prepare creates the file.
func lockDSN(path string) string {
	options := url.Values{
		"mode":         {"rw"},
		"_synchronous": {"FULL"}, // a commit survives a power cut
		"_error_rc":    {"1"},    // otherwise the error for a missing folder is "out of memory"
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: options.Encode()}).String()
}

// sqlitePath returns the absolute path of the file that rest, the URL without its scheme, names. ""
// is the user's default file. "PATH" and "//" with an absolute path are taken as written, without
// escapes.
func sqlitePath(rest string) (string, error) {
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(after, "/") {
			return "", fmt.Errorf("%w: sqlite: takes a path on this machine and no host: sqlite:/folder/file.db", ErrURL)
		}
		rest = after
	}
	switch {
	case rest == "":
		return defaultPath()
	case strings.Contains(rest, ":memory:"):
		return "", fmt.Errorf("%w: sqlite: needs a file, because a lock in one process's memory excludes no other process", ErrURL)
	case strings.Contains(rest, "?"):
		return "", fmt.Errorf("%w: sqlite: takes a path and no options after a \"?\"", ErrURL)
	case strings.ContainsFunc(rest, unicode.IsControl):
		return "", fmt.Errorf("%w: sqlite: control character in the path", ErrURL)
	}
	if strings.HasSuffix(rest, "/") {
		return "", fmt.Errorf("%w: sqlite: %s is a folder, name a file in it", ErrURL, rest)
	}
	path, err := filepath.Abs(rest)
	if err != nil {
		return "", fmt.Errorf("find the folder of sqlite:%s: %w", rest, err)
	}
	switch info, err := os.Stat(path); {
	case err != nil: // prepare will report it
	case info.IsDir():
		return "", fmt.Errorf("%w: sqlite: %s is a folder, name a file in it", ErrURL, path)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%w: sqlite: %s is no file but a device, a pipe or a socket", ErrURL, path)
	}
	return path, nil
}

// defaultPath returns the path of the user's default file. It is in the folder for state of the XDG
// base directory specification.
func defaultPath() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // the specification says to ignore relative paths
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find your own file: %w; name one, sqlite:PATH", err)
		}
		if !filepath.IsAbs(home) { // a relative path would be another file in each working directory
			return "", errors.New("find your own file: $HOME is no absolute path; name one, sqlite:PATH")
		}
		if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) { // the home of a system user, which only root could create
			return "", fmt.Errorf("find your own file: $HOME, %s, does not exist; name one, sqlite:PATH", home)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "leasehold", "leasehold.db"), nil
}
