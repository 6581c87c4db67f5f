package postgres

import (
	"database/sql"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

var hits = regexp.MustCompile(`shared hit=(\d+)`)

// While somebody's transaction is open, the old versions of a row stay, and whoever looks
// for the row passes them all. Afterwards they go.
func TestPostgresLongTransactionKeepsOldVersions(t *testing.T) {
	t.Parallel()
	const turns = 2000
	p := servers.StartPostgres(t)
	d := opened(t, p.URL()+"&synchronous_commit=off", "")
	pages := func(when string) (n int) {
		t.Helper()
		rows, err := d.DB.Query("EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM leasehold_locks WHERE name = 'hot'")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			if found := hits.FindStringSubmatch(line); found != nil && n == 0 {
				n, _ = strconv.Atoi(found[1])
			}
		}
		t.Logf("%s: %d pages for a look at the row", when, n)
		return n
	}
	hold := func() {
		for range turns {
			c := claimtest.New(t, d, driver.Request{Resource: "hot", Owner: "somebody", TTL: time.Minute})
			claimtest.Granted(t, c)
			claimtest.Released(t, c)
		}
	}
	hold()
	before := pages("before")
	tx, err := d.DB.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("SELECT FROM leasehold_meta"); err != nil {
		t.Fatal(err)
	}
	hold()
	during := pages("after 4000 changes beside a transaction")
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	p.Must(t, "VACUUM leasehold_locks")
	if after := pages("after its end, and a vacuum"); after*4 > during || before*4 > during {
		t.Errorf("%d pages before, %d during, %d after; want many during it alone", before, during, after)
	}
}
