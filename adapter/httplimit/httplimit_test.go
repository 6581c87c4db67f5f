package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/httplimit"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func newLocks(t *testing.T, d driver.Driver) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// tenant names requests by their path.
func tenant(r *http.Request) string { return strings.Trim(r.URL.Path, "/") }

// An instance is a server that counts what it serves, each request until it may end.
type instance struct {
	*httptest.Server
	serves, ended atomic.Int64
	end           chan struct{}
}

func start(t *testing.T, limit *httplimit.Limit) *instance {
	t.Helper()
	i := &instance{end: make(chan struct{})}
	i.Server = httptest.NewServer(limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.serves.Add(1)
		defer i.ended.Add(1)
		if _, ok := leasehold.FromContext(r.Context()); !ok && limit.Name(r) != "" && !limit.FailOpen {
			t.Error("the request has no lease")
		}
		select {
		case <-i.end:
		case <-r.Context().Done():
		}
		if r.Method == http.MethodDelete {
			panic(http.ErrAbortHandler)
		}
	})))
	t.Cleanup(i.Close)
	return i
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("not seen: " + what)
		}
	}
}

// ask starts a request whose answer comes on the channel.
func ask(t *testing.T, ctx context.Context, method, url string) <-chan *http.Response {
	t.Helper()
	answers := make(chan *http.Response, 1)
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		answers <- resp
	}()
	return answers
}

func get(t *testing.T, url string) *http.Response {
	t.Helper()
	resp := <-ask(t, t.Context(), http.MethodGet, url)
	if resp == nil {
		t.Fatal("no answer")
	}
	return resp
}

func TestAtMostSoManyOverAllInstances(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	var all []*instance
	for range 2 {
		all = append(all, start(t, &httplimit.Limit{Locks: newLocks(t, server.Connect()), Name: tenant, Most: 2}))
	}
	a, b := all[0], all[1]
	first := ask(t, t.Context(), http.MethodGet, a.URL+"/t1")
	eventually(t, "the first is served", func() bool { return a.serves.Load() == 1 })
	second := ask(t, t.Context(), http.MethodGet, b.URL+"/t1")
	eventually(t, "the second is served", func() bool { return b.serves.Load() == 1 })
	resp := get(t, b.URL+"/t1")
	if retry, err := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode != http.StatusTooManyRequests || err != nil || retry < 1 || retry > 60 {
		t.Errorf("the third: %s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
	}
	other := ask(t, t.Context(), http.MethodGet, b.URL+"/t2")
	eventually(t, "another tenant is served", func() bool { return b.serves.Load() == 2 })
	unlimited := ask(t, t.Context(), http.MethodGet, b.URL+"/")
	eventually(t, "a request without a name is served", func() bool { return b.serves.Load() == 3 })
	close(a.end)
	close(b.end)
	for _, c := range []<-chan *http.Response{first, second, other, unlimited} {
		if resp := <-c; resp == nil || resp.StatusCode != http.StatusOK {
			t.Errorf("one that was admitted: %v", resp)
		}
	}
	if resp := get(t, b.URL+"/t1"); resp.StatusCode != http.StatusOK {
		t.Errorf("after all have ended: %s", resp.Status)
	}
}

// Slots come back whatever ends a request.
func TestSlotsComeBack(t *testing.T) {
	t.Parallel()
	i := start(t, &httplimit.Limit{Locks: newLocks(t, memory.New()), Name: tenant, Most: 1, Wait: time.Minute})
	ctx, leave := context.WithCancel(t.Context())
	gone := ask(t, ctx, http.MethodGet, i.URL+"/t1")
	eventually(t, "it is served", func() bool { return i.serves.Load() == 1 })
	waits := ask(t, t.Context(), http.MethodDelete, i.URL+"/t1") // panics when it ends
	left, cancel := context.WithCancel(t.Context())
	impatient := ask(t, left, http.MethodGet, i.URL+"/t1")
	cancel()
	<-impatient
	leave()
	<-gone
	eventually(t, "the next is served when a client has gone away", func() bool { return i.serves.Load() >= 2 })
	close(i.end)
	<-waits
	if resp := get(t, i.URL+"/t1"); resp.StatusCode != http.StatusOK {
		t.Errorf("after one that panicked: %s", resp.Status)
	}
}

func TestWeights(t *testing.T) {
	t.Parallel()
	i := start(t, &httplimit.Limit{Locks: newLocks(t, memory.New()), Name: func(*http.Request) string { return "all" }, Most: 4,
		Weight: func(r *http.Request) int { n, _ := strconv.Atoi(tenant(r)); return n }})
	three := ask(t, t.Context(), http.MethodGet, i.URL+"/3")
	eventually(t, "it is served", func() bool { return i.serves.Load() == 1 })
	if resp := get(t, i.URL+"/2"); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("three and two of four: %s", resp.Status)
	}
	if resp := get(t, i.URL+"/5"); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("five of four: %s", resp.Status)
	}
	close(i.end)
	<-three
}

