package serve_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// pages reads all pages as a client, and checks each.
func (s *service) pages(token, prefix string, limit int) (names []string) {
	s.t.Helper()
	for after := ""; ; {
		path := fmt.Sprintf("%s?prefix=%s&limit=%d&after=%s", wire.List, url.QueryEscape(prefix), limit, after)
		if after == "" {
			path = strings.TrimSuffix(path, "&after=")
		}
		a := s.as(token, http.MethodGet, path, "")
		var page wire.Locks
		if err := json.Unmarshal([]byte(a.text), &page); err != nil || a.status != 200 {
			s.t.Fatalf("%s: %d %s, %v", path, a.status, a.text, err)
		}
		if len(page.Locks) > limit {
			s.t.Errorf("%d locks on a page of %d", len(page.Locks), limit)
		}
		for _, l := range page.Locks {
			names = append(names, l.Name)
		}
		if after = page.Next; after == "" {
			return names
		}
		if told, err := base64.RawURLEncoding.DecodeString(after); err != nil || strings.Contains(string(told), "secret") && token == "first" {
			s.t.Errorf("next tells %q, %v", told, err)
		}
	}
}

// A client sees pages of the names that it may view, and learns of no other name, not even from
// next.
func TestPagesGoByRights(t *testing.T) {
	t.Parallel()
	access := accessOf(t)
	engine := memory.NewServer()
	all := start(t, engine, nil)
	var public, everything []string
	for i := range 10 {
		for _, name := range []string{fmt.Sprintf("ci/public/%d", i), fmt.Sprintf("ci/public/%d-secret", i)[3:], fmt.Sprintf("secret/%d", i)} {
			all.post(wire.Acquire, `{"name":%q,"owner":"owner","ttl_ms":60000}`, name).want(t, 200, "")
			everything = append(everything, name)
		}
		public = append(public, fmt.Sprintf("ci/public/%d", i))
	}
	slices.Sort(everything)
	s := start(t, engine, &serve.Options{Client: access.Client})
	for _, limit := range []int{1, 3, 10, 1000} {
		if got := s.pages("first", "", limit); !slices.Equal(got, public) {
			t.Errorf("by %d: %q, want %q", limit, got, public)
		}
		if got := s.pages("op", "", limit); !slices.Equal(got, everything) {
			t.Errorf("by %d: %q, want %q", limit, got, everything)
		}
		if got := s.pages("first", "ci/public/1", limit); !slices.Equal(got, []string{"ci/public/1"}) {
			t.Errorf("of one: %q", got)
		}
		if got := s.pages("first", "secret/", limit); len(got) > 0 {
			t.Errorf("of what one may not view: %q", got)
		}
	}
	for _, query := range []string{"limit=0", "limit=-1", "limit=1001", "limit=x", "limit=", "after=%21", "after=AAAA%3D", "limit=1&limit=2"} {
		if a := s.as("op", http.MethodGet, wire.List+"?"+query, ""); a.status != 400 && query != "limit=" {
			t.Errorf("%s: %d %s", query, a.status, a.text)
		}
	}
	// The cursor of another client does not reveal names that the client may not view.
	var page wire.Locks
	if err := json.Unmarshal([]byte(s.as("op", http.MethodGet, wire.List+"?limit=15", "").text), &page); err != nil {
		t.Fatal(err)
	}
	if a := s.as("first", http.MethodGet, wire.List+"?after="+page.Next, ""); strings.Contains(a.text, "secret") || a.status != 200 {
		t.Errorf("by the operator's cursor: %d %s", a.status, a.text)
	}
}

// loose lists all names after a cursor, whatever the prefix.
type loose struct{ *memory.Driver }

func (d loose) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	if after != "" {
		prefix, after = "", ""
	}
	return d.Driver.List(ctx, prefix, after, limit)
}

// Clients may make up cursors. Even if the engine then shows other names, the client does not see
// them.
func TestPagesAreFilteredByRights(t *testing.T) {
	t.Parallel()
	access := accessOf(t)
	engine := memory.NewServer()
	all := start(t, engine, nil)
	for _, name := range []string{"ci/public/1", "secret/1"} {
		all.post(wire.Acquire, `{"name":%q,"owner":"owner","ttl_ms":60000}`, name).want(t, 200, "")
	}
	s := startOn(t, loose{engine.Connect()}, &serve.Options{Client: access.Client})
	after := base64.RawURLEncoding.EncodeToString([]byte("ci/public/\x00anything"))
	a := s.as("first", http.MethodGet, wire.List+"?after="+after, "")
	if a.status != 200 || !strings.Contains(a.text, "ci/public/1") || strings.Contains(a.text, "secret") {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// spoilt lists what is not damaged.
type spoilt struct{ *memory.Driver }

func (spoilt) List(context.Context, string, string, int) ([]driver.State, string, error) {
	return nil, "", fmt.Errorf("record of %q: %w", "ci/public/secret", driver.ErrCorrupt)
}

// Clients learn that a lock may be missing because it is damaged. Those with all rights learn which.
func TestPagesTellOfDamage(t *testing.T) {
	t.Parallel()
	access := accessOf(t)
	s := startOn(t, spoilt{memory.New()}, &serve.Options{Client: access.Client})
	for token, names := range map[string]bool{"first": false, "op": true} {
		a := s.as(token, http.MethodGet, wire.List, "")
		if a.status != 200 || !strings.Contains(a.text, `"damaged":`) || strings.Contains(a.text, "secret") != names {
			t.Errorf("%s: %d %s", token, a.status, a.text)
		}
	}
}

// crowded lists more names than exist, once the test says so.
type crowded struct {
	*memory.Driver
	names atomic.Int64
}

func (d *crowded) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	var from int64
	_, _ = fmt.Sscan(after, &from)
	n := d.names.Load()
	if from >= n {
		return d.Driver.List(ctx, prefix, "", limit)
	}
	states := make([]driver.State, min(int64(limit), n-from))
	for i := range states {
		states[i] = driver.State{Resource: fmt.Sprint("crowd/", from+int64(i)), Holders: []driver.Holder{{Owner: driver.OwnerOf("o"), Fence: driver.FenceStep}}}
	}
	return states, fmt.Sprint(from + int64(len(states))), nil
}

// With too many names, a stream does not report other instances' events and says so. It still
// reports this instance's actions. When the names are fewer again, it reports everything as before.
func TestTooManyNamesAreNotFollowed(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	d := &crowded{Driver: engine.Connect()}
	s, other := startOn(t, d, nil), start(t, engine, nil)
	next, _ := s.hear("")
	partial := func(want bool) {
		t.Helper()
		if kind, e := next(); kind != wire.EventOpen || e.Partial != want {
			t.Fatalf("told %s %+v, want that it is partial: %v", kind, e, want)
		}
	}
	d.names.Store(1 << 40) // no look at all names ends
	partial(true)
	s.post(wire.Acquire, `{"name":"here","owner":"owner","ttl_ms":3600000}`).want(t, 200, "")
	if kind, e := next(); kind != wire.EventGranted || e.Name != "here" {
		t.Errorf("told %s %+v", kind, e)
	}
	d.names.Store(0)
	partial(false)
	other.post(wire.Release, `{"name":"here","owner":"owner"}`).want(t, 200, "")
	if kind, e := next(); kind != wire.EventEnded || e.Name != "here" {
		t.Errorf("told %s %+v", kind, e)
	}
}
