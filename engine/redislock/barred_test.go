package redislock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A later release or eviction that bars the owner for less time, or not at all, does not shorten the bar.
func TestBarIsNotShortened(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, client, _ := openLate(t, r.Addr(), nil)
	release := func(how driver.End) error { return lateClaim(t, d, "n", "o", time.Minute).Release(t.Context(), how) }
	for what, end := range map[string]func() error{
		"a release without a bar": func() error { return release(driver.End{}) },
		"a shorter bar":           func() error { return release(driver.End{Bar: time.Minute}) },
		"an eviction": func() error {
			client.Set(t.Context(), "lock:n", "o", time.Minute)
			return d.Evict(t.Context(), "n", "o", "test")
		},
	} {
		if err := release(driver.End{Bar: time.Hour}); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("a release of nothing: %v, want ErrLost", err)
		}
		if err := end(); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
		marks, err := client.Keys(t.Context(), "lock:\x1fg*").Result()
		if err != nil || len(marks) != 1 {
			t.Fatalf("marks %q, %v; want one", marks, err)
		}
		if left := client.PTTL(t.Context(), marks[0]).Val(); left < 50*time.Minute {
			t.Errorf("after %s, %v are left of a bar of an hour", what, left)
		}
		client.FlushAll(t.Context())
	}
}
