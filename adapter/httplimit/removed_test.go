package httplimit_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/adapter/httplimit"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A request that an operator removes from the queue is refused. The engine has answered, so FailOpen
// does not serve it beside those that have the slots.
func TestRemovedRequestIsRefused(t *testing.T) {
	t.Parallel()
	service, err := serve.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(service)
	d, err := httplock.Connect(t.Context(), front.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(); service.Drain(); front.Close(); service.Close() })
	var told atomic.Int64
	i := start(t, &httplimit.Limit{Locks: newLocks(t, d), Name: tenant, Most: 1, Wait: time.Minute, FailOpen: true,
		Error: func(*http.Request, error) { told.Add(1) }})
	first := ask(t, t.Context(), http.MethodGet, i.URL+"/t1")
	eventually(t, "it is served", func() bool { return i.serves.Load() == 1 })
	second := ask(t, t.Context(), http.MethodGet, i.URL+"/t1")
	eventually(t, "the other is removed from the queue", func() bool {
		shown, err := http.Get(front.URL + wire.Show + "?name=t1")
		if err != nil {
			t.Fatal(err)
		}
		defer shown.Body.Close()
		var state wire.State
		if err := json.NewDecoder(shown.Body).Decode(&state); err != nil || len(state.Waiters) != 1 {
			return false
		}
		body := fmt.Sprintf(`{"name":"t1","handle":%q,"reason":"r"}`, state.Waiters[0].Handle)
		resp, err := http.Post(front.URL+wire.Remove, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	eventually(t, "it is answered or served", func() bool { return len(second) == 1 || i.serves.Load() == 2 })
	close(i.end)
	if resp := <-second; resp == nil || resp.StatusCode != http.StatusTooManyRequests || i.serves.Load() != 1 || told.Load() != 0 {
		t.Errorf("%v, %d served, told of %d errors", resp, i.serves.Load(), told.Load())
	}
	<-first
}
