package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// A shorter bar of the same owner, by another process, does not shorten the longer one.
func TestBarIsNotShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New()
		defer d.Close()
		claim := func() driver.Claim {
			c, err := d.Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, bar := range []time.Duration{time.Hour, time.Minute, 0} {
			if err := claim().Release(t.Context(), driver.End{Bar: bar}); !errors.Is(err, driver.ErrLost) {
				t.Fatalf("Release with a bar of %v: %v, want ErrLost", bar, err)
			}
		}
		time.Sleep(time.Hour - time.Second)
		if _, err := claim().Try(t.Context()); !errors.Is(err, driver.ErrBarred) {
			t.Errorf("Try at the end of the longest bar: %v, want ErrBarred", err)
		}
		time.Sleep(2 * time.Second)
		if _, err := claim().Try(t.Context()); err != nil {
			t.Errorf("Try after the bar: %v", err)
		}
	})
}
