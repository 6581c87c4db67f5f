package serve_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

const saidDetails = `{"host":"web-7","user":"anna","pid":42,"program":"ci","started":"2026-11-27T12:32:07+02:00","link":"https://ci.example.com/17","labels":{"Team/of":"payments"},"text":"nightly","kind":"manual"}`

var toldDetails = wire.Details{
	Host: "web-7", User: "anna", PID: 42, Program: "ci", Started: time.Date(2026, 11, 27, 10, 32, 7, 0, time.UTC), Link: "https://ci.example.com/17",
	Labels: map[string]string{"Team/of": "payments"}, Text: "nightly", Kind: "manual",
}

// A client that acquires over HTTP can state details. Everybody sees them: of holders and waiters,
// in refusals, events and the audit log.
func TestDetailsAreTold(t *testing.T) {
	t.Parallel()
	var log lines
	server := memory.NewServer()
	s := start(t, server, &serve.Options{Audit: &log})
	next := s.listen("")
	s.post(wire.Acquire, `{"name":"a","owner":"one","ttl_ms":60000,"details":%s}`, saidDetails).want(t, 200, "")
	if kind, e := next(); kind != wire.EventGranted || e.Details == nil || !reflect.DeepEqual(*e.Details, toldDetails) || e.Note != "nightly" {
		t.Errorf("event %s: %+v", kind, e)
	}
	busy := s.post(wire.Acquire, `{"name":"a","owner":"two","ttl_ms":60000,"queue":true,"note":"patient","details":{"host":"web-8"}}`).want(t, 409, "busy")
	if h := busy.Holder; h == nil || h.Details == nil || !reflect.DeepEqual(*h.Details, toldDetails) || h.Note != "nightly" {
		t.Errorf("refused: %s", busy.text)
	}
	state := s.state("a")
	if h := state.Holders[0]; h.Details == nil || !reflect.DeepEqual(*h.Details, toldDetails) || h.Note != "nightly" {
		t.Errorf("held: %+v", h)
	}
	if w := state.Waiters[0]; w.Details == nil || w.Details.Host != "web-8" || w.Details.Text != "patient" || w.Note != "patient" {
		t.Errorf("waits: %+v", w)
	}
	locks := newLocker(t, server.Connect())
	seen, err := locks.Inspect(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if d := seen.Holders[0].Details(); d.Host != "web-7" || d.Kind != leasehold.HolderManual || !d.Started.Equal(time.Date(2026, 11, 27, 10, 32, 7, 0, time.UTC)) || d.Labels["Team/of"] != "payments" {
		t.Errorf("at the store: %+v", d)
	}
	s.post(wire.Evict, `{"name":"a","owner":"one","reason":"r"}`).want(t, 200, "")
	eventually(t, "the eviction is recorded", func() bool { return strings.Contains(log.String(), "evict") })
	recorded := map[string]*wire.Details{}
	for line := range strings.Lines(log.String()) {
		var r struct {
			Call, Owner string
			Details     *wire.Details
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		recorded[r.Call+" "+r.Owner] = r.Details
	}
	for _, what := range []string{"acquire on", "evict on"} {
		if d := recorded[what]; d == nil || !reflect.DeepEqual(*d, toldDetails) {
			t.Errorf("%s is recorded with %+v:\n%s", what, d, log.String())
		}
	}
}

func newLocker(t *testing.T, d driver.Driver) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); d.Close() })
	return l
}

func TestBadDetailsAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	for _, details := range []string{
		`{"hosts":"a"}`, `{"Host":"a"}`, `{"host":"a","host":"b"}`, `{"pid":-1}`, `{"pid":1.5}`, `{"pid":4294967296}`, `{"started":"now"}`, `{"started":"1960-01-01T00:00:00Z"}`,
		`{"link":"javascript:alert(1)"}`, `{"link":"https://user:password@a.example/"}`, `{"labels":{"":"x"}}`, `{"labels":{"a":1}}`, `{"labels":{"a":"1","a":"2"}}`, `{"labels":[]}`, `{"text":"another"}`,
		`{"text":"n\u0000"}`, `{"labels":{"a":"` + strings.Repeat("x", 4096) + `"}}`, `"x"`,
	} {
		s.post(wire.Acquire, `{"name":"n","ttl_ms":60000,"note":"n","details":%s}`, details).want(t, http.StatusBadRequest, wire.CodeInvalid)
	}
	if n := len(s.state("n").Holders); n > 0 {
		t.Errorf("%d hold", n)
	}
}

// If a lease has details, a new plain note becomes their text.
func TestNoteKeepsDetails(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	a, b := start(t, server, nil), start(t, server, nil)
	a.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"details":{"host":"web-7","text":"begun","labels":{"a":"b"}}}`).want(t, 200, "")
	is := func(text, host string, labels map[string]string) {
		t.Helper()
		if h := b.state("n").Holders[0]; h.Details == nil || h.Details.Text != text || h.Details.Host != host || !maps.Equal(h.Details.Labels, labels) {
			t.Errorf("%+v", h.Details)
		}
	}
	for _, s := range []*service{a, b} {
		s.post(wire.Note, `{"name":"n","owner":"o","note":"at work"}`).want(t, 200, "")
		is("at work", "web-7", map[string]string{"a": "b"})
	}
	a.post(wire.Note, `{"name":"n","owner":"o","note":"done","details":{"host":"web-8"}}`).want(t, 200, "")
	is("done", "web-8", nil)
	a.post(wire.Note, `{"name":"n","owner":"o","note":""}`).want(t, 200, "")
	is("", "web-8", nil)
	a.post(wire.Note, `{"name":"n","owner":"o","note":"x","details":{"text":"y"}}`).want(t, 400, "invalid")
	a.post(wire.Note, `{"name":"n","owner":"stranger","note":"x"}`).want(t, 410, "lost")
}

// A Locker over the service sees the same as one at the store, and is seen in the same way.
func TestDetailsThroughTheService(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	s := start(t, server, nil)
	d, err := httplock.Connect(t.Context(), s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	far, near := newLocker(t, d), newLocker(t, server.Connect())
	check := func(name string) {
		t.Helper()
		at, err := near.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		over, err := far.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if len(at.Holders) != 1 || len(over.Holders) != 1 || !reflect.DeepEqual(at.Holders[0].Details(), over.Holders[0].Details()) || at.Holders[0].Note != over.Holders[0].Note {
			t.Errorf("at the store %+v, over the service %+v", at.Holders, over.Holders)
		}
	}
	said := leasehold.WithDetails(leasehold.Details{Labels: map[string]string{"a=b": "\x00; \u2063h=x"}, Link: "https://a.example/?b=c;d"})
	for name, l := range map[string]*leasehold.Locker{"by far": far, "by near": near} {
		for as, opts := range map[string][]leasehold.Option{"": nil, " with note": {leasehold.Note("x \u2063h=a")}, " with details": {said}, " with both": {said, leasehold.Note("nightly")}} {
			lease, err := l.Acquire(t.Context(), name+as, opts...)
			if err != nil {
				t.Fatal(err)
			}
			check(name + as)
			if err := lease.SetNote(t.Context(), "half done"); err != nil {
				t.Fatal(err)
			}
			check(name + as)
			if err := lease.SetDetails(t.Context(), leasehold.Details{Labels: map[string]string{"exit": "0"}, Kind: leasehold.HolderOnce}); err != nil {
				t.Fatal(err)
			}
			check(name + as)
			state, err := far.Inspect(t.Context(), name+as)
			if d := state.Holders[0].Details(); err != nil || d.Text != "half done" || d.Labels["exit"] != "0" || d.PID == 0 {
				t.Errorf("%s: %+v, %v", name+as, d, err)
			}
		}
	}
}
