package caslock_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A lasting store has watches that end a second after they should.
type lasting struct{ *queueing }

func (s lasting) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	defer time.Sleep(time.Second)
	return s.queueing.Watch(ctx, begun, heard)
}

// A watch that ends late does not end the next one.
func TestWatchOutlastsTheEndOfTheOneBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		d := process(t, lasting{s})
		holder := claimOf(t, process(t, s), driver.Request{Owner: "holder", TTL: time.Hour})
		claimtest.Granted(t, holder)
		goes := claimOf(t, d, driver.Request{Owner: "goes", Queue: true})
		claimtest.Refused(t, goes)
		claimtest.Released(t, goes)
		time.Sleep(10*time.Second + 100*time.Millisecond) // until the watch is no longer needed, and ends
		waiter := claimOf(t, d, driver.Request{Owner: "waits", Queue: true})
		claimtest.Refused(t, waiter)
		time.Sleep(3 * time.Second)
		claimtest.Released(t, holder)
		claimtest.Granted(t, waiter)
	})
}
