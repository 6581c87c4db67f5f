package httplock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/memory"
)

// Whoever was evicted is told so, and why: by the events, and by a renewal where there are none.
func TestEvictionIsToldAsSuch(t *testing.T) {
	t.Parallel()
	url := instances(t, memory.NewServer(), 1, nil)
	for _, noEvents := range []bool{false, true} {
		d, err := httplock.Connect(t.Context(), url, &httplock.Options{NoEvents: noEvents})
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 1)
		req := driver.Request{Resource: "n", Owner: "an-owner-of-this-test", TTL: time.Minute, Lost: func(err error) { told <- err }}
		c, err := d.Claim(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.(driver.Operator).Evict(t.Context(), "n", req.Owner, "maintenance"); err != nil {
			t.Fatal(err)
		}
		want := driver.Evicted("maintenance").Error()
		if !noEvents {
			select {
			case err := <-told:
				if !errors.Is(err, driver.ErrLost) || !errors.Is(err, driver.ErrEvicted) || err.Error() != want {
					t.Errorf("told %v, want %s", err, want)
				}
			case <-time.After(20 * time.Second):
				t.Error("not told")
			}
		}
		_, err = c.Renew(t.Context(), time.Minute)
		if !errors.Is(err, driver.ErrLost) || noEvents && !errors.Is(err, driver.ErrEvicted) {
			t.Errorf("renewed after it, events %v: %v", !noEvents, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
