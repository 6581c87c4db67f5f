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
	"unicode"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	_ "modernc.org/sqlite" // registers the database/sql driver "sqlite"
)

// sqliteStore is one in a file.
type sqliteStore struct {
	databaseStore
	path string
	own  bool // the user's own file, which is nobody's slip
}

// prepare creates the file and its tables. Without them there is nothing to look at.
func (s sqliteStore) prepare(ctx context.Context, create bool) error {
	err := s.find(create || s.own)
	if err != nil {
		return err
	}
	if create || s.own {
		err = s.Migrate(ctx)
	} else {
		err = existing(ctx, s.Driver)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", s.path, err)
	}
	return nil
}

// find checks that the file exists, or creates it. SQLite takes an empty file as a new database.
func (s sqliteStore) find(create bool) error {
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
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o644) // with the mode that SQLite gives
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open %s: its folder does not exist, create it first", s.path)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// permitted refuses a file that this process may not write. To read one that nobody has open, SQLite
// makes the files beside it, which then belong to the reader: the file's owner may not write them.
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

// openSQLite takes the file that the URL names, as sqlitePath understands it.
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
	db.SetMaxIdleConns(4) // opening one costs more than a grant
	d, err := sqllock.NewSQLite(db, &sqllock.Options{Path: path})
	if err != nil {
		db.Close() // its error would only hide the first
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s := sqliteStore{databaseStore{d, db}, path, rest == ""}
	if err := s.prepare(ctx, create); err != nil {
		go s.Close() // which may wait for another process, and for nothing else
		return nil, err
	}
	return s.databaseStore, nil
}

func resolveSQLite(url string) (string, error) {
	scheme, rest, _ := storeurl.Cut(url)
	path, err := sqlitePath(rest)
	if err != nil {
		return "", err
	}
	return scheme + ":" + path, nil
}

// lockDSN is the data source name of a lock store: sqllock waits for other writers by
// itself, and more finely than SQLite does. The file is created by prepare alone.
func lockDSN(path string) string {
	options := url.Values{
		"mode":         {"rw"},
		"_synchronous": {"FULL"}, // a commit survives a power cut
		"_error_rc":    {"1"},    // else a folder that is missing reads "out of memory"
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: options.Encode()}).String()
}

// sqlitePath returns the absolute path of the file that rest names: "" is the user's
// own file; "PATH" and "//" + absolute path are taken as they
// are written, without escapes.
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
	case err != nil: // prepare says it
	case info.IsDir():
		return "", fmt.Errorf("%w: sqlite: %s is a folder, name a file in it", ErrURL, path)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%w: sqlite: %s is no file but a device, a pipe or a socket", ErrURL, path)
	}
	return path, nil
}

// defaultPath is the user's own file, in the folder of the XDG base directory
// specification for state.
func defaultPath() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // the specification says to ignore relative paths
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find your own file: %w; name one, sqlite:PATH", err)
		}
		if !filepath.IsAbs(home) { // another file in each folder
			return "", errors.New("find your own file: $HOME is no absolute path; name one, sqlite:PATH")
		}
		if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) { // a system user's, which root could make
			return "", fmt.Errorf("find your own file: $HOME, %s, does not exist; name one, sqlite:PATH", home)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "leasehold", "leasehold.db"), nil
}
