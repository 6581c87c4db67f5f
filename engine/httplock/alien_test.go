package httplock_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/memory"
)

// A between stands before the service, and answers in its place what it was told to.
type between struct {
	mu      sync.Mutex
	answers map[string]string // by path
}

func (b *between) says(path, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers = map[string]string{path: text}
}

func newBetween(t *testing.T, target string) (b *between, address string) {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	b = &between{}
	forward := httputil.NewSingleHostReverseProxy(to)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		text, ok := b.answers[r.URL.Path]
		b.mu.Unlock()
		if !ok {
			forward.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text)) // whose reader may have gone
	}))
	t.Cleanup(web.Close)
	return b, web.URL
}

// A 200 that is not the service's, or that answers another call, is an unknown outcome: neither
// a lease, nor its release, nor a free name.
func TestAYesOfSomethingElseIsNoYes(t *testing.T) {
	t.Parallel()
	front, address := newBetween(t, instances(t, memory.NewServer(), 1, nil))
	d, err := httplock.Connect(t.Context(), address, &httplock.Options{NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	claim := func(owner string) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: "n", Owner: owner, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx := t.Context()
	c := claim("owner-one")
	if _, err := c.Try(ctx); err != nil {
		t.Fatal(err)
	}
	grant := func(owner string) string {
		return `{"outcome":"granted","name":"n","owner":"` + owner + `","token":"2048","ttl_ms":60000,"left_ms":60000,"waited_ms":0}`
	}
	for _, s := range []struct {
		path, says string
		call       func(context.Context) error
	}{
		{"/v1/release", `{}`, claimtest.Release(c)},
		{"/v1/release", `{"outcome":"granted"}`, claimtest.Release(c)},
		{"/v1/renew", grant("owner-two"), func(ctx context.Context) error { _, err := c.Renew(ctx, time.Minute); return err }},
		{"/v1/acquire", `{"status":"welcome"}`, func(ctx context.Context) error { _, err := claim("owner-two").Try(ctx); return err }},
		{"/v1/acquire", grant("owner-one"), func(ctx context.Context) error { _, err := claim("owner-two").Try(ctx); return err }},
		{"/v1/evict", `{}`, func(ctx context.Context) error { return d.(driver.Operator).Evict(ctx, "n", "owner-one", "") }},
		{"/v1/lock", `{}`, func(ctx context.Context) error { _, err := d.(driver.Operator).Inspect(ctx, "n"); return err }},
		{"/v1/lock", `{"name":"other","holders":[]}`, func(ctx context.Context) error { _, err := d.(driver.Operator).Inspect(ctx, "n"); return err }},
		{"/v1/locks", `{}`, func(ctx context.Context) error { _, _, err := d.(driver.Operator).List(ctx, "", "", 100); return err }},
		{"/v1/features", `{}`, func(ctx context.Context) error { _, err := httplock.Connect(ctx, address, nil); return err }},
	} {
		front.says(s.path, s.says)
		if err := s.call(ctx); err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrBusy) {
			t.Errorf("%s answered %s: %v", s.path, s.says, err)
		}
	}
	front.says("", "")
	if err := c.Release(ctx, driver.End{}); err != nil {
		t.Errorf("released by the service: %v", err)
	}
}
