package httplock_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// Events that never come hold up the first claims, and not each.
func TestAStreamThatNeverOpensCostsOneWait(t *testing.T) {
	t.Parallel()
	front, address := newBetween(t, instances(t, memory.NewServer(), 1, nil))
	front.says("/v1/events", "")
	d, err := httplock.Connect(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	began := time.Now()
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: time.Minute, Lost: func(error) {}})
		if err == nil {
			_, err = c.Try(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("six claims took %v", took)
	}
}

// An instance that stood still refuses all calls for some seconds, as it does not know when they came. They are made again.
func TestCallsOutlastTheTimeAfterAStandstill(t *testing.T) {
	t.Parallel()
	d := memory.New()
	s, err := serve.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	var posts atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && posts.Add(1)%4 != 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, `{"outcome":"unknown","code":"too_old"}`)
			return
		}
		s.ServeHTTP(w, r)
	}))
	defer func() { s.Drain(); web.Close(); s.Close(); d.Close() }()
	client := open(t, web.URL)
	defer client.Close()
	c, err := client.Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Minute})
	if err == nil {
		_, err = c.Try(t.Context())
	}
	if err == nil {
		_, err = c.Renew(t.Context(), time.Minute)
	}
	if err == nil {
		err = c.Release(t.Context(), driver.End{})
	}
	if err != nil || posts.Load() != 12 {
		t.Errorf("%v after %d calls", err, posts.Load())
	}
}
