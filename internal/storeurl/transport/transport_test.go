package transport_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/storeurl/transport"
)

// A way is a transport that answers with its name.
type way struct {
	name   string
	status int
	err    error
	idle   int // how often its idle connections were closed
}

func (w *way) RoundTrip(*http.Request) (*http.Response, error) {
	if w.err != nil {
		return nil, w.err
	}
	return &http.Response{StatusCode: w.status, Status: w.name, Body: http.NoBody}, nil
}

func (w *way) CloseIdleConnections() { w.idle++ }

// A changed file takes effect within a second, or with the next call after one that failed.
func TestChangedFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first *way
		wait  time.Duration
		want  string
	}{
		"at once":           {&way{name: "first", status: 200}, 0, "first"},
		"a second later":    {&way{name: "first", status: 200}, time.Second, "second"},
		"after no answer":   {&way{name: "first", err: errors.New("refused")}, 0, "second"},
		"after a 401":       {&way{name: "first", status: 401}, 0, "second"},
		"after a 403":       {&way{name: "first", status: 403}, 0, "second"},
		"after another no":  {&way{name: "first", status: 409}, 0, "first"},
		"not to be created": {&way{name: "first", status: 401}, 0, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				says, made := "a", 0
				tr := transport.New(func() any { return says }, func() http.RoundTripper {
					made++
					switch {
					case made == 1:
						return c.first
					case strings.HasPrefix(name, "not"):
						return nil
					}
					return &way{name: "second", status: 200}
				})
				ask := func() string {
					resp, err := tr.RoundTrip(&http.Request{})
					if err != nil {
						return c.first.name
					}
					return resp.Status
				}
				if got := ask(); got != "first" {
					t.Fatalf("first asked: %s", got)
				}
				says = "b"
				time.Sleep(c.wait)
				if got := ask(); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
				replaced := 0
				if c.want == "second" {
					replaced = 1
				}
				if c.first.idle != replaced {
					t.Errorf("idle connections closed %d times", c.first.idle)
				}
			})
		})
	}
}

// Without a change, nothing is created again.
func TestUnchangedFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := 0
		tr := transport.New(func() any { return "a" }, func() http.RoundTripper { made++; return &way{status: 401} })
		for range 5 {
			if _, err := tr.RoundTrip(&http.Request{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
		}
		if made != 1 {
			t.Errorf("made %d times", made)
		}
	})
}
