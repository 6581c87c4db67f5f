package mysql

import (
	"errors"
	"fmt"
	"strings"
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
		for i := range waiters + 1 {
			c := claimtest.New(t, d, driver.Request{Resource: "x", Owner: fmt.Sprintf("owner %02d", i), Note: strings.Repeat("n", 200), TTL: time.Minute, Queue: true})
			if _, err := c.Try(t.Context()); i > 0 && !errors.Is(err, driver.ErrBusy) || i == 0 && err != nil {
				t.Fatal(err)
			}
		}
		state, err := d.Inspect(t.Context(), "x")
		if err != nil || len(state.Waiters) != waiters {
			t.Errorf("Inspect: %d waiters, %v; want %d", len(state.Waiters), err, waiters)
		}
		all, _, err := d.List(t.Context(), "", "", 10)
		if err != nil || len(all) != 1 || len(all[0].Waiters) != waiters {
			t.Errorf("List: %+v, %v; want %d waiters", all, err, waiters)
		}
	})
}
