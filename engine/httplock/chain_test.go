package httplock_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// over starts a service whose engine is the service at url.
func over(t *testing.T, url string) string {
	t.Helper()
	d := open(t, url)
	s, err := serve.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	t.Cleanup(func() { s.Drain(); web.Close(); s.Close(); d.Close() })
	return web.URL
}

func posted(t *testing.T, url, body string) (status int, text string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(all)
}

// If the inner service removes a waiter, the outer one reports that and the reason.
func TestRemovalThroughTwoServices(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	inner := instances(t, engine, 1, nil)
	outer := over(t, inner)
	if status, text := posted(t, inner+"/v1/acquire", `{"name":"n","owner":"holder","ttl_ms":60000}`); status != http.StatusOK {
		t.Fatal(status, text)
	}
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		status, text := posted(t, outer+"/v1/acquire", `{"name":"n","owner":"waiter","ttl_ms":60000,"wait_ms":30000}`)
		if status != http.StatusGone || !strings.Contains(text, `"code":"evicted"`) || !strings.Contains(text, "wrong branch") {
			t.Errorf("the waiter was answered %d %s", status, text)
		}
	}()
	removed := func() bool {
		status, _ := posted(t, inner+"/v1/remove", `{"name":"n","owner":"waiter","reason":"wrong branch"}`)
		return status == http.StatusOK
	}
	for end := time.Now().Add(20 * time.Second); !removed(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not wait")
		}
	}
	<-waits
}

// An instance that has not granted a lease asks for how long it has been held, also where its engine is another service,
// which shows handles in place of owners.
func TestAtLeastThroughTwoServices(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	inner := instances(t, engine, 1, nil)
	post := func(url, body string) {
		t.Helper()
		if status, text := posted(t, url, body); status != http.StatusOK {
			t.Fatal(status, text)
		}
	}
	post(over(t, inner)+"/v1/acquire", `{"name":"n","owner":"o","ttl_ms":60000,"at_least_ms":30000}`)
	time.Sleep(500 * time.Millisecond)
	post(over(t, inner)+"/v1/release", `{"name":"n","owner":"o","at_least_ms":30000}`)
	d := engine.Connect()
	t.Cleanup(func() { d.Close() })
	state, err := d.Inspect(t.Context(), "n")
	if err != nil || len(state.Holders) != 1 || state.Holders[0].Left > 29600*time.Millisecond {
		t.Errorf("half a second of 30 later: %+v, %v", state.Holders, err)
	}
}
