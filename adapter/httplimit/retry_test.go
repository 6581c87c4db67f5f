package httplimit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// Retry-After follows from those who wait, the limit that counts, and how long requests take.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	d := memory.New()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	l := &Limit{Locks: locks, Most: 4}
	ask := func(owner string) {
		c, err := d.Claim(driver.Request{Resource: "a", Owner: owner, Mode: driver.Shared, Limit: 1, TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Try(t.Context()); err != nil && !errors.Is(err, driver.ErrBusy) {
			t.Fatal(err)
		}
	}
	want := func(seconds int, why string) {
		t.Helper()
		if got := l.retryAfter(t.Context(), "a"); got != seconds {
			t.Errorf("%s: %d s, want %d", why, got, seconds)
		}
	}
	want(1, "nothing is known")
	l.took.add(10 * time.Second)
	want(3, "a request takes 10 s, and 4 are served at once")
	for i := range 4 { // one holds
		ask(fmt.Sprint("owner ", i))
	}
	want(10, "three wait")
	if err := locks.SetLimit(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	want(20, "two are served at once")
	l.took.add(1000 * time.Second)
	want(60, "most")
}
