package sqlite

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// One call renews all that are held, and tells apart those that are not.
func TestSQLiteRenewsInBatches(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	d, other := openSQLite(t, path), openSQLite(t, path)
	const leases, ttl = 100, 2 * time.Minute
	renewals := make([]driver.Renewal, leases)
	fences := make([]uint64, leases)
	for i := range renewals {
		req := driver.Request{Resource: fmt.Sprint("lease/é/", i), Owner: fmt.Sprint("owner-", i)}
		if i%10 == 0 {
			req.Mode = driver.Shared
		}
		c := claim(t, d, req)
		fences[i] = granted(t, c).Fence
		renewals[i] = driver.Renewal{Claim: c, TTL: ttl}
	}
	for _, i := range []int{20, 33} {
		if err := other.Evict(bounded(t), fmt.Sprint("lease/é/", i), fmt.Sprint("owner-", i), "a test"); err != nil {
			t.Fatal(err)
		}
	}
	d.RenewAll(bounded(t), renewals)
	for i, r := range renewals {
		lost := i == 20 || i == 33
		if lost != errors.Is(r.Err, driver.ErrLost) || !lost && (r.Err != nil || r.Grant.Fence != fences[i] || r.Grant.TTL != ttl) {
			t.Errorf("lease %d: %+v, %v", i, r.Grant, r.Err)
		}
		st, err := other.Inspect(bounded(t), fmt.Sprint("lease/é/", i))
		if err != nil || !lost && (len(st.Holders) != 1 || st.Holders[0].Left < time.Minute+time.Second) {
			t.Errorf("lease %d: %+v, %v; want more than a minute left", i, st, err)
		}
	}
}

// A program has run ANALYZE while there were few leases: renewals of many are as fast as with what it finds now.
func TestSQLiteStatisticsOfASmallerTable(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	db := openDB(t, path)
	insert := func(name string, rows int) {
		mustExec(t, db, fmt.Sprintf(`INSERT INTO leasehold_locks (name, fence, owner, expires, since, note, rev, crowd, record)
			WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT '%s/' || i, 1, 'owner', 9e15, 1, '', 1, 0, '{"v":1}' FROM n`, rows, name))
	}
	quickest := func() (least time.Duration) {
		d := openSQLite(t, path) // reads the statistics
		renewals := make([]driver.Renewal, 500)
		for i := range renewals {
			req := driver.Request{Resource: fmt.Sprint("own/", i), Owner: fmt.Sprint("owner-", i)}
			renewals[i] = driver.Renewal{Claim: claim(t, d, req), TTL: time.Hour}
			granted(t, renewals[i].Claim)
		}
		for range 5 {
			start := time.Now()
			d.RenewAll(bounded(t), renewals)
			if took := time.Since(start); least == 0 || took < least {
				least = took
			}
			for _, r := range renewals {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
			}
		}
		for _, r := range renewals {
			released(t, r.Claim)
		}
		return least
	}
	openSQLite(t, path)
	insert("first", 1)
	mustExec(t, db, "ANALYZE")
	insert("other", 10000)
	then := quickest()
	mustExec(t, db, "ANALYZE")
	now := quickest()
	t.Logf("500 renewals: %v with old statistics, %v with new ones", then, now)
	if then > 20*now {
		t.Errorf("500 renewals take %v with statistics of one row, and %v with those of all", then, now)
	}
}
