package redislock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A renewal for less shortens the lease from the end that it names: when it is served once more, or late, after
// the lease was renewed, it does nothing.
func TestALateShorteningShortensNothing(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() { client.Close() })
	d, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
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
	d, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
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
