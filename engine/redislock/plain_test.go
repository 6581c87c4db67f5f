package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The short scripts of the plain case grant nothing, and give up nothing, where it is not plain. Each
// case has a driver of its own, which knows of nobody else at the name and so begins with them.
func TestRedisPlainScripts(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	clock := func() uint64 { // the server's, as a fence
		n, _ := strconv.ParseUint(r.Must(t, "EVAL", "local t = redis.call('TIME') return string.format('%.0f', t[1] * 1000000 + t[2])", "0"), 10, 64)
		return driver.FenceOf(n)
	}
	for name, test := range map[string]func(t *testing.T, d *redislock.Driver, name string){
		"a fence follows the clock": func(t *testing.T, d *redislock.Driver, name string) {
			for range 2 { // the second with the fence of the first
				before := clock()
				g := granted(t, lateClaim(t, d, name, "owner", time.Minute))
				if g.Fence < before || g.Fence > clock() {
					t.Errorf("fence %d; want one from %d on", g.Fence, before)
				}
				r.Must(t, "DEL", "lock:"+name)
			}
		},
		"a fence is above one that is ahead of the clock": func(t *testing.T, d *redislock.Driver, name string) {
			ahead := clock() + driver.FenceOf(uint64((48 * time.Hour).Microseconds()))
			if err := d.RaiseFence(t.Context(), name, ahead); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				c := lateClaim(t, d, name, "owner", time.Minute)
				g := granted(t, c)
				if g.Fence <= ahead {
					t.Errorf("fence %d after %d", g.Fence, ahead)
				}
				ahead = g.Fence
				if err := c.Release(t.Context(), driver.End{}); err != nil {
					t.Fatal(err)
				}
			}
			life, _ := strconv.Atoi(r.Must(t, "PTTL", companion("f", name)))
			if left := time.Duration(life) * time.Millisecond; left < 72*time.Hour {
				t.Errorf("a fence that is 48h ahead of the clock is kept for %v", left)
			}
		},
		"a fence is kept for a day": func(t *testing.T, d *redislock.Driver, name string) {
			granted(t, lateClaim(t, d, name, "owner", time.Minute))
			life, _ := strconv.Atoi(r.Must(t, "PTTL", companion("f", name)))
			if left := time.Duration(life) * time.Millisecond; left < 24*time.Hour || left > 26*time.Hour {
				t.Errorf("it is kept for %v", left)
			}
		},
		"a damaged fence is left behind": func(t *testing.T, d *redislock.Driver, name string) {
			r.Must(t, "SET", companion("f", name), "short")
			if before := clock(); granted(t, lateClaim(t, d, name, "owner", time.Minute)).Fence < before {
				t.Error("the fence is below the clock")
			}
		},
		"a lock of others is taken by nobody": func(t *testing.T, d *redislock.Driver, name string) {
			r.Must(t, "SET", "lock:"+name, "foreign", "PX", "60000")
			refused(t, lateClaim(t, d, name, "owner", time.Minute))
			if n := r.Must(t, "EXISTS", companion("f", name)); n != "0" {
				t.Error("a refusal has left a fence")
			}
		},
		"an attempt that meets a mark takes the next number": func(t *testing.T, d *redislock.Driver, name string) {
			r.Must(t, "SET", companion("g", name)+"\x1fowner", "7", "PX", "60000")
			c := lateClaim(t, d, name, "owner", time.Minute)
			granted(t, c)
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Errorf("release: %v", err)
			}
			if n := r.Must(t, "EXISTS", "lock:"+name); n != "0" {
				t.Error("its release, which has that number too, came late")
			}
		},
		"an attempt that meets a damaged mark ends": func(t *testing.T, d *redislock.Driver, name string) {
			for _, mark := range []string{"1e18", "9007199254740994", "inf"} {
				r.Must(t, "SET", companion("g", name)+"\x1fowner", mark, "PX", "60000")
				c := lateClaim(t, d, name, "owner", time.Minute)
				_, err := c.Try(t.Context())
				if !errors.Is(err, driver.ErrCorrupt) {
					t.Errorf("mark %s: %v", mark, err)
				}
			}
		},
		"a mark keeps a release from what was granted since": func(t *testing.T, d *redislock.Driver, name string) {
			c := lateClaim(t, d, name, "owner", time.Minute)
			granted(t, c)
			r.Must(t, "SET", companion("g", name)+"\x1fowner", "0", "PX", "60000")
			if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
				t.Errorf("release: %v", err)
			}
			if held := r.Must(t, "GET", "lock:"+name); held != "owner" {
				t.Errorf("held by %q then", held)
			}
		},
		"nobody passes the queue": func(t *testing.T, d *redislock.Driver, name string) {
			r.Must(t, "SET", "lock:"+name, "foreign", "PX", "60000")
			other := openOn(t, r)
			queuedClaim(t, other, name, "first", time.Minute)
			r.Must(t, "DEL", "lock:"+name)
			refused(t, lateClaim(t, d, name, "owner", time.Minute))
		},
		"a release grants to the queue": func(t *testing.T, d *redislock.Driver, name string) {
			c := lateClaim(t, d, name, "owner", time.Minute)
			granted(t, c)
			_, busy, _ := queuedClaim(t, openOn(t, r), name, "first", time.Minute)
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Fatal(err)
			}
			if _, ok := brought(t, busy); !ok {
				t.Error("nothing was granted to the one that waits")
			}
		},
		"a release leaves what others hold": func(t *testing.T, d *redislock.Driver, name string) {
			c := lateClaim(t, d, name, "owner", time.Minute)
			granted(t, c)
			r.Must(t, "SET", "lock:"+name, "foreign", "PX", "60000")
			if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
				t.Errorf("release: %v", err)
			}
			if held := r.Must(t, "GET", "lock:"+name); held != "foreign" {
				t.Errorf("held by %q then", held)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, openOn(t, r), name) })
	}
}

