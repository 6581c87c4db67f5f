package serve_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A service is one instance, with a client for tests.
type service struct {
	t *testing.T
	*serve.Server
	url string
}

func start(t *testing.T, engine *memory.Server, opts *serve.Options) *service {
	t.Helper()
	return startOn(t, engine.Connect(), opts)
}

func startOn(t *testing.T, d driver.Driver, opts *serve.Options) *service {
	t.Helper()
	s, err := serve.New(d, opts)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Drain()
		web.Close()
		s.Close()
		d.Close()
	})
	return &service{t, s, web.URL}
}

// An answer has the fields of all answers.
type answer struct {
	status int
	text   string
	wire.Answer
	grant wire.Grant
}

// post makes a call with the body that format and args make.
func (s *service) post(path, format string, args ...any) answer {
	s.t.Helper()
	a, err := post(s.url+path, fmt.Sprintf(format, args...))
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func post(url, body string) (a answer, err error) {
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	return read(resp)
}

func read(resp *http.Response) (a answer, err error) {
	data, err := io.ReadAll(resp.Body)
	a.status, a.text = resp.StatusCode, string(data)
	_ = json.Unmarshal(data, &a.Answer)
	_ = json.Unmarshal(data, &a.grant)
	return a, err
}

// want checks the status and the code of an answer.
func (a answer) want(t *testing.T, status int, code string) answer {
	t.Helper()
	if a.status != status || a.Code != code {
		t.Fatalf("answered %d: %s\nwant %d %s", a.status, a.text, status, code)
	}
	return a
}

func (s *service) state(name string) (st wire.State) {
	s.t.Helper()
	resp, err := http.Get(s.url + "/v1/lock?name=" + name)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
		s.t.Fatal(err)
	}
	return st
}

// eventually polls, because this test uses the machine's clock.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func TestRepeatedCallIsTheSameClaim(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	first := a.post(wire.Acquire, `{"name":"n","owner":"o1","ttl_ms":60000}`).want(t, 200, "")
	again := b.post(wire.Acquire, `{"name":"n","owner":"o1","ttl_ms":60000}`).want(t, 200, "")
	if first.grant.Token != again.grant.Token || len(first.grant.Token) < 17 {
		t.Errorf("tokens %s and %s of one claim", first.grant.Token, again.grant.Token)
	}
	busy := b.post(wire.Acquire, `{"name":"n","owner":"o2","ttl_ms":60000}`).want(t, 409, "busy")
	if busy.Holder == nil || busy.Holder.Token != first.grant.Token || strings.Contains(busy.text, `"o1"`) {
		t.Errorf("refused with %s", busy.text)
	}
	b.post(wire.Renew, `{"name":"n","owner":"o1","ttl_ms":60000}`).want(t, 200, "")
	b.post(wire.Release, `{"name":"n","owner":"o1"}`).want(t, 200, "")
	a.post(wire.Renew, `{"name":"n","owner":"o1","ttl_ms":60000}`).want(t, 410, "lost")
	b.post(wire.Release, `{"name":"n","owner":"o1"}`).want(t, 410, "lost")
	b.post(wire.Acquire, `{"name":"n","owner":"o1","ttl_ms":60000}`).want(t, 410, "owner_used")
}

func TestLateCallsAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"call":1}`).want(t, 200, "")
	s.post(wire.Release, `{"name":"n","owner":"o","call":3,"answered":2}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"call":2}`).want(t, 410, "late_call")
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"call":4}`).want(t, 200, "")
	s.post(wire.Release, `{"name":"n","owner":"o","call":4}`).want(t, 410, "late_call")
}

