package fence_test

import (
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
)

var _ fence.Lease = (*leasehold.Lease)(nil)

// A guard that was not told which database it is on would be right on one kind alone.
func TestDialectMustBeSaid(t *testing.T) {
	for dialect, ok := range map[fence.Dialect]bool{0: false, fence.SQLite: true, fence.Postgres: true, fence.MySQL: true, fence.MySQL + 1: false} {
		if _, err := fence.NewSQL(dialect, ""); (err == nil) != ok {
			t.Errorf("dialect %d: %v", dialect, err)
		}
	}
}

// What it does on databases is tested in e2e/once.
func TestTablesOfOnceArePlainIdentifiers(t *testing.T) {
	guard, err := fence.NewSQL(fence.SQLite, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fence.NewOnce(nil, ""); err == nil {
		t.Error("a Once without a guard")
	}
	for table, ok := range map[string]bool{"": true, "done": true, "jobs.done": true, "a b": false, "x;": false, "1a": false, "a.b.c": false} {
		if _, err := fence.NewOnce(guard, table); (err == nil) != ok {
			t.Errorf("table %q: %v", table, err)
		}
	}
}
