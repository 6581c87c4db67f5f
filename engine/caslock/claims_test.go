package caslock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
)

const ttl = 10 * time.Second

// whole is how long a claim is watched before it is found over.
const whole = ttl + ttl/100 + 2*time.Millisecond

// bubble runs f with a clock of its own, that does not wait.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// process opens store as one more process.
func process(t testing.TB, store caslock.Store) driver.Driver {
	d := open(t, store)
	t.Cleanup(func() { d.Close() })
	return d
}

func claimOf(t testing.TB, d driver.Driver, req driver.Request) driver.Claim {
	t.Helper()
	if req.Resource == "" {
		req.Resource = "r"
	}
	if req.TTL == 0 {
		req.TTL = ttl
	}
	c, err := d.Claim(req)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// until tries until it is granted, and returns how long that took.
func until(t testing.TB, c driver.Claim, every time.Duration) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(every) {
		if _, err := c.Try(t.Context()); err == nil {
			return time.Since(start)
		} else if !errors.Is(err, driver.ErrBusy) {
			t.Fatalf("Try: %v", err)
		} else if time.Since(start) > 10*ttl {
			t.Fatalf("not granted within %v", 10*ttl)
		}
	}
}
