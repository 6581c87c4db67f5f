package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve"
)

// A bubble is a service without a network, for testing/synctest, where minutes take no time.
type bubble struct {
	t *testing.T
	*serve.Server
}

func newBubble(t *testing.T, d driver.Driver, opts *serve.Options) bubble {
	t.Helper()
	s, err := serve.New(d, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); d.Close() })
	return bubble{t, s}
}

func (b bubble) post(path, body string, args ...any) int {
	b.t.Helper()
	return b.serve(path, body, args...).Code
}

func (b bubble) serve(path, body string, args ...any) *httptest.ResponseRecorder {
	return b.serveFor(context.Background(), path, body, args...)
}

// serveFor is serve for a caller that is gone once ctx ends.
func (b bubble) serveFor(ctx context.Context, path, body string, args ...any) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(fmt.Appendf(nil, body, args...)))
	r.Header.Set("Content-Type", "application/json")
	b.ServeHTTP(w, r)
	return w
}

// wantCode is want for the code in the answer.
func (b bubble) wantCode(code, path, body string, args ...any) {
	b.t.Helper()
	var a wire.Answer
	if text := b.serve(path, body, args...).Body.Bytes(); json.Unmarshal(text, &a) != nil || a.Code != code {
		b.t.Errorf("%s %s: answered %s, want code %q", path, fmt.Sprintf(body, args...), text, code)
	}
}

func (b bubble) want(status int, path, body string, args ...any) {
	b.t.Helper()
	if got := b.post(path, body, args...); got != status {
		b.t.Fatalf("%s %s: status %d, want %d", path, fmt.Sprintf(body, args...), got, status)
	}
}

func (b bubble) get(path string) []byte {
	b.t.Helper()
	w := httptest.NewRecorder()
	if b.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil)); w.Code != http.StatusOK {
		b.t.Fatalf("%s: status %d, %s", path, w.Code, w.Body)
	}
	return w.Body.Bytes()
}

func told[T any](b bubble, path string) (v T) {
	b.t.Helper()
	if err := json.Unmarshal(b.get(path), &v); err != nil {
		b.t.Fatal(err)
	}
	return v
}

func (b bubble) figures() wire.Figures { return told[wire.Figures](b, wire.Overview) }

func (b bubble) wantMetric(line string, args ...any) {
	b.t.Helper()
	if want := fmt.Sprintf(line, args...); !strings.Contains(string(b.get("/metrics")), "\n"+want+"\n") {
		b.t.Errorf("the metrics have no %s", want)
	}
}

func (b bubble) history(query string) wire.Entries {
	return told[wire.Entries](b, wire.History+"?"+query)
}

// wantHistory first waits for looks.
func (b bubble) wantHistory(query, want string) wire.Entries {
	b.t.Helper()
	time.Sleep(lookedBy)
	all := b.history(query)
	if got := kinds(all); got != want {
		b.t.Fatalf("the history of %s is\n%s\nwant\n%s", query, got, want)
	}
	return all
}

// lookedBy is how long a look takes at most to begin and end, with the options often.
const lookedBy = 200 * time.Millisecond
