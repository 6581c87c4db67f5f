package doctor_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/serve"
	"github.com/leasehold-go/leasehold/stores"
)

// A store that its engine refuses to keep locks in is unfit, also behind a service: it was tried.
func TestRefusedByTheEngine(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 1, "")
	nc, err := nats.Connect("nats://" + all[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "locks", TTL: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	store := "nats://" + all[0].Addr() + "/locks"
	direct := examine(t, store)
	direct.has("rights", "error", "take a lock", "forgets after 10s")
	direct.has("eviction", "warning", "maximum age")
	direct.has("persistence", "warning", "from 1")

	d, err := stores.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	service, err := serve.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	server := httptest.NewServer(service)
	defer server.Close()
	examine(t, server.URL).has("rights", "error", "forgets after 10s")
}
