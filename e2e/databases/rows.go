package databases

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// RowsOutliveTheirUse checks which rows of resources remain in the tables of d, on db. It also
// checks what happens to them when the clock moves on, or back.
func RowsOutliveTheirUse(t *testing.T, db *sql.DB, d *sqllock.Driver) {
	t.Run("purge", func(t *testing.T) { purges(t, db, d) })
	t.Run("rev", func(t *testing.T) { revsComeFromTheClock(t, db, d) })
	t.Run("clock set back", func(t *testing.T) { releasedStaysReleased(t, db, d) })
}

// purges: a row that was last used a day ago is removed, and the next fence is larger all the same.
// There are more such rows than one statement removes.
func purges(t *testing.T, db *sql.DB, d *sqllock.Driver) {
	fences := map[string]uint64{}
	for _, name := range []string{"old", "held", "queued", "recent", "raised", "made"} {
		c := claimOf(t, d, driver.Request{Resource: "purge/" + name, Owner: "me"})
		fences[name] = mustTry(t, c)
		if name != "held" {
			mustRelease(t, c)
		}
	}
	const ago = "UPDATE leasehold_locks SET fence = fence - 90000000000, since = since - 90000000000, rev = rev - 90000000000" // 25 hours
	var many []string
	for i := range 1200 {
		many = append(many, fmt.Sprintf("('purge/%d', 1, '', 0, 0, '', 1, 0, '{\"v\":1}')", i))
	}
	mustExec(t, db,
		ago+" WHERE name LIKE 'purge/%' AND name <> 'purge/recent'",
		"UPDATE leasehold_locks SET crowd = since + 100000000000 WHERE name = 'purge/queued'",
		"UPDATE leasehold_locks SET raised = fence + 90000000000 WHERE name = 'purge/raised'",
		"UPDATE leasehold_locks SET rev = rev + 90000000000 WHERE name = 'purge/made'",
		"INSERT INTO leasehold_locks (name, fence, owner, expires, since, note, rev, crowd, record) VALUES "+strings.Join(many, ", "))
	if err := d.Purge(t.Context()); err != nil {
		t.Fatalf("Purge: %v", err)
	}
	if got := names(t, db, "purge/%"); got != "purge/held purge/made purge/queued purge/raised purge/recent" {
		t.Errorf("left: %.200s", got)
	}
	if fence := mustTry(t, claimOf(t, d, driver.Request{Resource: "purge/old", Owner: "me"})); fence <= fences["old"] {
		t.Errorf("fence %d after %d, whose row was purged", fence, fences["old"])
	}
}

// names returns the names of rows, sorted.
func names(t *testing.T, db *sql.DB, like string) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT name FROM leasehold_locks WHERE name LIKE '"+like+"' ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		all = append(all, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// revsComeFromTheClock: a client that has read a row must not take a new row for it, if the old one
// was purged meanwhile. A purged row is at least a day old.
func revsComeFromTheClock(t *testing.T, db *sql.DB, d *sqllock.Driver) {
	try := func(mode driver.Mode) func(ctx context.Context, name string) error {
		return func(ctx context.Context, name string) error {
			_, err := claimOf(t, d, driver.Request{Resource: name, Owner: "me", Mode: mode}).Try(ctx)
			return err
		}
	}
	for how, use := range map[string]func(ctx context.Context, name string) error{
		"alone":  try(driver.Exclusive),
		"shared": try(driver.Shared),
		"raise":  func(ctx context.Context, name string) error { return d.RaiseFence(ctx, name, 42) },
	} {
		before := time.Now().Add(-time.Hour).UnixMicro()
		if err := use(t.Context(), "rev/"+how); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		var rev int64
		if err := db.QueryRowContext(t.Context(), "SELECT rev FROM leasehold_locks WHERE name = 'rev/"+how+"'").Scan(&rev); err != nil || rev < before {
			t.Errorf("%s: a new row has rev %d, %v", how, rev, err)
		}
	}
}

// releasedStaysReleased: a released lock stays free even if the clock is set back by an hour. The
// test moves all instants in the tables an hour ahead instead.
func releasedStaysReleased(t *testing.T, db *sql.DB, d *sqllock.Driver) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		name := fmt.Sprint("set back/", mode)
		c := claimOf(t, d, driver.Request{Resource: name, Owner: "me", Mode: mode})
		mustTry(t, c)
		mustRelease(t, c)
		mustExec(t, db, "UPDATE leasehold_locks SET expires = expires + 3600000000, since = since + 3600000000 WHERE name = '"+name+"'")
		mustTry(t, claimOf(t, d, driver.Request{Resource: name, Owner: "another"}))
	}
}
