package serve

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// After a standstill of the process or a sleep of the machine, an instance sends nothing to the
// store for calls that may have come before. It answers that they must be repeated, until it has
// read everything that waited.
func TestCallsThatWaitedForAStandstillAreNotServed(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	s, err := New(engine.Connect(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var clock boottime.Clock
	s.pulse.mu.Lock()
	s.pulse.clock, s.pulse.beat, s.pulse.stalls = &clock, clock.Now(), nil
	s.pulse.mu.Unlock()
	ask := func(path, body string) int {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if old := strings.Contains(w.Body.String(), `"too_old"`); old != (w.Code == http.StatusServiceUnavailable) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		return w.Code
	}
	const claim = `{"name":"n","owner":"o","ttl_ms":600000}`
	for _, step := range []struct {
		slept time.Duration
		path  string
		body  string
		want  int
	}{
		{0, wire.Acquire, claim, 200},
		{callAge - settle, wire.Renew, claim, 200},
		{callAge + stall, wire.Renew, claim, 503},
		{settle / 2, wire.Release, `{"name":"n","owner":"o"}`, 503}, // a second standstill, before everything is read
		{0, wire.Acquire, `{"name":"m","owner":"o","ttl_ms":600000}`, 503},
		{0, wire.Acquire, `{"name":"m","owner":"o","ttl_ms":600000,"wait_ms":1000}`, 503},
		{0, wire.Note, `{"name":"n","owner":"o","note":"x"}`, 503},
		{0, wire.Evict, `{"name":"n","owner":"o","reason":"x"}`, 503},
		{0, wire.Remove, `{"name":"n","owner":"o","reason":"x"}`, 503},
		{0, wire.Fence, `{"name":"n","token":"5"}`, 503},
	} {
		clock.Sleep(step.slept)
		if got := ask(step.path, step.body); got != step.want {
			t.Errorf("%s after a sleep of %v: %d, want %d", step.path, step.slept, got, step.want)
		}
	}
	if state, err := engine.Connect().Inspect(t.Context(), "m"); err != nil || len(state.Holders) > 0 {
		t.Errorf("a call that was refused has taken: %+v, %v", state.Holders, err)
	}
	for range 2 * settle / stall * 2 {
		clock.Sleep(stall / 2) // too short for a standstill
		s.pulse.arrival()
	}
	if got := ask(wire.Renew, claim); got != 200 {
		t.Errorf("when all has been read: %d", got)
	}
}

// A call that waits for other holders is not tried again if its instance has stood still for longer
// than its wait. It was refused before, and gets that answer.
func TestWaitEndsWithAStandstill(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	s, err := New(engine.Connect(), nil)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	defer func() { s.Drain(); web.Close(); s.Close() }()
	var clock boottime.Clock
	s.pulse.mu.Lock()
	s.pulse.clock, s.pulse.beat = &clock, clock.Now()
	s.pulse.mu.Unlock()
	post := func(path, body string) *http.Response {
		resp, err := http.Post(web.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return &http.Response{Body: http.NoBody}
		}
		resp.Body.Close()
		return resp
	}
	post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":600000}`)
	waited := make(chan int, 1)
	go func() {
		waited <- post(wire.Acquire, `{"name":"n","owner":"p","ttl_ms":600000,"wait_ms":20000}`).StatusCode
	}()
	other := engine.Connect()
	for {
		if state, err := other.Inspect(t.Context(), "n"); err != nil || len(state.Waiters) == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	clock.Sleep(21 * time.Second)
	if err := other.Evict(t.Context(), "n", "o", "so that who waits looks again"); err != nil {
		t.Fatal(err)
	}
	if got := <-waited; got != http.StatusConflict {
		t.Errorf("answered %d", got)
	}
	if state, err := other.Inspect(t.Context(), "n"); err != nil || len(state.Holders) > 0 {
		t.Errorf("it has taken: %+v, %v", state.Holders, err)
	}
}

// An overloaded machine has standstills one after another. Calls between them are read soon, and
// are served.
func TestHiccupsRefuseNoCalls(t *testing.T) {
	t.Parallel()
	var clock boottime.Clock
	var p pulse
	p.init(&clock)
	oldest := time.Duration(0)
	for range 100 {
		clock.Sleep(stall + 200*time.Millisecond)
		for range 3 {
			p.arrival()
			clock.Sleep(600 * time.Millisecond)
		}
		oldest = max(oldest, p.clock.Now().Sub(p.arrival()))
	}
	if oldest < settle || oldest > callAge-settle/2 {
		t.Errorf("a call is taken to be %v old", oldest)
	}
	if n := len(p.stalls); n > int(settle/time.Second) {
		t.Errorf("%d standstills are remembered", n)
	}
}
