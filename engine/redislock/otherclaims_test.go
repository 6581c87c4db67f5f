package redislock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve"
)

// Who releases what another process of the owner was granted ends it, whatever that process did before.
func TestReleaseByAnotherClaim(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, client, link := openLate(t, r.Addr(), nil)
	other, _, _ := openLate(t, r.Addr(), nil)
	for name, before := range map[string]func(c driver.Claim){
		"an attempt without an answer": func(c driver.Claim) { link.cancelled(t, tryOf(c))() },
		"an eviction": func(c driver.Claim) {
			mustTry(t, c)
			if err := other.Evict(t.Context(), "an eviction", "o", "test"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		c := lateClaim(t, d, name, "o", time.Minute)
		before(c)
		mustTry(t, c)
		if err := lateClaim(t, other, name, "o", time.Minute).Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("a release after %s: %v", name, err)
		}
		if key := client.Get(t.Context(), "lock:"+name).Val(); key != "" {
			t.Errorf("a release after %s leaves %q", name, key)
		}
		if err := lateClaim(t, other, name, "o", time.Minute).Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("another release after %s: %v, want ErrLost", name, err)
		}
	}
}

// It ends no later lease of the owner, and bars the attempts of before.
func TestLateCallsOfAnotherClaim(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	a, client, linkA := openLate(t, r.Addr(), nil)
	b, _, linkB := openLate(t, r.Addr(), nil)
	warm := lateClaim(t, a, "warm", "o", time.Minute) // the server knows the scripts
	mustTry(t, warm)
	if err := lateClaim(t, b, "warm", "o", time.Minute).Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}

	c := lateClaim(t, a, "release", "o", time.Minute)
	mustTry(t, c)
	release := linkB.cancelled(t, claimtest.Release(lateClaim(t, b, "release", "o", time.Minute)))
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	mustTry(t, lateClaim(t, a, "release", "o", time.Minute))
	release()
	if key := client.Get(t.Context(), "lock:release").Val(); key != "o" {
		t.Errorf("a late release of the owner's former lease leaves %q of its next one", key)
	}

	attempt := linkA.cancelled(t, tryOf(lateClaim(t, a, "attempt", "o", time.Minute)))
	if err := lateClaim(t, b, "attempt", "o", time.Minute).Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a release of nothing: %v, want ErrLost", err)
	}
	attempt()
	if key := client.Get(t.Context(), "lock:attempt").Val(); key != "" {
		t.Errorf("an attempt that comes after the release leaves %q", key)
	}
}

// Who found by an attempt what another claim of the owner holds releases that, and no later lease of the owner.
func TestReleaseOfWhatAnAttemptFound(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, client, link := openLate(t, r.Addr(), nil)
	warm := lateClaim(t, d, "warm", "o", time.Minute) // the server knows the scripts
	mustTry(t, warm)
	if err := lateClaim(t, d, "warm", "o", time.Minute).Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	c, found := lateClaim(t, d, "n", "o", time.Minute), lateClaim(t, d, "n", "o", time.Minute)
	mustTry(t, c)
	mustTry(t, found)
	late := link.cancelled(t, claimtest.Release(found))
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	mustTry(t, lateClaim(t, d, "n", "o", time.Minute))
	late()
	if key := client.Get(t.Context(), "lock:n").Val(); key != "o" {
		t.Errorf("a late release of the owner's former lease leaves %q of its next one", key)
	}
}

