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
