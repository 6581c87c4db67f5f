package databases

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// TablesRestored drops the tables and puts back those of before, as from a dump, while drivers go on that have
// prepared their statements. Holders of before hold, those of since learn, and what was released since is free
// when its lease is over. Fences grow.
func TablesRestored(t *testing.T, s Server) {
	one, other, operator := s.migrated(t, s.Address), s.migrated(t, s.Address), s.migrated(t, s.Address)
	const short = 5 * time.Second
	claimed := func(d driver.Driver, name string, ttl time.Duration) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: fmt.Sprint(name, time.Now().UnixNano()), TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	kept, released := claimed(one, "kept", time.Minute), claimed(one, "released", short)
	fence := mustTry(t, kept)
	mustTry(t, released)
	mustExec(t, operator.DB, "CREATE TABLE copied AS SELECT * FROM leasehold_locks")
	mustRelease(t, released)
	since, next := claimed(one, "since", time.Minute), claimed(other, "released", short)
	mustTry(t, since)
	last := mustTry(t, next)
	mustRelease(t, next)

	mustExec(t, operator.DB, "DROP TABLE leasehold_locks", "DROP TABLE leasehold_fences", "DROP TABLE leasehold_meta")
	if _, err := kept.Renew(t.Context(), time.Minute); !errors.Is(err, sqllock.ErrNoSchema) {
		t.Errorf("Renew without tables: %v; want ErrNoSchema", err)
	}
	again := s.migrated(t, s.Address)
	mustExec(t, again.DB, "INSERT INTO leasehold_locks SELECT * FROM copied")

	if g, err := kept.Renew(t.Context(), time.Minute); err != nil || g.Fence != fence {
		t.Errorf("Renew of before: %v, %v; want fence %d", g, err, fence)
	}
	if _, err := since.Renew(t.Context(), time.Minute); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of what was granted since: %v; want ErrLost", err)
	}
	for _, d := range []Store{one, other} {
		c := claimed(d, "released", short)
		until(t, "what was released since is granted", time.Minute, func() bool {
			g, err := c.Try(t.Context())
			if err != nil && !errors.Is(err, driver.ErrBusy) {
				t.Fatalf("Try: %v", err)
			}
			if err == nil && g.Fence <= last {
				t.Errorf("fence %d after %d", g.Fence, last)
			}
			return err == nil
		})
		mustRelease(t, c)
	}
}
