package mysql

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A renewal that tells of waiters waits for nobody who has locked their places, nor does it lock any.
func TestMySQLTellsWithoutLocks(t *testing.T) {
	onBoth(t, func(t *testing.T, start starter) {
		m := start(t)
		d, other := opened(t, m.DSN()), opened(t, m.DSN())
		wanted := 0
		holder := func(resource string) driver.Claim {
			c, err := d.Claim(driver.Request{Resource: resource, Owner: "holder", TTL: time.Minute, Wanted: func() { wanted++ }})
			if err == nil {
				_, err = c.Try(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		renew := func(ctx context.Context, c driver.Claim, want int) {
			t.Helper()
			wanted = 0
			if _, err := c.Renew(ctx, time.Minute); err != nil || wanted != want {
				t.Fatalf("Renew: %v, Wanted was called %d times; want %d", err, wanted, want)
			}
		}
		c, alone := holder("x"), holder("alone")
		renew(t.Context(), c, 0)
		waiter := claimtest.New(t, other, driver.Request{Resource: "x", Owner: "waiter", TTL: time.Minute, Queue: true})
		if _, err := waiter.Try(t.Context()); err == nil {
			t.Fatal("the waiter is granted")
		}
		tx, err := other.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		for _, table := range []string{"leasehold_places", "leasehold_beats"} {
			if _, err := tx.Exec(fmt.Sprintf("SELECT * FROM %s FOR UPDATE", table)); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than a statement waits for a row
		defer cancel()
		renew(ctx, c, 1)
		renew(ctx, alone, 0)
	})
}
