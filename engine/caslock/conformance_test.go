package caslock_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/locktest"
)

func open(t testing.TB, store caslock.Store) driver.Driver {
	d, err := caslock.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// late is how much longer than its TTL a lease may last: who comes when it is over watches it for a
// TTL of his own.
const late = 3 * time.Second

// Each store keeps what it keeps for the length of a case.
func TestConformance(t *testing.T) {
	all := stores()
	all["twice"] = func() caslock.Store { return twice{&hashed{}} }
	for name, store := range all {
		t.Run(name, func(t *testing.T) {
			locktest.RunBubbled(t, func() locktest.Harness {
				one := store()
				return locktest.Harness{
					Open:         func(t testing.TB) driver.Driver { return open(t, one) },
					NoLossNotice: true, Late: late, CallGoroutines: 3,
				}
			})
		})
	}
}
