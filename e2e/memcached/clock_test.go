package memcached

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Memcached's clock stands for a second at a time, and leaves one out now and then, which
// is made to happen here. No item ends before its lease.
func TestMemcachedClockThatLeavesASecondOut(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	m := servers.StartMemcached(t)
	d, client := openDriver(t, nil, m.Addr()), memcache.New(m.Addr())
	client.Timeout = 10 * time.Second // the server is stopped now and then
	defer client.Close()
	sent := make(map[string]time.Time) // when the leases that are still there began
	var longest time.Duration          // stop of the server, which is late by as much when it goes on
	watch := func() {
		t.Helper()
		var keys []string
		for key := range sent {
			keys = append(keys, key)
		}
		found, err := client.GetMulti(keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if found[key] != nil {
				continue
			}
			// Not there when the answer came, at the latest.
			if lasted := time.Since(sent[key]); lasted < ttl-longest-50*time.Millisecond {
				t.Errorf("%s lasted for %v", key, lasted)
			}
			delete(sent, key)
		}
	}
	uptime := func() int {
		n, err := strconv.Atoi(m.Stat(t, "uptime"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	leftOut, names := 0, 0
	last, ticked := uptime(), time.Now()
	for end := time.Now().Add(30 * time.Second); leftOut < 1 && !t.Failed(); {
		if time.Now().After(end) {
			t.Fatal("the clock left no second out")
		}
		for ; time.Since(ticked) < 930*time.Millisecond; names++ {
			key := fmt.Sprint("lock:", names)
			sent[key] = time.Now()
			claimtest.Granted(t, claimOf(t, d, fmt.Sprint(names), "owner", ttl))
			watch()
			time.Sleep(10 * time.Millisecond)
			if now := uptime(); now > last {
				leftOut += now - last - 1
				last, ticked = now, time.Now()
			}
		}
		// The tick that is due in a moment comes 150 ms late, and with it all after it.
		stopped := time.Now()
		resume := m.Pause()
		time.Sleep(time.Until(ticked.Add(1150 * time.Millisecond)))
		resume()
		longest = max(longest, time.Since(stopped))
		ticked = time.Now()
	}
	for len(sent) > 0 && !t.Failed() {
		watch()
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("%d leases; the longest stop took %v", names, longest)
}

// The server stands still, for longer than a lease. Whoever is granted or renewed one in
// the moment in which it goes on has it for the whole TTL, although the server's clock is
// the last to go on.
func TestMemcachedStandstill(t *testing.T) {
	t.Parallel()
	const ttl, standstill = 3 * time.Second, 6 * time.Second
	for what, call := range map[string]func(context.Context, driver.Claim) error{
		"granted": func(ctx context.Context, c driver.Claim) error { return tryOf(c)(ctx) },
		"renewed": func(ctx context.Context, c driver.Claim) error { _, err := c.Renew(ctx, ttl); return err },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := servers.StartMemcached(t)
			d := openDriver(t, nil, m.Addr())
			c := claimOf(t, d, "n", "owner", ttl)
			claimtest.Granted(t, c)
			if what == "renewed" {
				if _, err := c.Renew(t.Context(), time.Minute); err != nil {
					t.Fatal(err)
				}
			} else if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Fatal(err)
			}
			resume := m.Pause()
			time.Sleep(standstill - time.Second)
			sent, served := time.Now(), make(chan error, 1)
			go func() { served <- call(t.Context(), c) }()
			time.Sleep(time.Second)
			resume()
			if err := <-served; err != nil {
				t.Fatal(err)
			}
			for ; time.Since(sent) < ttl-100*time.Millisecond; time.Sleep(50 * time.Millisecond) {
				if m.Must(t, "gets lock:n") == "END" {
					t.Fatalf("gone %v after it was asked for, TTL %v", time.Since(sent), ttl)
				}
			}
		})
	}
}
