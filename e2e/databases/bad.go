package databases

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// A Bad is a database that is not as it should be.
type Bad struct {
	Name     string   // of the database, too
	Create   string   // what follows the name in CREATE DATABASE
	Migrated bool     // before it is spoilt, and a lock is held
	Spoil    []string // statements
	Client   string   // follows the address
	Try      error    // what an attempt ends with
	Migrate  error    // what Migrate, and an attempt after it, end with, unless Migrated
}

// bad are those that are the same everywhere.
var bad = []Bad{
	{Name: "no_tables", Try: sqllock.ErrNoSchema},
	{Name: "alien", Spoil: []string{"CREATE TABLE leasehold_locks (door TEXT)"}, Try: sqllock.ErrNoSchema, Migrate: driver.ErrCorrupt},
	{Name: "newer", Spoil: []string{"CREATE TABLE leasehold_meta (version INT)", "INSERT INTO leasehold_meta VALUES (99)"}, Try: driver.ErrCorrupt, Migrate: driver.ErrCorrupt},
	{Name: "alien_meta", Spoil: []string{"CREATE TABLE leasehold_meta (door TEXT)"}, Try: driver.ErrCorrupt, Migrate: driver.ErrCorrupt},
	{Name: "no_column", Migrated: true, Spoil: []string{"ALTER TABLE leasehold_locks DROP COLUMN crowd"}, Try: driver.ErrCorrupt},
}

// BadDatabases checks that nothing is granted in them, and whether Migrate helps. more are
// those of this server.
func BadDatabases(t *testing.T, s Server, more ...Bad) {
	for _, b := range append(more, bad...) {
		t.Run(b.Name, func(t *testing.T) {
			s.Must(t, "CREATE DATABASE "+b.Name+" "+b.Create)
			address := s.Database(b.Name)
			if b.Migrated {
				mustTry(t, claimOf(t, s.migrated(t, address), driver.Request{Resource: "x"}))
			}
			mustExec(t, s.open(t, address, nil).DB, b.Spoil...)
			d := s.open(t, address+b.Client, nil)
			if err := Try(t, d, "x"); !errors.Is(err, b.Try) {
				t.Errorf("Try: %v; want %v", err, b.Try)
			}
			if b.Migrated {
				return
			}
			err := d.Migrate(t.Context())
			if err == nil {
				err = Try(t, d, "x")
			}
			if !errors.Is(err, b.Migrate) {
				t.Errorf("Migrate and Try: %v; want %v", err, b.Migrate)
			}
		})
	}
}

// MigratesAtOnce has many processes prepare tables at the same time, in two schemas.
func MigratesAtOnce(t *testing.T, s Server) {
	s.Must(t, "CREATE SCHEMA apart")
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range 10 {
		opts := &sqllock.Options{Prefix: "mutex_"}
		if i%2 == 0 {
			opts.Schema = "apart"
		}
		d := s.open(t, s.Address, opts)
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
		if err := Try(t, s.open(t, s.Address, &sqllock.Options{Prefix: "mutex_", Schema: schema}), "orders/42"); err != nil {
			t.Error(err)
		}
	}
}

// FullDisk checks that what fills the disk ends with an error that says so, and no lock. The
// locks of d must be on a small one.
func FullDisk(t *testing.T, d driver.Driver) {
	for i := range 5000 {
		name := fmt.Sprint(strings.Repeat("long/", 90), i)
		err := Try(t, d, name)
		if err == nil {
			continue
		}
		if !errors.Is(err, sqllock.ErrFull) {
			t.Fatalf("Try: %v; want ErrFull", err)
		}
		if st, err := d.(driver.Operator).Inspect(t.Context(), name); err != nil || len(st.Holders) > 0 {
			t.Errorf("Inspect: %+v, %v; want no holder", st, err)
		}
		return
	}
	t.Error("the disk never was full")
}
