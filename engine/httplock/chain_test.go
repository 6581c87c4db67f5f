package httplock_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// An instance that has not granted a lease asks for how long it has been held, also where its engine is another service,
// which shows handles in place of owners.
func TestAtLeastThroughTwoServices(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	inner := instances(t, engine, 1, nil)
	outer := func() (url string) {
		d := open(t, inner)
		s, err := serve.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(s)
		t.Cleanup(func() { s.Drain(); web.Close(); s.Close(); d.Close() })
		return web.URL
	}
	post := func(url, body string) {
		t.Helper()
		resp, err := http.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	post(outer()+"/v1/acquire", `{"name":"n","owner":"o","ttl_ms":60000,"at_least_ms":30000}`)
	time.Sleep(500 * time.Millisecond)
	post(outer()+"/v1/release", `{"name":"n","owner":"o","at_least_ms":30000}`)
	d := engine.Connect()
	t.Cleanup(func() { d.Close() })
	state, err := d.Inspect(t.Context(), "n")
	if err != nil || len(state.Holders) != 1 || state.Holders[0].Left > 29600*time.Millisecond {
		t.Errorf("half a second of 30 later: %+v, %v", state.Holders, err)
	}
}
