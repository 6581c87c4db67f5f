package databases

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/several"
)

// PoolIsKept makes many goroutines use a store at url, an address of the proxy. Their requests come
// in waves, which open few connections.
func PoolIsKept(t *testing.T, url string, through *servers.Proxy) {
	locks := Locker(t, byURL(t, url), leasehold.Options{})
	const many = 64
	cycles := func(rounds int) error {
		return cmp.Or(several.Errors(many, many, func(i int) (late error) {
			for range rounds {
				late = cmp.Or(late, locks.Do(t.Context(), fmt.Sprint("own/", i), func(context.Context) error { return nil }))
			}
			return late
		})...)
	}
	const rounds, most = 40, 10
	for again := 0; ; again++ {
		late := cycles(2) // missing rows are created by a statement each
		before := through.Carried()
		if late == nil {
			late = cycles(rounds)
		}
		n := through.Carried() - before
		t.Logf("%d connections for %d cycles: %v", n, many*rounds, late)
		if late == nil && n <= rounds {
			return
		}
		if again == most { // on a busy machine, whoever has no answer in time opens a connection
			t.Fatalf("more than %d connections, or calls without an answer, each time", rounds)
		}
	}
}
