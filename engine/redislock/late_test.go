package redislock

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// onItsServer is a driver on a Redis of its own.
func onItsServer(t *testing.T) *Driver {
	client := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr()})
	t.Cleanup(func() { client.Close() })
	return driverOn(t, client, nil)
}

// A renewal for less shortens the lease from the end that it names: when it is served once more, or late, after
// the lease was renewed, it does nothing.
func TestALateShorteningShortensNothing(t *testing.T) {
	t.Parallel()
	d := onItsServer(t)
	for name, mode := range map[string]driver.Mode{"exclusive": driver.Exclusive, "shared": driver.Shared} {
		left := func() time.Duration {
			st, err := d.Inspect(t.Context(), name)
			if err != nil || len(st.Holders) != 1 {
				t.Fatalf("%v, %v", st.Holders, err)
			}
			return st.Holders[0].Left
		}
		made, err := d.Claim(driver.Request{Resource: name, Owner: "o", Mode: mode, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		c := made.(*claim)
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, ends, err := c.sendRenew(t.Context(), time.Minute, 0)
		if err != nil || ends == 0 || left() < 30*time.Minute {
			t.Fatalf("%s: it ends at %d, with %v left: %v", name, ends, left(), err)
		}
		shorten := func() {
			if _, _, err := c.sendRenew(t.Context(), time.Minute, ends); err != nil {
				t.Fatal(err)
			}
		}
		if shorten(); left() > time.Minute {
			t.Errorf("%s: %v left of a minute", name, left())
		}
		if g, err := c.Renew(t.Context(), 10*time.Minute); err != nil || g.TTL != 10*time.Minute {
			t.Fatalf("%s: renewed for %v: %v", name, g.TTL, err)
		}
		if shorten(); left() < 5*time.Minute {
			t.Errorf("%s: %v left of ten minutes: one of before shortened it", name, left())
		}
		if g, err := c.Renew(t.Context(), 2*time.Minute); err != nil || g.TTL != 2*time.Minute || left() > 2*time.Minute {
			t.Errorf("%s: renewed for %v, with %v left: %v", name, g.TTL, left(), err)
		}
	}
}

// A user who may not ask when a key ends has leases renewed, and not shortened.
func TestNobodyAsksWhoMayNot(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Must(t, "ACL", "SETUSER", "former", "on", ">pw", "~*", "&*", "+@all", "-pexpiretime")
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "former", Password: "pw"})
	t.Cleanup(func() { client.Close() })
	d := driverOn(t, client, nil)
	c, err := d.Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	g, err := c.Renew(t.Context(), time.Minute)
	if left := client.PTTL(t.Context(), "lock:n").Val(); err != nil || g.TTL != time.Minute || left < 30*time.Minute {
		t.Errorf("renewed for %v: %v; %v left", g.TTL, err, left)
	}
}

// Who ends what another claim of an owner has bars the attempts of before, which may be served once more; the owner
// itself may attempt again, and what it gets is released as usual, by any of its claims.
func TestAnotherEndsTheLease(t *testing.T) {
	t.Parallel()
	d := onItsServer(t)
	for _, by := range []string{"an operator", "who resumed it"} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			name := by + " " + mode.String()
			claimed := func() *claim {
				c, err := d.Claim(driver.Request{Resource: name, Owner: "o", Mode: mode, TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				return c.(*claim)
			}
			end := func() error {
				if by == "an operator" {
					return d.Evict(t.Context(), name, "o", "test")
				}
				c := claimed()
				if _, err := c.Renew(t.Context(), time.Minute); err != nil {
					return err
				}
				return c.Release(t.Context(), driver.End{})
			}
			for round := range 3 {
				first := claimed()
				if _, err := first.Try(t.Context()); err != nil {
					t.Fatalf("%s, round %d: %v", name, round, err)
				}
				if err := end(); err != nil {
					t.Fatalf("%s, round %d: %v", name, round, err)
				}
				// A copy of the attempt is served now.
				if a, err := first.d.pipelines.ask(t.Context(), first.keys.lock, first.newTake()); mode == driver.Exclusive && (err != nil || a.reply != int64(0)) {
					t.Errorf("%s, round %d: a copy of the attempt: %v, %v", name, round, a.reply, err)
				}
				if err := first.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
					t.Errorf("%s, round %d: Release of what another ended: %v", name, round, err)
				}
				next := claimed()
				if _, err := next.Try(t.Context()); err != nil {
					t.Fatalf("%s, round %d: the owner's next attempt: %v", name, round, err)
				}
				if err := next.Release(t.Context(), driver.End{}); err != nil {
					t.Errorf("%s, round %d: its release: %v", name, round, err)
				}
			}
		}
	}
}

// A release of what another claim was granted, which comes again or late, ends nothing that the owner was granted since.
func TestALateReleaseOfWhatWasResumed(t *testing.T) {
	t.Parallel()
	d := onItsServer(t)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		claimed := func() *claim {
			c, err := d.Claim(driver.Request{Resource: mode.String(), Owner: "o", Mode: mode, TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			return c.(*claim)
		}
		if _, err := claimed().Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		resumed := claimed()
		if _, err := resumed.Renew(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		had := resumed.load()
		if err := resumed.Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
		next := claimed()
		g, err := next.Try(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		resumed.update(func(now *state) { *now = had })
		if err := resumed.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: its copy: %v", mode, err)
		}
		if again, err := next.Renew(t.Context(), time.Minute); err != nil || again.Fence != g.Fence {
			t.Errorf("%s: the next lease, with fence %d: %d, %v", mode, g.Fence, again.Fence, err)
		}
		if err := next.Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("%s: its release: %v", mode, err)
		}
	}
}