// An engine that does not answer, and names that it refuses.
func TestWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		link := locktest.NewFaulty(memory.New())
		link.Always(locktest.OpTry, locktest.LoseRequest)
		var told atomic.Int64
		i := start(t, &httplimit.Limit{Locks: newLocks(t, link), Name: func(r *http.Request) string { return r.URL.Query().Get("name") }, Most: 1, FailOpen: open,
			Error: func(_ *http.Request, err error) {
				if !errors.Is(err, locktest.ErrInjected) {
					t.Error(err)
				}
				told.Add(1)
			}})
		close(i.end)
		resp := get(t, i.URL+"/?name=a")
		if served := i.serves.Load() == 1; served != open || (resp.StatusCode == http.StatusServiceUnavailable) == open || told.Load() != 1 {
			t.Errorf("FailOpen %v: %s, served %v, told of %d errors", open, resp.Status, served, told.Load())
		}
		if resp := get(t, i.URL+"/?name="+strings.Repeat("a", 600)); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("a name that is too long: %s", resp.Status)
		}
	}
}

// FailOpen does not serve what no engine could admit, nor a request whose weight is odd, outside the limit.
func TestFailOpenIsForEnginesThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most, weight, want int
	}{
		{4, driver.MaxWeight + 1, http.StatusRequestEntityTooLarge},
		{4, 0, http.StatusOK},
		{4, -1, http.StatusOK},
		{driver.MaxWeight + 1, 1, http.StatusServiceUnavailable},
	} {
		limit := &httplimit.Limit{Locks: newLocks(t, memory.New()), Name: tenant, Most: c.most, FailOpen: true,
			Weight: func(*http.Request) int { return c.weight }}
		next := func(_ http.ResponseWriter, r *http.Request) {
			if _, ok := leasehold.FromContext(r.Context()); !ok {
				t.Errorf("%d of %d was served outside the limit", c.weight, c.most)
			}
		}
		w := httptest.NewRecorder()
		limit.Handler(http.HandlerFunc(next)).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/t1", nil))
		if w.Code != c.want {
			t.Errorf("%d of %d: %d, want %d", c.weight, c.most, w.Code, c.want)
		}
	}
}

// A request whose lease is lost hears it, and so does Error.
func TestLostLease(t *testing.T) {
	t.Parallel()
	d := memory.New()
	locks := newLocks(t, d)
	var lost atomic.Int64
	i := start(t, &httplimit.Limit{Locks: locks, Name: tenant, Most: 1, Error: func(_ *http.Request, err error) {
		if !errors.Is(err, leasehold.ErrEvicted) {
			t.Error(err)
		}
		lost.Add(1)
	}})
	answer := ask(t, t.Context(), http.MethodGet, i.URL+"/t1")
	eventually(t, "it is served", func() bool { return i.serves.Load() == 1 })
	st, err := locks.Inspect(t.Context(), "t1")
	if err != nil || len(st.Holders) != 1 {
		t.Fatal(st, err)
	}
	if err := locks.Evict(t.Context(), "t1", st.Holders[0].Owner.Reveal(), "test"); err != nil {
		t.Fatal(err)
	}
	<-answer
	eventually(t, "Error is called", func() bool { return lost.Load() == 1 })
}
