package databases

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A Store is a driver that also closes its connections.
type Store struct {
	*sqllock.Driver
	DB *sql.DB
}

// Open opens a store with a pool of its own at address, in the form of client, a driver of
// database/sql.
func Open(client, address string, on func(*sql.DB, *sqllock.Options) (*sqllock.Driver, error), opts *sqllock.Options) (Store, error) {
	db, err := sql.Open(client, address)
	if err != nil {
		return Store{}, err
	}
	db.SetMaxIdleConns(8)
	d, err := on(db, opts)
	return Store{d, db}, err
}

// Close closes the driver, and then its connections.
func (s Store) Close() error { return errors.Join(s.Driver.Close(), s.DB.Close()) }

// Opened fails t if err is not nil. It closes s when t ends.
func Opened(t testing.TB, s Store, err error) Store {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Migrated is Opened that also creates the tables.
func Migrated(t testing.TB, s Store, err error) Store {
	t.Helper()
	s = Opened(t, s, err)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// A Server is what tests need of a server of their own.
type Server struct {
	Address string // of the database with the locks, for a user with all rights
	Open    func(address string, opts *sqllock.Options) (Store, error)
	Must    func(t testing.TB, statements ...string) (answer string)
	// Database returns the address of another database.
	Database func(name string) string
}

func (s Server) open(t testing.TB, address string, opts *sqllock.Options) Store {
	t.Helper()
	store, err := s.Open(address, opts)
	return Opened(t, store, err)
}

func (s Server) migrated(t testing.TB, address string) Store {
	t.Helper()
	store, err := s.Open(address, nil)
	return Migrated(t, store, err)
}

func claimOf(t testing.TB, d driver.Driver, req driver.Request) driver.Claim {
	t.Helper()
	if req.Owner == "" {
		req.Owner = fmt.Sprint("owner-", time.Now().UnixNano())
	}
	req.TTL = cmp.Or(req.TTL, time.Minute)
	return claimtest.New(t, d, req)
}

// Try returns the error of an attempt on d to acquire name for a minute.
func Try(t testing.TB, d driver.Driver, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*margin)
	defer cancel()
	_, err := claimOf(t, d, driver.Request{Resource: name}).Try(ctx)
	return err
}

func mustTry(t testing.TB, c driver.Claim) uint64 {
	t.Helper()
	return claimtest.Granted(t, c).Fence
}

var mustRelease = claimtest.Released

func mustExec(t testing.TB, db *sql.DB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%.200s: %v", text, err)
		}
	}
}

// until polls until is returns true, for bound at the longest.
func until(t testing.TB, what string, bound time.Duration, is func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}
