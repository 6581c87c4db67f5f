package s3

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A cache answers gets as a shared cache between clients and store does: with what passed last, unless it
// was told not to keep that.
type cache struct {
	mu   sync.Mutex
	kept map[string]*httptest.ResponseRecorder // guarded by mu
}

func (c *cache) serve(w http.ResponseWriter, r *http.Request, pass http.Handler) {
	if r.Method != http.MethodGet {
		pass.ServeHTTP(w, r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := c.kept[r.URL.String()]
	if answer == nil {
		answer = httptest.NewRecorder()
		pass.ServeHTTP(answer, r)
		if c.kept == nil {
			c.kept = make(map[string]*httptest.ResponseRecorder)
		}
		if answer.Code == http.StatusOK && answer.Header().Get("Cache-Control") != "no-store" {
			c.kept[r.URL.String()] = answer
		}
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// What a cache between client and store has kept is nothing to lock by: objects say that they are not to be kept.
func TestBehindACache(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	var between cache
	behind := front(t, s.Endpoint(), between.serve)
	first, next := lockerOn(t, behind), lockerOn(t, behind)
	var last uint64
	for range 2 {
		for _, l := range []*leasehold.Locker{first, next} {
			lease, err := l.TryAcquire(t.Context(), "a")
			if err != nil {
				t.Fatalf("TryAcquire: %v", err)
			}
			if lease.Token() <= last {
				t.Errorf("token %d after %d", lease.Token(), last)
			}
			last = lease.Token()
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
	}
}

// Somebody between client and store who answers puts by himself, with an ETag of his own, grants nothing.
func TestAlienAnswersToPuts(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	var alien atomic.Bool
	l := lockerOn(t, front(t, s.Endpoint(), func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if alien.Load() && r.Method == http.MethodPut {
			w.Header().Set("ETag", `"5f3a-264"`)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	lease, err := l.Acquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	alien.Store(true)
	if err := lease.Extend(t.Context(), ttl); err == nil || errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Extend: %v; want an unknown outcome", err)
	}
	if _, err := l.TryAcquire(t.Context(), "a"); err == nil {
		t.Error("a lease that the store knows nothing of")
	}
	alien.Store(false)
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// A put whose answer has lost its ETag may have been done: what it granted is given back.
func TestAnswerWithoutETag(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	var strip atomic.Bool
	l := lockerOn(t, front(t, s.Endpoint(), func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		answer := httptest.NewRecorder()
		pass.ServeHTTP(answer, r)
		maps.Copy(w.Header(), answer.Header())
		if r.Method == http.MethodPut && strip.Swap(false) {
			w.Header().Del("ETag")
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	lease, err := l.TryAcquire(t.Context(), "first") // proves the store
	if err != nil {
		t.Fatal(err)
	}
	strip.Store(true)
	if err := lease.Release(t.Context()); errors.Is(err, leasehold.ErrLost) || errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Release: %v, but it was done", err)
	}
	strip.Store(true)
	if lease, err = l.TryAcquire(t.Context(), "a"); errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("TryAcquire: %v, but it was done", err)
	} else if err == nil && lease.Release(t.Context()) != nil {
		t.Error("the lease is not given back")
	}
	next, err := lockerOn(t, s.Endpoint()).Acquire(t.Context(), "a", leasehold.Wait(ttl/4))
	if err != nil {
		t.Fatalf("behind an attempt whose outcome is unknown: %v", err)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}