func openOn(t *testing.T, r *servers.Redis) *redislock.Driver {
	t.Helper()
	d, err := redislock.Open(&redis.Options{Addr: r.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func granted(t *testing.T, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := c.Try(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func refused(t *testing.T, c driver.Claim) {
	t.Helper()
	if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("try: %v; want busy", err)
	}
}

// An attempt that meets a fence ahead of the clock leaves it as it was, though it comes no further.
func TestRedisFenceAheadOutlivesAnAttempt(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	mustTry(t, lateClaim(t, openOn(t, r), "warm", "owner", time.Minute)) // the server knows the script
	d, err := redislock.Open(&redis.Options{Addr: r.Addr(), Dialer: dialOneScript}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	ahead := driver.FenceOf(uint64(time.Now().Add(48 * time.Hour).UnixMicro()))
	if err := openOn(t, r).RaiseFence(t.Context(), "n", ahead); err != nil {
		t.Fatal(err)
	}
	if _, err := lateClaim(t, d, "n", "owner", time.Minute).Try(t.Context()); !errors.Is(err, errBroken) {
		t.Fatalf("try: %v", err)
	}
	life, _ := strconv.Atoi(r.Must(t, "PTTL", companion("f", "n")))
	if left := time.Duration(life) * time.Millisecond; left < 72*time.Hour {
		t.Errorf("a fence that is 48h ahead of the clock is kept for %v", left)
	}
}

// oneScript is a connection that lets one script through.
type oneScript struct {
	net.Conn
	ran bool
}

var errBroken = errors.New("the link is broken")

func dialOneScript(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &oneScript{Conn: conn}, err
}

func (o *oneScript) Write(b []byte) (int, error) {
	script := bytes.Contains(b, []byte("EVAL"))
	if script && o.ran {
		return 0, errBroken
	}
	o.ran = o.ran || script
	return o.Conn.Write(b)
}

// Whose lease is wanted by others each time gives it up by one script: the short one, which does nothing
// then, is tried once.
func TestRedisReleaseBesideWaitersIsOneScript(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, other := openOn(t, r), openOn(t, r)
	for round := range 5 {
		holder := lateClaim(t, d, "wanted", "holder", time.Minute)
		mustTry(t, holder)
		waiter, busy, _ := queuedClaim(t, other, "wanted", "waiter", time.Minute)
		before := scripts(t, r)
		if err := holder.Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
		if n := scripts(t, r) - before; n != 1 && round > 0 {
			t.Errorf("round %d: %d scripts for a release", round, n)
		}
		if _, ok := brought(t, busy); !ok {
			t.Fatal("no grant was brought")
		}
		if err := waiter.Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
	}
}
