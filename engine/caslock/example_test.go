package caslock_test

import (
	"context"
	"fmt"
	"log"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/locktest"
)

// A table is a store as it may be anywhere: rows with a name, a value and a revision.
type table struct {
	mu   sync.Mutex
	rows map[string]row
}

type row struct {
	value    []byte
	revision int
}

func (t *table) item(name string, r row) caslock.Item {
	if r.revision == 0 {
		return caslock.Item{}
	}
	return caslock.Item{Name: name, Value: r.value, Version: caslock.Version(fmt.Sprint(r.revision))}
}

// Read is SELECT value, revision FROM locks WHERE name = $1.
func (t *table) Read(_ context.Context, name string) (caslock.Item, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.item(name, t.rows[name]), nil
}

// Write is UPDATE locks SET value = $2, revision = revision + 1 WHERE name = $1 AND revision = $3, and
// INSERT … ON CONFLICT DO NOTHING where there was none; no row changed: ErrChanged.
func (t *table) Write(_ context.Context, name string, value []byte, was caslock.Version, _ time.Duration) (caslock.Version, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[name]
	if t.item(name, r).Version != was {
		return "", caslock.ErrChanged
	}
	t.rows[name] = row{value, r.revision + 1}
	return t.item(name, t.rows[name]).Version, nil
}

// List is SELECT name, value, revision FROM locks WHERE name > $2 ORDER BY name, without those that begin otherwise, LIMIT $3.
func (t *table) List(_ context.Context, prefix, after string, limit int) (items []caslock.Listed, next string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(t.rows)) {
		if name <= after || !strings.HasPrefix(name, prefix) {
			continue
		}
		if len(items) == limit {
			return items, items[limit-1].Name, nil
		}
		items = append(items, caslock.Listed{Item: t.item(name, t.rows[name])})
	}
	return items, "", nil
}

// A store of one's own keeps locks when it can replace a value only if it is unchanged.
func Example() {
	d, err := caslock.New(&table{rows: make(map[string]row)}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	for range 2 {
		err = locks.Do(context.Background(), "orders/42", func(context.Context) error {
			fmt.Println("shipping order 42")
			return nil
		})
		if err != nil { // of ErrLost: another process may have shipped it meanwhile, roll back
			log.Fatal(err)
		}
	}
	// Output:
	// shipping order 42
	// shipping order 42
}

// A store of one's own is tried by the suite that all engines pass.
func ExampleNew() {
	server := &table{rows: make(map[string]row)}
	connect := func(testing.TB) caslock.Store { return server }
	conformance := func(t *testing.T) {
		locktest.Run(t, locktest.Harness{
			Open: func(t testing.TB) driver.Driver {
				d, err := caslock.New(connect(t), nil) // a connection of its own, each time
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
			NoLossNotice:   true,            // a holder hears of its eviction from its next renewal
			Late:           3 * time.Second, // who comes late watches a dead holder for a TTL
			CallGoroutines: 3,
		})
	}
	_ = conformance // go test calls it
}
