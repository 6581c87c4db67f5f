package s3

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Some stores, versitygw with its --sidecar among them, answer a get that meets a put with the new ETag
// and the old content. Who writes upon that must not overwrite a grant that it has not seen.
func TestTornReads(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	for name, earlier := range map[string]bool{"at first": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := lockerOn(t, s.Endpoint())
			leaseAgain(t, other, name, new(uint64))
			var tear atomic.Bool
			l := lockerOn(t, front(t, s.Endpoint(), func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
				if r.Method != http.MethodGet || !tear.CompareAndSwap(true, false) {
					pass.ServeHTTP(w, r)
					return
				}
				old, now := httptest.NewRecorder(), httptest.NewRecorder()
				pass.ServeHTTP(old, r)
				if _, err := other.TryAcquire(t.Context(), name); err != nil {
					t.Error(err)
				}
				pass.ServeHTTP(now, r.Clone(r.Context()))
				w.Header()["ETag"] = now.Header()["Etag"]
				w.Header()["Content-Length"] = old.Header()["Content-Length"]
				_, _ = w.Write(old.Body.Bytes())
			}))
			if earlier {
				leaseAgain(t, l, name+"'s other", new(uint64))
			}
			tear.Store(true)
			if _, err := l.TryAcquire(t.Context(), name); !errors.Is(err, leasehold.ErrBusy) || tear.Load() {
				t.Errorf("upon a get that was torn (%v): %v; want ErrBusy", !tear.Load(), err)
			}
		})
	}
}
