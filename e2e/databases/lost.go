package databases

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// FencesGrowAfterLostRows deletes the row of a resource again and again, at once after the last of
// several grants. It then acquires the resource in every way. db is the database of d, which should
// be fast.
func FencesGrowAfterLostRows(t *testing.T, db *sql.DB, d *sqllock.Driver) {
	var last uint64
	grant := func(req driver.Request, how string) {
		t.Helper()
		req.Resource = "lost/row"
		c := claimOf(t, d, req)
		if req.Queue { // first a place, in a row without a fence
			holder := claimOf(t, d, driver.Request{Resource: req.Resource})
			mustTry(t, holder)
			if _, err := c.Try(t.Context()); err == nil {
				t.Fatal("granted beside a holder")
			}
			mustRelease(t, holder)
		}
		var fence uint64
		until(t, how+" is granted", time.Minute, func() bool { // a waiter is granted once it is woken
			g, err := c.Try(t.Context())
			if err != nil && !errors.Is(err, driver.ErrBusy) {
				t.Fatalf("Try: %v", err)
			}
			fence = g.Fence
			return err == nil
		})
		if fence <= last {
			t.Errorf("%s: fence %d after %d", how, fence, last)
		}
		last = fence
		mustRelease(t, c)
	}
	for start, n := time.Now(), 0; time.Since(start) < 5*time.Second && n < 200; n++ {
		for how, again := range map[string]func(how string){
			"exclusive": func(how string) { grant(driver.Request{}, how) },
			"shared":    func(how string) { grant(driver.Request{Mode: driver.Shared}, how) },
			"queued":    func(how string) { grant(driver.Request{Queue: true}, how) },
			"raised": func(how string) {
				if err := d.RaiseFence(t.Context(), "lost/row", 1); err != nil {
					t.Fatal(err)
				}
				grant(driver.Request{}, how)
			},
		} {
			for range 5 {
				grant(driver.Request{}, "not lost")
			}
			mustExec(t, db, "DELETE FROM leasehold_locks WHERE name = 'lost/row'")
			again(how)
		}
	}
}
