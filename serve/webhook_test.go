package serve

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// A post is one request that a receiver got.
type post struct {
	id, sent, signature string
	body                []byte
	wire.Notice
}

// A receiver receives a webhook's notices.
type receiver struct {
	t       *testing.T
	server  *httptest.Server
	address string

	mu     sync.Mutex
	answer func(w http.ResponseWriter, r *http.Request) // guarded by mu
	posts  []post                                       // guarded by mu
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{t: t}
	r.begin("127.0.0.1:0")
	t.Cleanup(func() { r.server.CloseClientConnections(); r.server.Close() })
	return r
}

// begin listens at an address.
func (r *receiver) begin(address string) {
	r.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.address = l.Addr().String()
	r.server = httptest.NewUnstartedServer(r)
	r.server.Listener.Close()
	r.server.Listener = l
	r.server.Start()
}

// does answers all requests from now on by answer; nil: with 200.
func (r *receiver) does(answer func(w http.ResponseWriter, r *http.Request)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	h := req.Header
	p := post{id: h.Get("webhook-id"), sent: h.Get("webhook-timestamp"), signature: h.Get("webhook-signature"), body: body}
	if err := json.Unmarshal(body, &p.Notice); err != nil || p.id == "" || h.Get("Content-Type") != "application/json" {
		r.t.Errorf("a notice that cannot be read: %v %s %v", err, body, h)
	}
	if req.URL.Path != "/hook" {
		r.t.Errorf("a notice came to %s", req.URL.Path)
	}
	r.mu.Lock()
	r.posts = append(r.posts, p)
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		answer(w, req)
	}
}

// got returns the posts, once there are at least n.
func (r *receiver) got(n int) (posts []post) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		posts = append([]post(nil), r.posts...)
		r.mu.Unlock()
		if len(posts) >= n {
			return posts
		}
		if time.Now().After(end) {
			r.t.Fatalf("%d notices came, want %d", len(posts), n)
		}
	}
}

// A hooked is a service with a webhook to a receiver.
type hooked struct {
	t *testing.T
	*Server
	*receiver
	url string
}

