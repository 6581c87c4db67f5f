package caslock_test

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A former version, which has places in the record, excludes and is excluded, and nobody waits for ever.
func TestFormerVersionBeside(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &queueing{}
		former := formerly{&s.counting}
		inside := make(chan struct{}, 1)
		var all []*waiting
		first, err := lockerOn(t, s).Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if i%2 == 0 {
				all = append(all, acquires(t, process(t, s)))
			} else {
				all = append(all, acquires(t, process(t, former)))
			}
		}
		time.Sleep(5 * time.Second)
		gives(t, first)
		var served sync.WaitGroup
		for _, w := range all {
			served.Go(func() {
				lease := w.held(t)
				select {
				case inside <- struct{}{}:
				default:
					t.Error("two hold")
				}
				time.Sleep(time.Millisecond)
				<-inside
				gives(t, lease)
			})
		}
		served.Wait()
	})
}

// A formerly is a store of which a former version knew no places, nor what the record says of them.
type formerly struct{ *counting }

func (s formerly) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	return s.counting.Write(ctx, name, regexp.MustCompile(`,"beside":\d`).ReplaceAll(value, nil), was, life)
}

func (s formerly) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	return s.counting.Watch(ctx, begun, func(i caslock.Item) {
		if !strings.Contains(i.Name, "\x00") {
			heard(i)
		}
	})
}

// A plainly store refuses places.
type plainly struct{ *queueing }

func (s plainly) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if isPlace(name) {
		return "", driver.ErrUnsupported
	}
	return s.queueing.Write(ctx, name, value, was, life)
}

// Where a store keeps no places, they are in the record.
func TestPlacesInTheRecordWhereThereAreNoOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := plainly{&queueing{}}
		d := process(t, s)
		holder := claimOf(t, d, driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		waiter := claimOf(t, process(t, s), driver.Request{Owner: "waits", Queue: true})
		claimtest.Refused(t, waiter)
		if st, err := d.(driver.Operator).Inspect(t.Context(), "r"); err != nil || len(st.Waiters) != 1 {
			t.Errorf("%v, %v; want a waiter", st, err)
		}
		claimtest.Released(t, holder)
		claimtest.Refused(t, claimOf(t, d, driver.Request{Owner: "passes by"}))
		claimtest.Granted(t, waiter)
		claimtest.Released(t, waiter)
		if s.places() > 0 || s.has("r") {
			t.Error("something is left")
		}
	})
}
