// Package transport sends HTTP requests by what files say at the time, for engines that are reached so.
package transport

import (
	"net/http"
	"sync"
	"time"
)

// lookEvery is how often to look whether the files have changed: more seldom than a busy client makes calls,
// and often enough for a lease of a few seconds.
const lookEvery = time.Second

// A Transport is an [http.RoundTripper] that is made anew when what it is made of has changed. Calls under way,
// such as a stream, stay on the former one.
type Transport struct {
	changed func() any               // equal to what it returned before, unless there is to be another
	create  func() http.RoundTripper // nil: the former one stays

	mu     sync.Mutex // held while files are read
	now    http.RoundTripper
	of     any       // guarded by mu; what changed returned before now was made
	looked time.Time // guarded by mu; zero: to be looked at by the next call
}

// New returns a Transport. It calls create, which then must not return nil.
func New(changed func() any, create func() http.RoundTripper) *Transport {
	t := &Transport{changed: changed, create: create, looked: time.Now()}
	t.of, t.now = changed(), create()
	return t
}

// RoundTrip implements [http.RoundTripper]. After a call without an answer, or that was refused for who we are,
// the next one looks at the files.
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

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
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