func newHooked(t *testing.T, server *memory.Server, hook *Webhook, r *receiver) *hooked {
	t.Helper()
	hook.URL = r.server.URL + "/hook?key=confidential"
	d := server.Connect()
	s, err := New(d, &Options{Webhook: hook, History: HistoryOptions{Every: 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	t.Cleanup(func() { s.Drain(); web.Close(); s.Close(); d.Close() })
	return &hooked{t, s, r, web.URL}
}

// call makes a call and checks its outcome.
func (h *hooked) call(path, outcome, format string, args ...any) (a wire.Answer) {
	h.t.Helper()
	resp, err := http.Post(h.url+path, "application/json", strings.NewReader(fmt.Sprintf(format, args...)))
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || a.Outcome != outcome {
		h.t.Fatalf("%s %s: %+v: %v", path, fmt.Sprintf(format, args...), a, err)
	}
	return a
}

// evictOne acquires a lease and evicts it.
func (h *hooked) evictOne(name string) {
	h.t.Helper()
	h.call(wire.Acquire, wire.Granted, `{"name":%q,"owner":"owner-of-it","ttl_ms":60000,"note":"nightly"}`, name)
	h.call(wire.Evict, wire.Done, `{"name":%q,"owner":"owner-of-it","reason":"it hangs"}`, name)
}

// metric returns the value of a series.
func (h *hooked) metric(series string) (value int) {
	h.t.Helper()
	w := httptest.NewRecorder()
	h.Server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			value, err := strconv.Atoi(strings.TrimSpace(rest))
			if err != nil {
				h.t.Fatal(err)
			}
			return value
		}
	}
	h.t.Fatalf("there is no %s in %s", series, w.Body)
	return 0
}

func (h *hooked) notices(outcome string) int {
	h.t.Helper()
	return h.metric(fmt.Sprintf("leasehold_webhook_notices_total{outcome=%q}", outcome))
}

// eventual polls.
func eventual(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}

// The notice of an eviction says who evicted, and the holder's next call causes no other notice. A
// lost lease and a long wait cause one notice each.
func TestWebhookTells(t *testing.T) {
	t.Parallel()
	h := newHooked(t, memory.NewServer(), &Webhook{LongWait: time.Millisecond}, newReceiver(t))
	h.evictOne("a")
	h.call(wire.Renew, wire.Lost, `{"name":"a","owner":"owner-of-it","ttl_ms":60000}`)
	evicted := h.got(1)[0]
	want := wire.NoticeData{
		Instance: h.webhook.instance, Engine: "memory", Name: "a", Owner: driver.ShortOwner("owner-of-it"), Handle: wire.Handle("owner-of-it"),
		Token: evicted.Data.Token, Mode: wire.Exclusive, Note: "nightly", Reason: "it hangs", By: "127.0.0.1", Held: evicted.Data.Held,
	}
	if d := evicted.Data; evicted.Type != wire.NoticeEvicted || d.Token == "" || fmt.Sprint(d) != fmt.Sprint(want) {
		t.Errorf("told %s %+v, want %+v", evicted.Type, d, want)
	}

	h.call(wire.Acquire, wire.Granted, `{"name":"b","owner":"holds","ttl_ms":60000,"note":"slow"}`)
	eventual(t, "a notice of a long wait", func() bool { // the place ends if nobody asks for it, before it is noticed on a busy machine
		h.call(wire.Acquire, wire.Busy, `{"name":"b","owner":"waits","ttl_ms":60000,"queue":true}`)
		return len(h.got(1)) > 1
	})
	long := h.got(2)[1]
	if d := long.Data; long.Type != wire.NoticeWait || d.Name != "b" || d.Handle != wire.Handle("waits") || d.Waited == 0 ||
		len(d.Holders) != 1 || d.Holders[0].Handle != wire.Handle("holds") || d.Holders[0].Note != "slow" {
		t.Errorf("told %s %+v", long.Type, d)
	}
	h.call(wire.Acquire, wire.Busy, `{"name":"b","owner":"waits","ttl_ms":60000,"queue":true}`)
	if again := h.claims.longWaits(0, time.Now()); len(again) > 0 {
		t.Errorf("the wait is told again: %+v", again)
	}

	const expired = `leasehold_service_lost_total{cause="expired"}`
	pairs := 0
	for ttl := 500; h.metric(expired) == 0; ttl *= 2 { // a busy machine may not look in the second half of the TTL
		pairs++
		h.call(wire.Acquire, wire.Granted, `{"name":"c","owner":"dies","ttl_ms":%d,"details":{"host":"web-7","link":"https://ci/7"}}`, ttl) // nobody asks for it again
		h.call(wire.Acquire, wire.Granted, `{"name":"c2","owner":"by-design","ttl_ms":%d,"details":{"kind":"manual"}}`, ttl)
		eventual(t, "the end of both", func() bool {
			one, _ := h.hub.asKnown(lease{"c", wire.Handle("dies")})
			two, _ := h.hub.asKnown(lease{"c2", wire.Handle("by-design")})
			return one == nil && two == nil
		})
	}
	lost := h.got(3)[2]
	if lost.Type != wire.NoticeLost || lost.Data.Name != "c" || lost.Data.Cause != causeExpired || lost.Data.Held < 500 || lost.Data.Silent < 500 ||
		lost.Data.Host != "web-7" || lost.Data.Link != "https://ci/7" {
		t.Errorf("told %s %+v", lost.Type, lost.Data)
	}
	h.evictOne("d") // comes last
	eventual(t, "four deliveries", func() bool { return h.notices(noticeDelivered) == 4 })
	if all := h.got(4); len(all) != 4 || all[3].Data.Name != "d" {
		t.Errorf("told %d notices", len(all))
	}
	for series, want := range map[string]int{
		expired: 1, `leasehold_service_lost_total{cause="evicted"}`: 0,
		`leasehold_service_lost_total{cause="unexplained"}`: 0, "leasehold_service_evictions_total": 2,
		`leasehold_service_grants_total{mode="exclusive"}`: 3 + 2*pairs, `leasehold_service_grants_total{mode="shared"}`: 0,
	} {
		if got := h.metric(series); got != want {
			t.Errorf("%s is %d, want %d", series, got, want)
		}
	}
}

// signed reports whether a post has the signature of a secret, computed as receivers do.
func signed(p post, secret []byte) bool {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(p.id + "." + p.sent + "." + string(p.body)))
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for one := range strings.SplitSeq(p.signature, " ") {
		if hmac.Equal([]byte(one), []byte(want)) {
			return true
		}
	}
	return false
}

