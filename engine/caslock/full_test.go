package caslock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A narrow is a store with a bound for its values, as all have one.
type narrow struct{ caslock.Store }

const bound = 4096

func (s narrow) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if len(value) > bound {
		return "", fmt.Errorf("%w: %d bytes", caslock.ErrRefused, len(value))
	}
	return s.Store.Write(ctx, name, value, was, life)
}

// However many come, and with whatever notes: it is they who are refused when the store takes no more, and not
// the renewals and the release of the one who holds.
func TestWhoComesLeavesRoomForTheHolder(t *testing.T) {
	for name, store := range stores() {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				bubble(t, func(t *testing.T) { crowded(t, process(t, narrow{store()}), mode) })
			})
		}
	}
}

func crowded(t *testing.T, d driver.Driver, mode driver.Mode) {
	holder := claimOf(t, d, driver.Request{Owner: "holder", Mode: mode})
	claimtest.Granted(t, holder)
	var first driver.Claim
	for i, refused := 0, 0; refused < 40; i++ {
		c := claimOf(t, d, driver.Request{Owner: fmt.Sprint("other-", i), Mode: mode, Queue: true, Note: strings.Repeat("x", 10*(40-refused))})
		_, err := c.Try(t.Context())
		switch {
		case errors.Is(err, caslock.ErrRefused): // the next has less to say
			refused++
		case err != nil && !errors.Is(err, driver.ErrBusy):
			t.Fatalf("Try of other %d: %v", i, err)
		case first == nil:
			first = c
		}
	}
	for range 20 {
		if _, err := holder.Renew(t.Context(), ttl); err != nil {
			t.Fatalf("Renew of the holder: %v", err)
		}
	}
	claimtest.Released(t, holder)
	claimtest.Granted(t, first)
	claimtest.Released(t, first)
}
