package served

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/e2e/described"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// TestEvictedByAnotherInstance: whoever holds by one instance and is evicted by another is told so, with
// the reason: by the answers of both, by the first one's events, and in Go by the end of the lease.
func TestEvictedByAnotherInstance(t *testing.T) {
	t.Parallel()
	onStores(t, []string{"redis", "postgresql", "etcd"}, func(t *testing.T, s *service) {
		var urls []string
		for _, i := range s.instances {
			urls = append(urls, "http://"+described.Balance(t, i.addr()))
		}
		toldByCalls(t, urls)
		toldByEvents(t, urls)
	})
}

// onStores runs a test at the same time on the service of each store that is named.
func onStores(t *testing.T, names []string, test func(t *testing.T, s *service)) {
	starts := map[string]func(t *testing.T) (url string){
		"redis": func(t *testing.T) string { return "redis://" + servers.StartRedis(t).Addr() },
		"postgresql": func(t *testing.T) string {
			return "postgres://postgres@" + servers.StartPostgres(t).Addr() + "/postgres"
		},
		"etcd": func(t *testing.T) string { return "etcd://" + servers.StartEtcd(t, servers.EtcdCurrent).Addr() },
		"nats": func(t *testing.T) string { return "nats://" + servers.StartNATS(t, 1, "")[0].Addr() + "/locks" },
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, serve(t, starts[name](t)))
		})
	}
}

const reason = "a reason: it is \"late\""

func evict(t *testing.T, url, name, owner string) {
	t.Helper()
	body := `{"name":"` + name + `","owner":"` + owner + `","reason":"a reason: it is \"late\""}`
	if status, a := post(t, url+wire.Evict, body); status != 200 {
		t.Fatalf("evict %s of %s: %d %v", owner, name, status, a)
	}
}

// toldByCalls has a program that knows no events: its next call tells.
func toldByCalls(t *testing.T, urls []string) {
	t.Helper()
	told := func(url, path, body string) {
		t.Helper()
		if status, a := post(t, url+path, body); status != 410 || a.Code != wire.CodeEvicted || !strings.HasSuffix(a.Error, reason) {
			t.Errorf("%s %s: %d %s %s", path, body, status, a.Code, a.Error)
		}
	}
	for n, call := range []struct{ path, body string }{
		{wire.Renew, `,"ttl_ms":60000}`}, {wire.Note, `,"note":"mine"}`}, {wire.Release, `}`},
	} {
		owner := `"name":"calls","owner":"o` + string(rune('0'+n)) + `"`
		if status, a := post(t, urls[0]+wire.Acquire, `{`+owner+`,"ttl_ms":60000}`); status != 200 {
			t.Fatalf("acquire: %d %v", status, a)
		}
		evict(t, urls[1], "calls", "o"+string(rune('0'+n)))
		told(urls[0], call.path, `{`+owner+call.body)
		told(urls[1], wire.Renew, `{`+owner+`,"ttl_ms":60000}`)
	}
}

// toldByEvents has a program in Go: its lease ends, long before it renews.
func toldByEvents(t *testing.T, urls []string) {
	t.Helper()
	d, err := openAddress(urls[0])
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, &leasehold.Options{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Acquire(t.Context(), "events")
	if err != nil {
		t.Fatal(err)
	}
	evict(t, urls[1], "events", shown(t, urls[1], "events").Holders[0].Handle)
	select {
	case <-lease.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the holder is not told")
	}
	if err := context.Cause(lease.Context()); !errors.Is(err, leasehold.ErrEvicted) || !strings.Contains(err.Error(), reason) {
		t.Errorf("the lease has ended by %v", err)
	}
}