// Each secret in the file signs. A secret that replaces another signs from the next notice on.
func TestWebhookSecretsAreReadAgain(t *testing.T) {
	t.Parallel()
	first, second := []byte("the first secret, in plain text"), bytes.Repeat([]byte{7, 200}, 20)
	coded := "whsec_" + base64.StdEncoding.EncodeToString(second)
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, says := range map[string]string{"": "empty", "short": "16 bytes", "whsec_?": "base64"} {
		write(text)
		if _, err := ReadSecrets(file, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	write(string(first) + "\n")
	secrets, err := ReadSecrets(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := newHooked(t, memory.NewServer(), &Webhook{Secrets: secrets}, newReceiver(t))
	h.evictOne("a")
	if p := h.got(1)[0]; !signed(p, first) || signed(p, second) {
		t.Errorf("the signature %q of %s", p.signature, p.body)
	} else if sent, err := strconv.ParseInt(p.sent, 10, 64); err != nil || time.Since(time.Unix(sent, 0)).Abs() > time.Minute {
		t.Errorf("sent at %q: %v", p.sent, err)
	}
	write(string(first) + "\n" + coded + "\n")
	eventual(t, "reading of the secrets", func() bool { return len(secrets()) == 2 })
	h.evictOne("b")
	if p := h.got(2)[1]; !signed(p, first) || !signed(p, second) {
		t.Errorf("the signatures %q", p.signature)
	}
	write("half")
	h.evictOne("c")
	if p := h.got(3)[2]; !signed(p, second) {
		t.Errorf("after a change that cannot be used: the signatures %q", p.signature)
	}
}

// A receiver hangs, fails, redirects and is gone. When it is back it gets the notice, with the same
// ID and body each time. No call waits for it.
func TestWebhookTriesAgain(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	h := newHooked(t, memory.NewServer(), &Webhook{}, r)
	h.webhook.client.Timeout = 500 * time.Millisecond
	hangs := make(chan struct{})
	t.Cleanup(func() { close(hangs) })
	r.does(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-hangs:
		case <-req.Context().Done():
		}
	})
	h.evictOne("a")
	r.got(1)
	r.does(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	failed := len(r.got(2))
	r.does(func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, "/elsewhere", http.StatusTemporaryRedirect)
	})
	r.got(failed + 1)
	r.server.CloseClientConnections()
	r.server.Close()
	h.evictOne("b") // while the receiver is gone
	if n := h.notices(noticeDelivered); n != 0 {
		t.Errorf("%d notices are delivered that nobody took", n)
	}
	r.does(nil)
	r.begin(r.address)
	eventual(t, "two deliveries", func() bool { return h.notices(noticeDelivered) == 2 })
	bodies := make(map[string]string)
	for _, p := range r.got(1) {
		if was, ok := bodies[p.id]; ok && was != string(p.body) {
			t.Errorf("%s was %s and is %s", p.id, was, p.body)
		}
		bodies[p.id] = string(p.body)
	}
	if len(bodies) != 2 {
		t.Errorf("two notices came as %d: %v", len(bodies), bodies)
	}
	if n := h.notices(noticeDropped) + h.notices(noticeFailed); n != 0 {
		t.Errorf("%d notices are lost", n)
	}
}

// A stalledLog hangs in log messages about webhooks.
type stalledLog struct {
	slog.Handler
	came chan struct{} // room for one
	ends chan struct{}
}

func (l *stalledLog) Handle(_ context.Context, record slog.Record) error {
	if strings.Contains(record.Message, "webhook") {
		select {
		case l.came <- struct{}{}:
		default:
		}
		<-l.ends
	}
	return nil
}

// A stalled log delays neither notices nor the calls that cause them, which may hold mutexes of the
// service.
func TestWebhookWaitsForNoLog(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.does(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	d := memory.New()
	log := &stalledLog{slog.NewTextHandler(io.Discard, nil), make(chan struct{}, 1), make(chan struct{})}
	s, err := New(d, &Options{Webhook: &Webhook{URL: r.server.URL + "/hook"}, Log: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); d.Close() })
	t.Cleanup(func() { close(log.ends) }) // before the service ends
	s.webhook.tell(wire.NoticeEvicted, time.Time{}, wire.NoticeData{Name: "a"})
	<-log.came
	r.does(nil)
	told := make(chan struct{})
	go func() {
		defer close(told)
		s.webhook.tell(wire.NoticeEvicted, time.Time{}, wire.NoticeData{Name: "b"})
	}()
	select {
	case <-told:
	case <-time.After(10 * time.Second):
		t.Fatal("the log holds up a notice")
	}
	r.got(3) // the first one again, and the second
}

// A receiver that hangs delays no call. Notices without room are dropped and counted. Notices that
// wait when the instance stops are lost.
func TestWebhookQueueIsBounded(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	h := newHooked(t, memory.NewServer(), &Webhook{}, r)
	hangs := make(chan struct{})
	r.does(func(http.ResponseWriter, *http.Request) { <-hangs })
	const more = 20
	for i := range mostNotices + more {
		h.webhook.tell(wire.NoticeEvicted, time.Time{}, wire.NoticeData{Name: fmt.Sprint("crowd/", i)})
	}
	if n := h.notices(noticeDropped); n != more {
		t.Errorf("%d notices are dropped, want %d", n, more)
	}
	h.evictOne("a") // there is no room for it, and nothing waits
	if n := h.notices(noticeDropped); n != more+1 {
		t.Errorf("%d notices are dropped, want %d", n, more+1)
	}
	began := time.Now()
	h.Server.Close()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the end took %v", took)
	}
	close(hangs)
	if n := h.notices(noticeFailed); n != mostNotices {
		t.Errorf("%d notices are lost, want %d", n, mostNotices)
	}
}

