package memcachelock

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve"
)

// A holder asks the service for another TTL while the server cannot be reached. Its release then
// ends its lease: that no call has reached the server says nothing about it.
func TestReleaseAfterCallsThatReachedNoServer(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	var refuses atomic.Bool
	d, err := New([]string{m.Addr()}, &Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if refuses.Load() {
			return nil, errors.New("connection refused")
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := serve.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); d.Close() })
	want := func(status int, path, body string) {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != status {
			t.Errorf("%s %s: status %d, want %d: %s", path, body, w.Code, status, w.Body)
		}
	}
	want(200, wire.Acquire, `{"name":"n","owner":"me","ttl_ms":60000}`)
	refuses.Store(true)
	for range 2 {
		for _, on := range d.servers {
			on.mu.Lock()
			on.drop()
			on.mu.Unlock()
		}
		want(503, wire.Acquire, `{"name":"n","owner":"me","ttl_ms":50000}`)
	}
	refuses.Store(false)
	want(200, wire.Release, `{"name":"n","owner":"me"}`)
	want(200, wire.Acquire, `{"name":"n","owner":"other","ttl_ms":60000}`)
}
