package nats

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/natslock"
)

// In another domain a bucket of the same name may be near: calls go to the one that was asked for.
func TestBucketOfAnotherDomain(t *testing.T) {
	t.Parallel()
	port := servers.FreePorts(t, 1)[0]
	domain := func(name, more string) *servers.NATS {
		return servers.StartNATS(t, 1, fmt.Sprintf("jetstream { store_dir: %q, domain: %s }\nleafnodes { %s }\n", filepath.Join(t.TempDir(), name), name, more))[0]
	}
	hub := domain("hub", fmt.Sprintf("listen: \"127.0.0.1:%d\"", port))
	leaf := domain("leaf", fmt.Sprintf("remotes: [{ url: \"nats://127.0.0.1:%d\" }]", port))
	for _, s := range []*servers.NATS{hub, leaf} {
		if err := natslock.CreateBucket(t.Context(), connected(t, s), "locks", 1); err != nil {
			t.Fatal(err)
		}
	}
	far, err := jetstream.NewWithDomain(connected(t, leaf).Conn(), "hub")
	if err != nil {
		t.Fatal(err)
	}
	d, err := natslock.New(far, "locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	c := claim(t, d, "a", "one")
	electing(t, "Try across the link", nil, func() error { _, err := try(t, c, 10*time.Second); return err }) // it may not be there yet
	if g, err := try(t, claim(t, on(t, hub, "locks"), "a", "two"), ttl); err == nil {
		t.Errorf("a second holder: %v", g)
	}
	granted(t, claim(t, on(t, leaf, "locks"), "a", "three"))
	if _, err := c.Renew(t.Context(), ttl); err != nil {
		t.Errorf("Renew: %v", err)
	}
	released(t, c)
}

// connected is JetStream by a connection that always comes back.
func connected(t testing.TB, s *servers.NATS) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("nats://"+s.Addr(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// on is a driver on a bucket, with a connection of its own.
func on(t testing.TB, s *servers.NATS, bucket string) *natslock.Driver {
	t.Helper()
	d, err := natslock.New(connected(t, s), bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func granted(t testing.TB, c driver.Claim) driver.Grant {
	t.Helper()
	g, err := try(t, c, ttl)
	if err != nil {
		t.Fatalf("Try: %v", err)
	}
	return g
}

func released(t testing.TB, c driver.Claim) {
	t.Helper()
	if err := c.Release(t.Context()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}
