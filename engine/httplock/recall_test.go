package httplock_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// held is a granted claim whose Wanted is counted.
func held(t *testing.T, d driver.Driver, wanted *atomic.Int64) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: "n", Owner: "the-holder-of-this-test", TTL: time.Minute, Wanted: func() { wanted.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// queue has another process take a place.
func queue(t *testing.T, d driver.Driver) {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: "n", Owner: "a-waiter-of-this-test", TTL: time.Minute, Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); err == nil {
		t.Fatal("granted beside another")
	}
}

// comes waits until the holder was told.
func comes(t *testing.T, wanted *atomic.Int64) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); wanted.Load() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not told")
		}
	}
}

// forwarder is a proxy that streams.
func forwarder(t *testing.T, service string) *httputil.ReverseProxy {
	t.Helper()
	target, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.FlushInterval = -1
	return forward
}

// behind is a driver whose service is h.
func behind(t *testing.T, h http.Handler) driver.Driver {
	t.Helper()
	between := httptest.NewServer(h)
	t.Cleanup(between.Close)
	return opened(t, between.URL)
}

func opened(t *testing.T, url string) driver.Driver {
	t.Helper()
	d := open(t, url)
	t.Cleanup(func() { d.Close() })
	return d
}

// A proxy that keeps the stream back, or cuts it, delays a recall to the next renewal.
func TestARecallThatIsLostComesWithARenewal(t *testing.T) {
	t.Parallel()
	for name, events := range map[string]http.HandlerFunc{
		"kept back": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("event: open\ndata: {}\n\n"))
		},
		"refused": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := instances(t, memory.NewServer(), 1, nil)
			forward := forwarder(t, service)
			d, other := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == wire.Events {
					events(w, r)
					return
				}
				forward.ServeHTTP(w, r)
			})), opened(t, service)
			var wanted atomic.Int64
			c := held(t, d, &wanted)
			queue(t, other)
			if _, err := c.Renew(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			if wanted.Load() == 0 {
				t.Error("a renewal has not told that others wait")
			}
		})
	}
}

// A driver without a stream does not promise that it is told at once.
func TestWithoutAStreamRenewalsTell(t *testing.T) {
	t.Parallel()
	service := instances(t, memory.NewServer(), 1, nil)
	d, err := httplock.Connect(t.Context(), service, &httplock.Options{NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if f := d.Features(); !f.Tells || f.Recalls || !f.Keeps {
		t.Errorf("features %+v", f)
	}
	other := open(t, service)
	defer other.Close()
	if f := other.Features(); !f.Tells || !f.Recalls || !f.Keeps {
		t.Errorf("features %+v", f)
	}
	var wanted atomic.Int64
	c := held(t, d, &wanted)
	queue(t, other)
	if _, err := c.Renew(t.Context(), time.Minute); err != nil || wanted.Load() == 0 {
		t.Errorf("renewed: %v, told %d times", err, wanted.Load())
	}
}

// Claims that hold on over two instances, whose streams are with the other, are told within a look.
func TestARecallByAnotherInstance(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := instances(t, engine, 1, nil), instances(t, engine, 1, nil)
	target := map[bool]http.Handler{false: forwarder(t, a), true: forwarder(t, b)} // whether for events
	d, other := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target[r.URL.Path == wire.Events].ServeHTTP(w, r)
	})), opened(t, a)
	var wanted atomic.Int64
	held(t, d, &wanted)
	queue(t, other)
	comes(t, &wanted)
}

// A driver asks for a stream that tells who is wanted once a claim does, though it had one without before.
func TestAStreamTellsOnceItIsAskedFor(t *testing.T) {
	t.Parallel()
	service := instances(t, memory.NewServer(), 1, nil)
	forward := forwarder(t, service)
	asked := make(chan string, 16)
	d, other := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == wire.Events {
			asked <- r.URL.Query().Get("kind")
		}
		forward.ServeHTTP(w, r)
	})), opened(t, service)
	plain, err := d.Claim(driver.Request{Resource: "plain", Owner: "another-holder-of-this-test", TTL: time.Minute, Lost: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kinds := <-asked; kinds != "evicted,ended" {
		t.Errorf("nobody has asked, and the stream is asked for %q", kinds)
	}
	var wanted atomic.Int64
	held(t, d, &wanted)
	select {
	case kinds := <-asked:
		if kinds != "evicted,ended,wanted" {
			t.Errorf("the stream is asked for %q", kinds)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no other stream is asked for")
	}
	queue(t, other)
	comes(t, &wanted)
}

// A recall that comes while the answer with the grant is under way is not lost.
func TestARecallBeforeTheAnswerThatGrants(t *testing.T) {
	t.Parallel()
	service := instances(t, memory.NewServer(), 1, nil)
	forward := forwarder(t, service)
	granted, pass := make(chan bool, 8), make(chan bool)
	forward.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path == wire.Acquire {
			granted <- true
			<-pass
		}
		return nil
	}
	d, other := behind(t, forward), opened(t, service)
	told := make(chan bool, 1)
	c, err := d.Claim(driver.Request{Resource: "n", Owner: "the-holder-of-this-test", TTL: time.Minute, Wanted: func() {
		select {
		case told <- true:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	tried := make(chan error, 1)
	go func() {
		_, err := c.Try(t.Context())
		tried <- err
	}()
	<-granted
	queue(t, other)
	select {
	case <-told:
	case <-time.After(20 * time.Second):
		t.Error("not told")
	}
	close(pass)
	if err := <-tried; err != nil {
		t.Error(err)
	}
}

// A service that does not tell, such as an older one, which refuses fields that it does not know, is not asked to.
func TestAServiceThatDoesNotTellIsNotAsked(t *testing.T) {
	t.Parallel()
	forward := forwarder(t, instances(t, memory.NewServer(), 1, nil))
	forward.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path != wire.Features {
			return nil
		}
		text, err := io.ReadAll(r.Body)
		text = bytes.ReplaceAll(text, []byte(`"tells":true,"recalls":true,"keeps":true,"wanted_once":true,`), nil)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		r.Header.Set("Content-Length", strconv.Itoa(len(text)))
		return err
	}
	d := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) // what is missing the service refuses
		if bytes.Contains(text, []byte("wanted")) || r.URL.Query().Has("kind") {
			t.Errorf("asked %s %s", r.URL, text)
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		forward.ServeHTTP(w, r)
	}))
	if f := d.Features(); f.Tells || f.Recalls || f.Keeps {
		t.Fatalf("features %+v", f)
	}
	var wanted atomic.Int64
	c := held(t, d, &wanted)
	if _, err := c.Renew(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
}
