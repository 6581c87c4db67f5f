package httplock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

// over starts a service whose engine is the service at url.
func over(t *testing.T, url string) string {
	t.Helper()
	d := open(t, url)
	s, err := serve.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	t.Cleanup(func() { s.Drain(); web.Close(); s.Close(); d.Close() })
	return web.URL
}

func posted(t *testing.T, url, body string) (status int, text string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(all)
}

// If the inner service removes a waiter, the outer one reports that and the reason.
func TestRemovalThroughTwoServices(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	inner := instances(t, engine, 1, nil)
	outer := over(t, inner)
	if status, text := posted(t, inner+"/v1/acquire", `{"name":"n","owner":"holder","ttl_ms":60000}`); status != http.StatusOK {
		t.Fatal(status, text)
	}
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		status, text := posted(t, outer+"/v1/acquire", `{"name":"n","owner":"waiter","ttl_ms":60000,"wait_ms":30000}`)
		if status != http.StatusGone || !strings.Contains(text, `"code":"evicted"`) || !strings.Contains(text, "wrong branch") {
			t.Errorf("the waiter was answered %d %s", status, text)
		}
	}()
	removed := func() bool {
		status, _ := posted(t, inner+"/v1/remove", `{"name":"n","owner":"waiter","reason":"wrong branch"}`)
		return status == http.StatusOK
	}
	for end := time.Now().Add(20 * time.Second); !removed(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not wait")
		}
	}
	<-waits
}

// An instance that has not granted a lease asks for how long it has been held, also where its engine is another service,
// which shows handles in place of owners.
func TestAtLeastThroughTwoServices(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	inner := instances(t, engine, 1, nil)
	post := func(url, body string) {
		t.Helper()
		if status, text := posted(t, url, body); status != http.StatusOK {
			t.Fatal(status, text)
		}
	}
	post(over(t, inner)+"/v1/acquire", `{"name":"n","owner":"o","ttl_ms":60000,"at_least_ms":30000}`)
	time.Sleep(500 * time.Millisecond)
	post(over(t, inner)+"/v1/release", `{"name":"n","owner":"o","at_least_ms":30000}`)
	d := engine.Connect()
	t.Cleanup(func() { d.Close() })
	state, err := d.Inspect(t.Context(), "n")
	if err != nil || len(state.Holders) != 1 || state.Holders[0].Left > 29600*time.Millisecond {
		t.Errorf("half a second of 30 later: %+v, %v", state.Holders, err)
	}
}

// follow subscribes to the events of the service at url, and returns a function that waits for the next one. When follow
// returns, a look at the engine that began after the call is over.
func follow(t *testing.T, url string) (next func() (kind string, e wire.Event)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+wire.Events, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	next = func() (kind string, e wire.Event) {
		t.Helper()
		for lines.Scan() {
			if k, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				kind = k
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					t.Fatal(err)
				}
				return kind, e
			}
		}
		t.Fatal("the stream has ended: ", lines.Err())
		return "", e
	}
	if kind, _ := next(); kind != wire.EventOpen {
		t.Fatalf("the stream begins with %s", kind)
	}
	return next
}

// entries returns what the history of the service at url has of n.
func entries(t *testing.T, url, kinds string) []wire.Entry {
	t.Helper()
	resp, err := http.Get(url + wire.History + "?name=n&kind=" + kinds)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var page wire.Entries
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		t.Fatal(err)
	}
	return page.Entries
}

// chained starts two services over one engine, the outer over the inner, and acquires n at the outer.
func chained(t *testing.T) (engine *memory.Server, inner, outer string, lease *leasehold.Lease) {
	t.Helper()
	engine = memory.NewServer()
	inner = instances(t, engine, 1, nil)
	outer = over(t, inner)
	locks, err := leasehold.New(opened(t, outer), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	if lease, err = locks.Acquire(t.Context(), "n", leasehold.TTL(30*time.Second)); err != nil {
		t.Fatal(err)
	}
	return engine, inner, outer, lease
}

// An outer service sees handles in place of owners, and recognizes the leases that it granted.
func TestALeaseLastsThroughTwoServices(t *testing.T) {
	t.Parallel()
	engine, _, outer, lease := chained(t)
	if status, text := posted(t, outer+wire.Acquire, `{"name":"n","owner":"waiter","ttl_ms":60000,"queue":true}`); status != http.StatusConflict {
		t.Fatal(status, text)
	}
	next := follow(t, outer)
	for range 3 {
		follow(t, outer)
	}
	if all := entries(t, outer, "waiting"); len(all) != 1 {
		t.Errorf("one waits, and the history has %+v", all)
	}
	if err := lease.Context().Err(); err != nil {
		t.Errorf("the lease has ended: %v", context.Cause(lease.Context()))
	}
	d := engine.Connect()
	t.Cleanup(func() { d.Close() })
	if state, err := d.Inspect(t.Context(), "n"); err != nil || len(state.Holders) != 1 || state.Holders[0].Owner.Reveal() != lease.Owner() {
		t.Errorf("the engine has %+v, %v", state.Holders, err)
	}
	if state, err := opened(t, outer).(driver.Operator).Inspect(t.Context(), "n"); err != nil || len(state.Holders) != 1 || state.Holders[0].Owner.Reveal() != httplock.Shown(lease.Owner()) {
		t.Errorf("the outer service shows %+v, %v", state.Holders, err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if kind, e := next(); kind != wire.EventReleased || e.Handle != httplock.Shown(lease.Owner()) {
		t.Errorf("the first event is %s %+v", kind, e)
	}
}

// The holder learns of an eviction at either service, with its reason. The outer service reports it once.
func TestEvictionThroughTwoServices(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"inner", "outer by owner", "outer by handle"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			_, inner, outer, lease := chained(t)
			next := follow(t, outer)
			url, owner, by := outer, lease.Owner(), "127.0.0.1"
			switch at {
			case "inner":
				url, by = inner, ""
			case "outer by handle":
				owner = httplock.Shown(owner)
			}
			if status, text := posted(t, url+wire.Evict, fmt.Sprintf(`{"name":"n","owner":%q,"reason":"maintenance"}`, owner)); status != http.StatusOK {
				t.Fatal(status, text)
			}
			select {
			case <-lease.Context().Done():
			case <-time.After(20 * time.Second):
				t.Fatal("not told")
			}
			if err := context.Cause(lease.Context()); !errors.Is(err, leasehold.ErrEvicted) || !strings.Contains(err.Error(), "maintenance") {
				t.Errorf("told %v", err)
			}
			if kind, e := next(); kind != wire.EventEvicted || e.Handle != httplock.Shown(lease.Owner()) || e.Reason != "maintenance" {
				t.Errorf("the first event is %s %+v", kind, e)
			}
			follow(t, outer)
			if status, text := posted(t, outer+wire.Acquire, `{"name":"last","ttl_ms":60000}`); status != http.StatusOK {
				t.Fatal(status, text)
			}
			if kind, e := next(); kind != wire.EventGranted || e.Name != "last" {
				t.Errorf("then comes %s %+v", kind, e)
			}
			if all := entries(t, outer, "evicted,ended,expired,released"); len(all) != 1 || all[0].Kind != wire.EventEvicted || all[0].By != by {
				t.Errorf("the history has %+v", all)
			}
		})
	}
}
