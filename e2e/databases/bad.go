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

// A Bad is a database that is not suitable for locks.
type Bad struct {
	Name     string   // also of the database
	Create   string   // text after the name in CREATE DATABASE
	Migrated bool     // tables are created and a lock is held before it is spoilt
	Spoil    []string // statements that spoil it
	Client   string   // text after the address
	Try      error    // error of a Try
	Migrate  error    // error of Migrate, and of a Try after it, unless Migrated
}

// bad are those that exist on every server.
var bad = []Bad{
	{Name: "no_tables", Try: sqllock.ErrNoSchema},
	{Name: "alien", Spoil: []string{"CREATE TABLE leasehold_locks (door TEXT)"}, Try: sqllock.ErrNoSchema, Migrate: driver.ErrCorrupt},
	{Name: "newer", Spoil: []string{"CREATE TABLE leasehold_meta (version INT)", "INSERT INTO leasehold_meta VALUES (99)"}, Try: driver.ErrCorrupt, Migrate: driver.ErrCorrupt},
	{Name: "alien_meta", Spoil: []string{"CREATE TABLE leasehold_meta (door TEXT)"}, Try: driver.ErrCorrupt, Migrate: driver.ErrCorrupt},
	{Name: "no_column", Migrated: true, Spoil: []string{"ALTER TABLE leasehold_locks DROP COLUMN crowd"}, Try: driver.ErrCorrupt},
}

// BadDatabases checks that no lock is granted in bad databases, and whether Migrate helps. more are
// the ones of this server.
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
			d.DB.SetMaxOpenConns(1) // one connection is enough for an answer
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

// MigratesAtOnce makes many processes create tables at the same time, in two schemas.
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
	// Locks of the same name in another schema are other locks.
	for _, schema := range []string{"", "apart"} {
		if err := Try(t, s.open(t, s.Address, &sqllock.Options{Prefix: "mutex_", Schema: schema}), "orders/42"); err != nil {
			t.Error(err)
		}
	}
}

// FullDisk checks that filling the disk leads to an error that says so, and to no lock. The tables
// of d must be on a small disk.
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
