package httplock_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A renewal for less stays in the socket of an instance that stands still, and another serves a longer one meanwhile. The
// first, served at last, does not end the lease before its holder knows.
func TestLateRenewalForLess(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	var instances [2]*serve.Server
	for i := range instances {
		d := engine.Connect()
		s, err := serve.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(); d.Close() })
		instances[i] = s
	}
	var late http.HandlerFunc // serves the first renewal again
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		again := func(w http.ResponseWriter, of *http.Request) {
			of = r.Clone(of.Context())
			of.Body = io.NopCloser(bytes.NewReader(body))
			instances[0].ServeHTTP(w, of)
		}
		if r.URL.Path == wire.Renew {
			if late == nil {
				late = again
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			instances[1].ServeHTTP(w, r)
			return
		}
		again(w, r)
	}))
	t.Cleanup(web.Close)
	d, err := httplock.Connect(t.Context(), web.URL, &httplock.Options{NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	c, err := d.Claim(driver.Request{Resource: "n", Owner: "owner", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g, err := c.Renew(t.Context(), 2*time.Second); err == nil {
		t.Fatalf("%v, want no answer", g)
	}
	g, err := c.Renew(t.Context(), time.Minute)
	if err != nil || g.TTL != time.Minute {
		t.Fatal(g, err)
	}
	answer := httptest.NewRecorder()
	late(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, web.URL, nil))
	inspector := engine.Connect()
	t.Cleanup(func() { inspector.Close() })
	st, err := inspector.Inspect(t.Context(), "n")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Left < 30*time.Second {
		t.Errorf("renewed for %v, then the late one came to %d %s: %+v, %v", g.TTL, answer.Code, answer.Body, st.Holders, err)
	}
	if g, err := c.Renew(t.Context(), 5*time.Second); err != nil || g.TTL != 5*time.Second {
		t.Errorf("renewed for 5 s: %v, %v", g, err)
	}
}
