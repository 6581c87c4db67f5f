package memcachelock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Of hundreds of leases those go on whose server answers, while another stands still.
func TestServerThatHangsCostsOthersNothing(t *testing.T) {
	const many, ttl = 400, 3 * time.Second
	hangs, answers := servers.StartMemcached(t), servers.StartMemcached(t)
	hold := func(addresses []string, within func(name string, d *Driver) bool) (held []*leasehold.Lease) {
		d, err := New(addresses, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		l, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		for i := range many {
			name := fmt.Sprint(len(addresses), "/", i)
			lease, err := l.Acquire(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if within(name, d) {
				held = append(held, lease)
			}
		}
		return held
	}
	elsewhere := hold([]string{answers.Addr()}, func(string, *Driver) bool { return true })
	beside := hold([]string{hangs.Addr(), answers.Addr()}, func(name string, d *Driver) bool {
		return pick(d.servers, keyOf(d.prefix, name)).address == answers.Addr()
	})
	defer hangs.Pause()()
	time.Sleep(3 * ttl)
	lost := func(all []*leasehold.Lease) (n int, why error) {
		for _, lease := range all {
			if lease.Context().Err() != nil {
				n, why = n+1, context.Cause(lease.Context())
			}
		}
		return n, why
	}
	if n, _ := lost(elsewhere); n > 0 {
		t.Skipf("%d of %d leases of a Locker on the server that answers ended: the machine is too busy", n, len(elsewhere))
	}
	if n, why := lost(beside); n > 0 {
		t.Errorf("%d of %d leases on the server that answers ended: %v", n, len(beside), why)
	}
}
