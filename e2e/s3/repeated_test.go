package s3

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// front is a server before another, which may spoil what passes.
func front(t testing.TB, endpoint string, spoil func(w http.ResponseWriter, r *http.Request, pass http.Handler)) string {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	pass := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { spoil(w, r, pass) }))
	t.Cleanup(web.Close)
	return web.URL
}

// A store that does not keep to a condition is found out, and no lock is given.
func TestConditionsAreProved(t *testing.T) {
	t.Parallel()
	endpoint := fake(t)
	for _, ignored := range []string{"If-None-Match", "If-Match"} {
		at := front(t, endpoint, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			r.Header.Del(ignored)
			pass.ServeHTTP(w, r)
		})
		if err := try(t, urlOf("a:b", "locks", at)); !errors.Is(err, s3lock.ErrConditions) || !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("%s is ignored: %v; want ErrConditions", ignored, err)
		}
	}
	if err := try(t, urlOf("a:b", "locks", endpoint)); err != nil {
		t.Errorf("both are kept to: %v", err)
	}
}

// Whoever repeats a put, and is refused the second time, has won all the same; also when it was the
// SDK, whose first answer was lost, and when others have written in between.
func TestRepeatedPuts(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	var lost atomic.Int64
	for name, spoil := range map[string]func(w http.ResponseWriter, r *http.Request, pass http.Handler){
		"twice": func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if r.Method == http.MethodPut {
				again := r.Clone(r.Context())
				again.Body = io.NopCloser(bytes.NewReader(body))
				pass.ServeHTTP(httptest.NewRecorder(), again)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			pass.ServeHTTP(w, r)
		},
		"answers lost": func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if r.Method == http.MethodPut && strings.HasPrefix(r.Header.Get("Amz-Sdk-Request"), "attempt=1;") && lost.Add(1)%4 == 0 {
				pass.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler) // which ends the connection
			}
			pass.ServeHTTP(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var last uint64 // guarded by the lock
			var all sync.WaitGroup
			for range 3 {
				l := lockerOn(t, front(t, s.Endpoint(), spoil))
				all.Go(func() { leaseAgain(t, l, name, &last) })
			}
			all.Wait()
		})
	}
}

// leaseAgain takes, extends and releases a lease five times.
func leaseAgain(t *testing.T, l *leasehold.Locker, name string, last *uint64) {
	for range 5 {
		lease, err := l.Acquire(t.Context(), name, leasehold.Wait(time.Minute))
		for end := time.Now().Add(time.Minute); name != "twice" && errors.Is(err, s3lock.ErrUnreachable) && time.Now().Before(end); {
			lease, err = l.Acquire(t.Context(), name, leasehold.Wait(time.Minute)) // the SDK's pauses may take all of a call's time
		}
		if err != nil {
			t.Error(err)
			return
		}
		if err := lease.Extend(t.Context(), ttl); err != nil {
			t.Error(err)
		}
		if lease.Token() <= *last {
			t.Errorf("token %d after %d", lease.Token(), *last)
		}
		*last = lease.Token()
		// The SDK repeats within a second or two, when too much may have been written since.
		if err := lease.Release(t.Context()); err != nil && (name == "twice" || errors.Is(err, leasehold.ErrLost)) {
			t.Error(err)
		}
	}
}
