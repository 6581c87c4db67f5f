package nats

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// connected is JetStream by a connection that always comes back, unless more says otherwise.
func connected(t testing.TB, s *servers.NATS, more ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("nats://"+s.Addr(), append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}, more...)...)
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

// on is a driver on the bucket locks.
func on(t testing.TB, js jetstream.JetStream) *natslock.Driver {
	t.Helper()
	d, err := natslock.New(js, "locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// claim is one that does not queue.
func claim(t testing.TB, d driver.Driver, name, owner string) driver.Claim {
	t.Helper()
	return claimtest.New(t, d, driver.Request{Resource: name, Owner: owner, TTL: ttl})
}

func try(t testing.TB, c driver.Claim, bound time.Duration) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	return c.Try(ctx)
}
