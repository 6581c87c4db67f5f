package databases

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// PoolIsKept makes many goroutines use a store at url, an address of the proxy. Their requests come
// in waves, which open few connections.
func PoolIsKept(t *testing.T, url string, through *servers.Proxy) {
	locks := Locker(t, byURL(t, url), leasehold.Options{})
	const many = 64
	cycles := func(rounds int) {
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				for range rounds {
					if err := locks.Do(t.Context(), fmt.Sprint("own/", i), func(context.Context) error { return nil }); err != nil {
						t.Errorf("own/%d: %v", i, err)
					}
				}
			})
		}
		all.Wait()
	}
	cycles(2) // missing rows are created by a statement each
	const rounds = 40
	before := through.Carried()
	cycles(rounds)
	if n := through.Carried() - before; n > rounds {
		t.Errorf("%d connections were opened for %d cycles", n, many*rounds)
	} else {
		t.Logf("%d connections for %d cycles", n, many*rounds)
	}
}
