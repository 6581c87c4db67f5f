package mysql

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A long queue is shown whole, whatever the server allows for values that it puts together.
func TestMySQLShowsALongQueue(t *testing.T) {
	onBoth(t, func(t *testing.T, start starter) {
		d := opened(t, start(t).DSN()+"?group_concat_max_len=1024")
		const waiters = 20
		holder := claimtest.New(t, d, driver.Request{Resource: "x", Owner: "holder", TTL: time.Hour})
		claimtest.Granted(t, holder)
		var claims []driver.Claim
		for i := range waiters {
			claims = append(claims, claimtest.New(t, d, driver.Request{Resource: "x", Owner: fmt.Sprintf("owner %02d", i), Note: strings.Repeat("n", 200), TTL: time.Minute, Queue: true}))
		}
		shown := 0
		for end := time.Now().Add(time.Minute); shown != waiters && time.Now().Before(end); {
			var each sync.WaitGroup
			for _, c := range claims { // a place ends soon after its last Try
				each.Go(func() {
					if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
						t.Error(err)
					}
				})
			}
			each.Wait()
			state, err := d.Inspect(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			shown = len(state.Waiters)
		}
		if shown != waiters {
			t.Errorf("Inspect shows %d waiters; want %d", shown, waiters)
		}
		all, _, err := d.List(t.Context(), "", "", 10)
		if err != nil || len(all) != 1 || len(all[0].Waiters) != waiters {
			t.Errorf("List: %+v, %v; want %d waiters", all, err, waiters)
		}
	})
}
