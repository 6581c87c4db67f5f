// Package transport sends HTTP requests for engines that are reached by HTTP. It applies the
// current contents of files.
package transport

import (
	"net/http"
	"sync"
	"time"
)

// lookEvery is how often to check whether the files have changed. It is less often than a busy
// client makes calls, and often enough for leases of a few seconds.
const lookEvery = time.Second

// A Transport is an [http.RoundTripper] that is recreated when its files have changed. Calls in
// progress, such as a stream, stay on the former one.
type Transport struct {
	changed func() any               // returns an equal value as long as the files have not changed
	create  func() http.RoundTripper // nil: the former one stays

	mu     sync.Mutex // held while files are read
	now    http.RoundTripper
	of     any       // guarded by mu; what changed returned before now was made
	looked time.Time // guarded by mu; zero: to be looked at by the next call
}

// New returns a Transport. It calls create, which must not return nil this first time.
func New(changed func() any, create func() http.RoundTripper) *Transport {
	t := &Transport{changed: changed, create: create, looked: time.Now()}
	t.of, t.now = changed(), create()
	return t
}

// RoundTrip implements [http.RoundTripper]. If a call gets no answer, or is refused with 401 or
// 403, the next call checks the files.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.current().RoundTrip(req)
	if err != nil || resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		t.mu.Lock()
		t.looked = time.Time{}
		t.mu.Unlock()
	}
	return resp, err
}

func (t *Transport) current() http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) < lookEvery {
		return t.now
	}
	t.looked = time.Now()
	if is := t.changed(); is != t.of {
		if next := t.create(); next != nil {
			closeIdle(t.now)
			t.of, t.now = is, next
		}
	}
	return t.now
}

// CloseIdleConnections implements the method that [http.Client.CloseIdleConnections] calls.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	closeIdle(t.now)
}

func closeIdle(t http.RoundTripper) {
	if c, ok := t.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