// A lease from before RaiseFence stays whose it is, whatever an attempt of its owner is told.
func TestAttemptAfterRaiseFence(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	a, client, _ := openLate(t, r.Addr(), nil)
	b, _, _ := openLate(t, r.Addr(), nil)
	c := lateClaim(t, a, "n", "o", time.Minute)
	mustTry(t, c)
	if err := b.RaiseFence(t.Context(), "n", driver.FenceOf(uint64(time.Now().Add(time.Hour).UnixMicro()))); err != nil {
		t.Fatal(err)
	}
	_, err := lateClaim(t, b, "n", "o", time.Minute).Try(t.Context())
	if err != nil && !errors.Is(err, redislock.ErrFenceRegressed) {
		t.Error(err)
	}
	if key := client.Get(t.Context(), "lock:n").Val(); key != "o" {
		t.Errorf("the lock key is %q after an attempt of its owner: %v", key, err)
	}
	if _, err := c.Renew(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
}

// An attempt whose owner holds by another claim ends no lease, although an earlier one has had no answer and this driver has
// seen a greater fence.
func TestAttemptAfterOneWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t)
	a, _, _ := openLate(t, r.Addr(), nil)
	b, _, link := openLate(t, r.Addr(), nil)
	claim := func(d driver.Driver, name, owner string, mode driver.Mode) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: owner, TTL: time.Minute, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for mode, see := range map[driver.Mode]func(name string) error{ // a greater fence
		driver.Shared: func(name string) error {
			_, err := claim(b, name, "later", driver.Shared).Try(t.Context())
			return err
		},
		driver.Exclusive: func(name string) error {
			return b.RaiseFence(t.Context(), name, driver.FenceOf(uint64(time.Now().Add(time.Hour).UnixMicro())))
		},
	} {
		clock.Set(0)
		name := fmt.Sprint("n", mode)
		first := claim(a, name, "o", mode)
		g, err := first.Try(t.Context())
		if err == nil {
			err = see(name)
		}
		if err != nil {
			t.Fatal(err)
		}
		clock.Set(-time.Hour) // the server's instants tell nothing about what was granted first
		again := claim(b, name, "o", mode)
		link.cancelled(t, tryOf(again))()
		found, err := again.Try(t.Context())
		switch {
		case mode == driver.Shared && (err != nil || found.Fence != g.Fence):
			t.Errorf("the sharer's next attempt: fence %d, %v; want its fence %d", found.Fence, err, g.Fence)
		case mode == driver.Exclusive && err != nil && !errors.Is(err, redislock.ErrFenceRegressed):
			t.Error(err)
		}
		if _, err := first.Renew(t.Context(), time.Minute); err != nil {
			t.Errorf("mode %v: Renew after the next attempt: %v", mode, err)
		}
		if err := again.Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("mode %v: Release of what was found: %v", mode, err)
		}
		if _, err := first.Renew(t.Context(), time.Minute); !errors.Is(err, driver.ErrLost) {
			t.Errorf("mode %v: Renew after its Release: %v", mode, err)
		}
	}
}

// A server that has come back from what it had on its disk may have a grant that was given up since: it is not trusted with
// regard to MinUptime for the owner of that either.
func TestSnapshotGrantsNothing(t *testing.T) {
	t.Parallel()
	const memory = 2 * time.Second
	r := servers.StartRedis(t)
	d, client, link := openLate(t, r.Addr(), &redislock.Options{MinUptime: memory})
	other, _, _ := openLate(t, r.Addr(), &redislock.Options{MinUptime: memory})
	try := func(d driver.Driver, owner string) error {
		_, err := lateClaim(t, d, "n", owner, memory).Try(t.Context())
		return err
	}
	remembers := func() {
		for err := try(d, "first"); err != nil; err = try(d, "first") {
			if !errors.Is(err, redislock.ErrServerTooYoung) {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	remembers()
	if err := lateClaim(t, d, "n", "first", memory).Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	c := lateClaim(t, d, "n", "o", memory)
	link.cancelled(t, tryOf(c))() // served, without an answer
	if err := client.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	if err := try(other, "p"); err != nil {
		t.Fatal(err)
	}
	r.Kill()
	r.Start(t)
	if client.Get(t.Context(), "lock:n").Val() != "o" {
		t.Skip("the lease ended before the server had started again")
	}
	if g, err := c.Try(t.Context()); err == nil {
		t.Errorf("granted %d by a server that has forgotten the holder", g.Fence)
	}
}

// An instance of the service that has served an owner before, and not its calls since, tells what the owner has now.
func TestServedElsewhereInBetween(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	var urls []string
	for range 2 {
		d, _, _ := openLate(t, r.Addr(), nil)
		s, err := serve.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(s)
		t.Cleanup(func() { web.Close(); s.Close() })
		urls = append(urls, web.URL)
	}
	call := func(instance int, path, body string) (g wire.Grant) {
		t.Helper()
		resp, err := http.Post(urls[instance]+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&g); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, g, err)
		}
		return g
	}
	const o, p = `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":%d}`, `{"name":"n","owner":"p","ttl_ms":60000}`
	call(0, wire.Acquire, fmt.Sprintf(o, 1))
	call(1, wire.Release, `{"name":"n","owner":"o","caller":"c","call":2,"answered":1}`)
	call(1, wire.Acquire, p)
	call(1, wire.Release, `{"name":"n","owner":"p"}`)
	second := call(1, wire.Acquire, fmt.Sprintf(o, 3))
	if g := call(0, wire.Renew, fmt.Sprintf(o, 4)); g.Token != second.Token {
		t.Errorf("renewed with token %s, granted %s", g.Token, second.Token)
	}
}
