package servers

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/proxy"
)

// A Proxy is between clients and a server.
type Proxy = proxy.Proxy

// StartProxy starts a proxy to the server at target, which need not run yet. It ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := proxy.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
