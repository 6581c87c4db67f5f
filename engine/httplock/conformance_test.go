package httplock_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// instances starts n of them over one engine, and returns the address of their balancer.
func instances(t testing.TB, engine *memory.Server, n int, protocols *http.Protocols) string {
	t.Helper()
	var targets []string
	for range n {
		d := engine.Connect()
		s, err := serve.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewUnstartedServer(s)
		web.Config.Protocols = protocols
		web.Start()
		t.Cleanup(func() { s.Drain(); web.Close(); s.Close(); d.Close() })
		targets = append(targets, web.Listener.Addr().String())
	}
	b, err := proxy.Listen(targets...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return "http://" + b.Addr()
}

func open(t testing.TB, url string) driver.Driver {
	t.Helper()
	d, err := httplock.Connect(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	engine := memory.NewServer()
	url := instances(t, engine, 2, &protocols)
	locktest.Run(t, locktest.Harness{
		Open:           func(t testing.TB) driver.Driver { return open(t, url) },
		FlushState:     func(testing.TB) { engine.Flush() },
		ShownOwner:     httplock.Shown,
		NeverShortens:  true,
		CallGoroutines: 8, // the instances and their balancer have some for each connection, in this process
	})
}