// A notice from just before the end is delivered.
func TestWebhookSaysFarewell(t *testing.T) {
	t.Parallel()
	h := newHooked(t, memory.NewServer(), &Webhook{}, newReceiver(t))
	for i := range 20 {
		h.webhook.tell(wire.NoticeEvicted, time.Time{}, wire.NoticeData{Name: fmt.Sprint(i)})
	}
	h.Server.Close()
	if n := h.notices(noticeDelivered); n != 20 {
		t.Errorf("%d notices are delivered, want 20", n)
	}
}

// Notices of two instances about the same eviction have the same ID.
func TestNoticesOfOneLeaseHaveOneID(t *testing.T) {
	t.Parallel()
	server, r := memory.NewServer(), newReceiver(t)
	h, other := newHooked(t, server, &Webhook{}, r), newHooked(t, server, &Webhook{}, r)
	h.call(wire.Acquire, wire.Granted, `{"name":"a","owner":"owner","ttl_ms":60000}`)
	other.call(wire.Evict, wire.Done, `{"name":"a","owner":"owner","reason":"x"}`)
	h.call(wire.Renew, wire.Lost, `{"name":"a","owner":"owner","ttl_ms":60000}`)
	if all := r.got(2); all[0].id != all[1].id || all[0].Data.Reason != "x" || all[1].Data.Reason != "x" {
		t.Errorf("told %+v", all)
	}
	lease := wire.NoticeData{Name: "a", Handle: "b", Token: "7", Reason: "why"}
	if evicted, lost := noticeID(wire.NoticeEvicted, lease), noticeID(wire.NoticeLost, lease); evicted != lost {
		t.Errorf("one instance knows that it was evicted, and another that it is lost: %s and %s", evicted, lost)
	}
	if first, next := noticeID(wire.NoticeWait, lease), noticeID(wire.NoticeWait, lease); first == next {
		t.Errorf("two waits of one owner are both %s", first)
	}
}

// The URLs of webhooks contain keys.
func TestWebhookIsDiscreet(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "ftp://host/confidential", "http://", "confidential", "http://[confidential"} {
		_, err := New(memory.New(), &Options{Webhook: &Webhook{URL: address}})
		if err == nil || strings.Contains(err.Error(), "confidential") {
			t.Errorf("%q: %v", address, err)
		}
	}
	hook := Webhook{URL: "http://host/confidential"}
	if text := fmt.Sprintf("%v %+v %#v", hook, &hook, hook); strings.Contains(text, "confidential") {
		t.Error(text)
	}
	w := &webhook{Webhook: Webhook{URL: "http://127.0.0.1:1/confidential"}, client: http.DefaultClient}
	if err := w.post(t.Context(), &delivery{}); err == nil || strings.Contains(err.Error(), "confidential") {
		t.Errorf("%v", err)
	}
}

// A trip is a link to a receiver of notices.
type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The time of a notice is when its lease ended, although a look has found that later.
func TestNoticeSaysWhenItHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(memory.New(), &Options{Webhook: &Webhook{URL: "http://receiver/hook"}, History: HistoryOptions{Every: 10 * time.Second, Sole: true}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		bodies := make(chan []byte, 10)
		s.webhook.client.Transport = trip(func(r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			bodies <- body
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})
		time.Sleep(time.Second) // until the first look is over
		r, w := httptest.NewRequest(http.MethodPost, wire.Acquire, strings.NewReader(`{"name":"n","owner":"o","ttl_ms":3000,"details":{"host":"h"}}`)), httptest.NewRecorder()
		r.Header.Set("Content-Type", "application/json")
		if s.ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Fatal(w.Body)
		}
		ends := time.Now().Add(3 * time.Second)
		var n wire.Notice
		if err := json.Unmarshal(<-bodies, &n); err != nil {
			t.Fatal(err)
		}
		if at, err := time.Parse(time.RFC3339Nano, n.Time); err != nil || at.Sub(ends).Abs() > time.Second || time.Since(ends) < 5*time.Second {
			t.Errorf("%s at %s, %v: it ended at %v, and was found %v later", n.Type, n.Time, err, ends, time.Since(ends))
		}
	})
}

// Closing a Server waits only some seconds for secrets that cannot be read.
func TestCloseLeavesAWebhookThatHangs(t *testing.T) {
	t.Parallel()
	hangs, reads := make(chan struct{}), make(chan struct{}, 10)
	defer close(hangs)
	s, err := New(memory.New(), &Options{Webhook: &Webhook{URL: "http://127.0.0.1:1/hook", Secrets: func() [][]byte {
		reads <- struct{}{}
		<-hangs
		return nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	s.webhook.tell(wire.NoticeEvicted, time.Time{}, wire.NoticeData{Name: "a"})
	<-reads
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("Close waits for the secrets")
	}
}
