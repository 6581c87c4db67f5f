package serve

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// An instance that never looks at the store keeps no names of leases that it has evicted.
func TestEvictionsWithoutLooksAreForgotten(t *testing.T) {
	t.Parallel()
	s, err := New(memory.New(), &Options{History: HistoryOptions{Every: -1}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 3 {
		for _, path := range []string{wire.Acquire, wire.Evict} {
			body := fmt.Sprintf(`{"name":"n%d","owner":"o"}`, i)
			if path == wire.Acquire {
				body = fmt.Sprintf(`{"name":"n%d","owner":"o","ttl_ms":60000}`, i)
			}
			r, w := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)), httptest.NewRecorder()
			r.Header.Set("Content-Type", "application/json")
			if s.ServeHTTP(w, r); w.Code != http.StatusOK {
				t.Fatalf("%s: %s", path, w.Body)
			}
		}
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if n := len(s.hub.touched) + len(s.hub.evicting); n > 0 {
		t.Errorf("%d names are kept", n)
	}
}
