package redislock

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A lease that ends after its renewal, and before its history is refreshed by that, is lost.
func TestLostBeforeItsHistoryIsRefreshed(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Hour // of which each renewal refreshes the history
	d := driverOn(t, speaking(t, func(words []string) any {
		switch {
		case isScript(words, scriptRenewAll):
			return []any{int64(1)}
		case isScript(words, scriptRenew):
			return []any{int64(0)}
		}
		return grantPlain(words)
	}), nil)
	c, err := d.Claim(driver.Request{Resource: "n", Owner: "owner", TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A refresh that is not answered soon, on a busy machine, is left to the next renewal.
	for end := time.Now().Add(time.Minute); ; {
		g, err := c.Renew(t.Context(), ttl)
		if errors.Is(err, driver.ErrLost) {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("renewed for %v: %v; want ErrLost", g.TTL, err)
		}
	}
}
