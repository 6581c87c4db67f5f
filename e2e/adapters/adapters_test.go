// Package adapters tests what puts Leasehold under the locks of other libraries, with these libraries
// and on a real engine.
package adapters

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// margin is how late something may come on a busy machine.
const margin = 30 * time.Second

// A store is a file of locks that several processes have.
type store string

func newStore(t *testing.T) store { return store(filepath.Join(t.TempDir(), "locks.db")) }

// connect is one more process; its leases have ttl, 0: the default.
func (s store) connect(t *testing.T, ttl time.Duration) *leasehold.Locker {
	t.Helper()
	db, err := sql.Open("sqlite", string(s))
	if err != nil {
		t.Fatal(err)
	}
	d, err := sqllock.NewSQLite(db, nil)
	if err == nil {
		err = d.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close(); d.Close(); db.Close() })
	return locks
}

// lose takes name away from whoever holds it, who hears of it from its next renewal.
func lose(t *testing.T, locks *leasehold.Locker, name string) {
	t.Helper()
	state, err := locks.Inspect(t.Context(), name)
	if err != nil || len(state.Holders) != 1 {
		t.Errorf("holders of %s: %v, %v", name, state.Holders, err)
		return
	}
	if err := locks.Evict(t.Context(), name, state.Holders[0].Owner.Reveal(), "a test"); err != nil {
		t.Errorf("evict: %v", err)
	}
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(margin); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
