package httplock_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/wire"
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

// A refused Try without a place is not released. If an earlier call of it had no answer, the instance that
// serves that one late grants nothing.
func TestRefusalsKeepEarlierCallsOut(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	target, err := url.Parse(instances(t, engine, 1, nil))
	if err != nil {
		t.Fatal(err)
	}
	late := make(chan []byte, 1) // the first acquire, which nobody has served yet
	forward := httputil.NewSingleHostReverseProxy(target)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == wire.Acquire && len(late) == 0 {
			body, _ := io.ReadAll(r.Body)
			late <- body
			<-r.Context().Done()
			return
		}
		forward.ServeHTTP(w, r)
	}))
	defer web.Close()
	direct := engine.Connect()
	defer direct.Close()
	holder := claimtest.New(t, direct, driver.Request{Resource: "n", Owner: "holder", TTL: time.Minute})
	claimtest.Granted(t, holder)
	client := open(t, web.URL)
	defer client.Close()
	c := claimtest.New(t, client, driver.Request{Resource: "n", Owner: "refused", TTL: time.Minute})
	if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try: %v; want ErrBusy", err)
	}
	claimtest.Released(t, holder)
	resp, err := http.Post(instances(t, engine, 1, nil)+wire.Acquire, "application/json", bytes.NewReader(<-late))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusGone {
		t.Errorf("the first call, served after the refusal: %s", resp.Status)
	}
	claimtest.Granted(t, holder)
}
