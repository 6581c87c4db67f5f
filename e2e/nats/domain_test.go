package nats

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
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
	d := on(t, far)
	c := claim(t, d, "a", "one")
	electing(t, "Try across the link", nil, func() error { _, err := try(t, c, 10*time.Second); return err }) // it may not be there yet
	if g, err := try(t, claim(t, on(t, connected(t, hub)), "a", "two"), ttl); err == nil {
		t.Errorf("a second holder: %v", g)
	}
	claimtest.Granted(t, claim(t, on(t, connected(t, leaf)), "a", "three"))
	if _, err := c.Renew(t.Context(), ttl); err != nil {
		t.Errorf("Renew: %v", err)
	}
	claimtest.Released(t, c)
}