func TestPlaceOutlivesACallAndAnInstance(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	a.post(wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	if first := a.post(wire.Acquire, `{"name":"n","owner":"w1","ttl_ms":60000,"wait_ms":1}`).want(t, 409, "busy"); !first.Queued {
		t.Errorf("no place is kept: %s", first.text)
	}
	b.post(wire.Acquire, `{"name":"n","owner":"w2","ttl_ms":60000,"queue":true}`).want(t, 409, "busy")
	granted := make(chan answer, 2)
	for _, owner := range []string{"w2", "w1"} {
		go func() {
			got, err := post(b.url+wire.Acquire, fmt.Sprintf(`{"name":"n","owner":%q,"ttl_ms":60000,"wait_ms":20000}`, owner))
			if err != nil {
				t.Error(err)
			}
			granted <- got
		}()
	}
	eventually(t, "both wait", func() bool { return len(a.state("n").Waiters) == 2 })
	a.post(wire.Release, `{"name":"n","owner":"holder"}`).want(t, 200, "")
	if got := (<-granted).want(t, 200, ""); got.grant.Owner != "w1" || got.grant.Left > got.grant.TTL {
		t.Errorf("granted first: %s", got.text)
	}
	a.post(wire.Release, `{"name":"n","owner":"w1"}`).want(t, 200, "")
	(<-granted).want(t, 200, "")
}

// A caller that let the service choose its owner cannot come back. If it is gone or was refused,
// its call leaves nothing behind.
func TestCallerWithoutOwnerLeavesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	held := s.post(wire.Acquire, `{"name":"n","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"n","ttl_ms":60000,"wait_ms":10}`).want(t, 409, "busy")
	if st := s.state("n"); len(st.Waiters) > 0 {
		t.Errorf("left in the queue: %v", st.Waiters)
	}
	ctx, cancel := newRequest(t, s.url+wire.Acquire, `{"name":"n","ttl_ms":60000,"wait_ms":20000}`)
	gone := make(chan error, 1)
	go func() {
		_, err := http.DefaultClient.Do(ctx)
		gone <- err
	}()
	eventually(t, "it waits", func() bool { return len(s.state("n").Waiters) == 1 })
	cancel()
	<-gone
	eventually(t, "its place is gone", func() bool { return len(s.state("n").Waiters) == 0 })
	s.post(wire.Release, `{"name":"n","owner":%q}`, held.grant.Owner).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"n","ttl_ms":60000}`).want(t, 200, "")
}

func TestDrainTellsWaitersToRepeat(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	a.post(wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	told := make(chan answer, 1)
	go func() {
		got, _ := post(a.url+wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"wait_ms":20000}`)
		told <- got
	}()
	eventually(t, "it waits", func() bool { return len(b.state("n").Waiters) == 1 })
	a.Drain()
	if got := (<-told).want(t, 409, "draining"); !got.Queued || strings.Contains(got.text, "holds it") {
		t.Errorf("the place is not kept, or somebody is said to hold it: %s", got.text)
	}
	if resp, err := http.Get(a.url + "/readyz"); err != nil || resp.StatusCode != 503 {
		t.Errorf("readyz of an instance that stops: %v, %v", resp, err)
	}
}

func TestEventsTellWhatBothInstancesDo(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	next := a.listen("x/")
	a.post(wire.Acquire, `{"name":"y","owner":"other","ttl_ms":60000}`).want(t, 200, "")
	a.post(wire.Acquire, `{"name":"x/1","owner":"owner-one","ttl_ms":60000,"note":"<b>"}`).want(t, 200, "")
	kind, e := next()
	if kind != wire.EventGranted || e.Name != "x/1" || e.Owner != "owner" || e.Note != "<b>" {
		t.Errorf("told %s %+v", kind, e)
	}
	b.post(wire.Evict, `{"name":"x/1","owner":%q,"reason":"test"}`, e.Handle).want(t, 200, "")
	if kind, e := next(); kind != wire.EventEvicted || e.Name != "x/1" || e.Reason != "test" {
		t.Errorf("told %s %+v", kind, e)
	}
	a.post(wire.Acquire, `{"name":"x/3","owner":"owner-three","ttl_ms":1000}`).want(t, 200, "")
	if kind, e := next(); kind != wire.EventGranted || e.Name != "x/3" {
		t.Errorf("told %s %+v", kind, e)
	}
	if kind, e := next(); kind != wire.EventEnded || e.Name != "x/3" {
		t.Errorf("told %s %+v", kind, e)
	}
	b.post(wire.Acquire, `{"name":"x/2","owner":"owner-two","ttl_ms":60000}`).want(t, 200, "")
	if kind, e := next(); kind != wire.EventGranted || e.Name != "x/2" {
		t.Errorf("told %s %+v", kind, e)
	}
	a.post(wire.Evict, `{"name":"x/2","owner":%q,"reason":"why"}`, "owner-two").want(t, 200, "")
	if kind, e := next(); kind != wire.EventEvicted || e.Reason != "why" {
		t.Errorf("told %s %+v", kind, e)
	}
}

// listen returns a function that reads one event after another.
func (s *service) listen(prefix string) func() (string, wire.Event) {
	s.t.Helper()
	next, leave := s.hear(prefix)
	s.t.Cleanup(leave)
	return next
}

// hear is listen, with a function that ends the stream.
func (s *service) hear(prefix string) (next func() (string, wire.Event), leave func()) {
	s.t.Helper()
	return s.hearAs("", "prefix="+prefix)
}

// hearAs is hear with a bearer token and a query.
func (s *service) hearAs(token, query string) (next func() (string, wire.Event), leave func()) {
	s.t.Helper()
	req, cancel := newRequest(s.t, s.url+wire.Events+"?"+query, "")
	req.Method = http.MethodGet
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	next = func() (kind string, e wire.Event) {
		for lines.Scan() {
			if k, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				kind = k
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					s.t.Error(err)
				}
				return kind, e
			}
		}
		s.t.Fatal("the stream has ended")
		return "", e
	}
	if kind, _ := next(); kind != wire.EventOpen {
		s.t.Fatalf("the stream begins with %q", kind)
	}
	return next, func() { cancel(); resp.Body.Close() }
}

