package caslock_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/servers"
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

// The stores that need most of the driver: one that makes each write twice, one that forgets the versions of what is
// removed, and one with places beside the record.
func TestConformance(t *testing.T) {
	all := stores()
	for name, store := range map[string]func() caslock.Store{
		"twice":      func() caslock.Store { return twice{&hashed{}} },
		"forgetting": all["forgetting"],
		"queueing":   all["queueing"],
	} {
		t.Run(name, func(t *testing.T) { locktest.RunBubbled(t, harness(store)) })
	}
}

func TestConformanceOfOtherStores(t *testing.T) {
	servers.Long(t, "the suite runs on three stores like them")
	for name, store := range stores() {
		switch name {
		case "forgetting", "queueing": // TestConformance
		default:
			t.Run(name, func(t *testing.T) { locktest.RunBubbled(t, harness(store)) })
		}
	}
}

// harness is of a new store, which keeps what it keeps for the length of a case.
func harness(store func() caslock.Store) func() locktest.Harness {
	return func() locktest.Harness {
		one := store()
		return locktest.Harness{
			Open:         func(t testing.TB) driver.Driver { return open(t, one) },
			NoLossNotice: true, Late: late, CallGoroutines: 3,
		}
	}
}