func TestRefusesWhatItCannotServe(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{wire.Acquire, `{"name":"n","ttl":1}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n"}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":-1}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1}`, 501, "unsupported"},
		{wire.Acquire, `{"name":"n","ttl_ms":99999999999999999}`, 400, "invalid"},
		{wire.Acquire, `{"name":"","ttl_ms":1000}`, 400, "invalid_name"},
		{wire.Acquire, `{"name":"a\u0007","ttl_ms":1000}`, 400, "invalid_name"},
		{wire.Acquire, `{"name":"a\ud800","ttl_ms":1000}`, 400, "invalid"},
		{wire.Acquire, `{"name":"a\udc00\ud800","ttl_ms":1000}`, 400, "invalid"},
		{wire.Acquire, "{\"name\":\"a\xff\",\"ttl_ms\":1000}", 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1000} {}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1000,"mode":"mine"}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1000,"limit":2}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1000,"queue":true}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1000,"owner":"a b"}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1000,"owner":"` + strings.Repeat("o", 256) + `"}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1000,"note":"\u0000"}`, 400, "invalid"},
		{wire.Acquire, `{"name":"n","ttl_ms":1000,"note":"` + strings.Repeat("x", 20_000) + `"}`, 413, "limit"},
		{wire.Renew, `{"name":"n","ttl_ms":1000}`, 400, "invalid"},
		{wire.Release, `{"name":"n"}`, 400, "invalid"},
		{wire.Release, `{"name":"n","owner":"o","linger_ms":-1}`, 400, "invalid"},
		{wire.Fence, `{"name":"n","token":"-1"}`, 400, "invalid"},
		{wire.Evict, `{"name":"n","owner":"o","reason":""}`, 410, "lost"},
		{"/v1/nothing", `{}`, 404, "not_found"},
	} {
		if a := s.post(c.path, "%s", c.body); a.status != c.status || a.Code != c.code {
			t.Errorf("%s %.60s: %d %s, want %d %s", c.path, c.body, a.status, a.text, c.status, c.code)
		}
	}
	s.post(wire.Acquire, `{"name":"\ud83d\ude00\\ud800\"","ttl_ms":1000}`).want(t, 200, "")
}

func TestPagesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), &serve.Options{Hosts: []string{"locks.test"}})
	for _, c := range []struct {
		name, value string
		status      int
	}{
		{"", "", 200}, {"Origin", "http://evil.test", 403}, {"Origin", "null", 403}, {"Origin", s.url, 200},
		{"Sec-Fetch-Site", "cross-site", 403}, {"Sec-Fetch-Site", "same-site", 403}, {"Sec-Fetch-Site", "same-origin", 200},
		{"Host", "evil.test", 403}, {"Host", "localhost", 200}, {"Host", "locks.test:80", 200}, {"Content-Type", "text/plain", 415},
	} {
		req, _ := newRequest(t, s.url+wire.Acquire, fmt.Sprintf(`{"name":"n%s%s","ttl_ms":60000}`, c.name, c.value))
		if c.name == "Host" {
			req.Host = c.value
		} else if c.name != "" {
			req.Header.Set(c.name, c.value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("with %s %s: %d, want %d", c.name, c.value, resp.StatusCode, c.status)
		}
	}
}

// newRequest returns a POST that cancel ends.
func newRequest(t *testing.T, url, body string) (*http.Request, func()) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	ctx, cancel := contextOf(t)
	return req.WithContext(ctx), cancel
}

func contextOf(t *testing.T) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // with the race detector, a look at many names is slow
	t.Cleanup(cancel)
	return ctx, cancel
}

func (s *service) get(path string) string {
	s.t.Helper()
	resp, err := http.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// A refusal after a wait describes the holder as of the answer, not as of the last call to the
// engine.
func TestRefusalAfterAWaitTellsTheHolderAsOfTheAnswer(t *testing.T) {
	t.Parallel()
	const wait = 1500 // ms, in which the memory engine is asked once
	s := start(t, memory.NewServer(), nil)
	s.post(wire.Acquire, `{"name":"n","owner":"h","ttl_ms":60000}`).want(t, 200, "")
	time.Sleep(10 * time.Millisecond) // 0 means unknown
	got := s.post(wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"wait_ms":%d}`, wait).want(t, 409, "busy")
	if h := got.Holder; h == nil || h.Held < wait || h.Left > 60000-wait {
		t.Errorf("%s; want it held for %d ms", got.text, wait)
	}
}
