package serve_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func accessFile(t *testing.T, path, token string) {
	t.Helper()
	text := fmt.Sprintf(`{"clients":[
		{"name":"ci","tokens":[%q],"rules":[{"prefix":"ci/","rights":["lock"]},{"prefix":"ci/public/","rights":["view"]}]},
		{"name":"operator","tokens":[%q],"rules":[{"prefix":"","rights":["view","evict"]}]}]}`, hash(token), hash("op"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// accessOf returns the rights of accessFile, with "first" as the token of ci.
func accessOf(t *testing.T) *serve.Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "access")
	accessFile(t, path, "first")
	access, err := serve.ReadAccess(path, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	return access
}

// as makes a call with a bearer token.
func (s *service) as(token, method, path, body string) answer {
	s.t.Helper()
	req, _ := newRequest(s.t, s.url+path, body)
	req.Method = method
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	a, err := read(resp)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// lines is an audit log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestRightsGoByPrefix(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access")
	accessFile(t, path, "first")
	access, err := serve.ReadAccess(path, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	var log lines
	s := start(t, memory.NewServer(), &serve.Options{Client: access.Client, Audit: &log})
	call := func(token, path, format string, args ...any) answer {
		t.Helper()
		return s.as(token, http.MethodPost, path, fmt.Sprintf(format, args...))
	}
	const owner, nasty = "an-owner-that-nobody-may-see", `ci/\"<script>\u2028`
	call("", wire.Acquire, `{"name":"ci/a","ttl_ms":60000}`).want(t, 401, "unauthenticated")
	call("nobody", wire.Acquire, `{"name":"ci/a","ttl_ms":60000}`).want(t, 401, "wrong_token")
	call("first", wire.Acquire, `{"name":"other","ttl_ms":60000}`).want(t, 403, "denied")
	call("first", wire.Acquire, `{"name":"ci/a","owner":%q,"ttl_ms":60000,"note":"secret"}`, owner).want(t, 200, "")
	call("first", wire.Acquire, `{"name":"`+nasty+`","ttl_ms":60000}`).want(t, 200, "")
	if busy := call("first", wire.Acquire, `{"name":"ci/a","ttl_ms":60000}`).want(t, 409, "busy"); busy.Holder != nil {
		t.Errorf("who may not view is told of the holder: %s", busy.text)
	}
	s.as("first", http.MethodGet, "/v1/lock?name=ci/a", "").want(t, 403, "denied")
	if list := s.as("first", http.MethodGet, "/v1/locks", ""); strings.Contains(list.text, "ci/a") || list.status != 200 {
		t.Errorf("listed to who may not view: %s", list.text)
	}
	if list := s.as("operator-unknown", http.MethodGet, "/v1/locks", ""); list.status != 401 {
		t.Errorf("listed to nobody: %s", list.text)
	}
	if list := s.as("op", http.MethodGet, "/v1/locks", ""); !strings.Contains(list.text, "ci/a") || strings.Contains(list.text, owner) {
		t.Errorf("listed to the operator: %s", list.text)
	}
	if me := s.as("op", http.MethodGet, wire.Me, ""); !strings.Contains(me.text, `"client":"operator","by":"token","rights":[{"prefix":""`) {
		t.Errorf("the operator is told that it is %s", me.text)
	}
	call("first", wire.Evict, `{"name":"ci/a","owner":%q,"reason":"x"}`, owner).want(t, 403, "denied")
	call("first", wire.Fence, `{"name":"ci/a","token":"1"}`).want(t, 403, "denied")
	call("first", wire.Fence, `{"name":"ci/a","owner":%q,"token":"1"}`, owner).want(t, 403, "denied")
	call("op", wire.Renew, `{"name":"ci/a","owner":%q,"ttl_ms":1000}`, owner).want(t, 403, "denied")
	call("op", wire.Evict, `{"name":"ci/a","owner":%q,"reason":"a\nb"}`, owner).want(t, 200, "")

	// Another token works without a restart. After that, a file that cannot be read changes
	// nothing.
	accessFile(t, path, "second one")
	eventually(t, "the file is read again", func() bool {
		return s.as("second one", http.MethodGet, wire.Features, "").status == 200
	})
	s.as("first", http.MethodGet, wire.Features, "").want(t, 401, "wrong_token")
	if err := os.WriteFile(path, []byte(`{"clients":`), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // longer than until the next reading
	if a := s.as("second one", http.MethodGet, wire.Features, ""); a.status != 200 {
		t.Errorf("after a slip in the file: %s", a.text)
	}
	checkAudit(t, log.String(), owner)
}

// checkAudit checks the lines that TestRightsGoByPrefix has left.
func checkAudit(t *testing.T, text, owner string) {
	t.Helper()
	if strings.Contains(text, owner) {
		t.Errorf("the audit log has an owner whole:\n%s", text)
	}
	outcomes := map[string]int{}
	for line := range strings.Lines(text) {
		var r struct{ Client, Call, Name, Token, Outcome, Code, Reason string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		outcomes[r.Client+" "+r.Call+" "+r.Outcome+" "+r.Code]++
		if r.Outcome == "granted" && len(r.Token) < 17 || r.Call == "evict" && r.Code == "" && r.Reason != "a\nb" {
			t.Errorf("recorded: %s", line)
		}
	}
	for what, times := range map[string]int{" acquire refused unauthenticated": 1, " acquire refused wrong_token": 1, "ci acquire refused denied": 1, "ci acquire granted ": 2, "ci acquire busy busy": 1, "operator evict done ": 1} {
		if outcomes[what] != times {
			t.Errorf("%q is recorded %d times, want %d:\n%s", what, outcomes[what], times, text)
		}
	}
}

func TestBadAccessFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access")
	for _, text := range []string{
		``, `[]`, `{"client":[]}`, `{"clients":[{"tokens":[]}]}`, `{"clients":[{"name":"a","tokens":["plain text"]}]}`,
		`{"clients":[{"name":"a","rules":[{"prefix":"","rights":["all"]}]}]}`,
		`{"clients":[{"name":"a","rules":[{"rights":["lock"]}]}]}`, `{"clients":[{"name":"a","rules":[{"prefix":null,"rights":["lock"]}]}]}`,
		`{"clients":[{"name":"a","certificates":["x"]},{"name":"b","certificates":["x"]}]}`,
		fmt.Sprintf(`{"clients":[{"name":"a","tokens":[%q]},{"name":"b","tokens":[%[1]q]}]}`, hash("x")),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := serve.ReadAccess(path, nil); err == nil || strings.Contains(err.Error(), "plain text") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := serve.ReadAccess(path+"x", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// A file may be replaced by another with the same time and length. It is reread, because its tokens
// differ.
func TestFileOfTheSameTimeIsReadAgain(t *testing.T) {
	t.Parallel()
	path, then := filepath.Join(t.TempDir(), "access"), time.Unix(1, 0)
	write := func(token string) {
		accessFile(t, path+".new", token)
		if err := errors.Join(os.Chtimes(path+".new", then, then), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	access, err := serve.ReadAccess(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, memory.NewServer(), &serve.Options{Client: access.Client})
	s.as("first", http.MethodGet, wire.Features, "").want(t, 200, "")
	write("other")
	eventually(t, "the token is withdrawn", func() bool {
		return s.as("first", http.MethodGet, wire.Features, "").status == 401
	})
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil { // nobody is notified
		t.Fatal(err)
	}
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		s.as("other", http.MethodGet, wire.Features, "").want(t, 200, "")
	}
}

// A client that is no longer known gets no more events, although it was known when its stream
// began.
func TestStreamEndsWithItsRight(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access")
	accessFile(t, path, "first")
	access, err := serve.ReadAccess(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, memory.NewServer(), &serve.Options{Client: access.Client})
	req, cancel := newRequest(t, s.url+wire.Events, "")
	defer cancel()
	req.Method = http.MethodGet
	req.Header.Set("Authorization", "Bearer first")
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v %v", resp, err)
	}
	defer resp.Body.Close()
	accessFile(t, path, "other")
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, resp.Body)
		ended <- err
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("a stream goes on whose token was withdrawn")
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), &serve.Options{Limits: serve.Limits{Waiting: 2}})
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`).want(t, 200, "")
	for i := range 2 {
		go post(s.url+wire.Acquire, fmt.Sprintf(`{"name":"n","owner":"w%d","ttl_ms":60000,"wait_ms":20000}`, i))
	}
	eventually(t, "both wait", func() bool { return len(s.state("n").Waiters) == 2 })
	s.post(wire.Acquire, `{"name":"n","owner":"w3","ttl_ms":60000,"wait_ms":20000}`).want(t, 429, "limit")
	s.post(wire.Acquire, `{"name":"n","owner":"w3","ttl_ms":60000}`).want(t, 409, "busy")

	s = start(t, memory.NewServer(), &serve.Options{Limits: serve.Limits{Rate: 5}})
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`).want(t, 200, "")
	refused := 0
	for range 100 {
		if a := s.post(wire.Acquire, `{"name":"n","owner":"x","ttl_ms":60000}`); a.status == 429 {
			refused++
		}
		s.post(wire.Renew, `{"name":"n","owner":"o","ttl_ms":60000}`).want(t, 200, "")
	}
	if refused < 50 {
		t.Errorf("%d of 100 calls were refused", refused)
	}
}

// A call that waits does not cost its client the calls that it saves up meanwhile.
func TestWaitingSavesUpCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, memory.New(), &serve.Options{Limits: serve.Limits{Rate: 1}})
		s.want(200, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`)
		for range 3 {
			s.want(409, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"wait_ms":5000}`)
		}
	})
}

// A client is remembered until it has saved up its calls, however low the rate.
func TestARateOfLessThanOneCallAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, memory.New(), &serve.Options{Limits: serve.Limits{Rate: 0.01}})
		s.want(200, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":600000}`)
		time.Sleep(90 * time.Second)
		s.want(429, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000}`)
		time.Sleep(11 * time.Second)
		s.want(409, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000}`)
	})
}

// Known clients share no limit, even from one address. Unknown clients of one address do.
func TestLimitsAreOfAClient(t *testing.T) {
	t.Parallel()
	byToken := func(r *http.Request) (*serve.Client, error) {
		return &serve.Client{Name: r.Header.Get("Authorization"), Rules: []serve.Rule{{Rights: []serve.Right{serve.View, serve.Lock}}}}, nil
	}
	s := start(t, memory.NewServer(), &serve.Options{Client: byToken, Limits: serve.Limits{WaitingEach: 1}})
	s.as("one", http.MethodPost, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`).want(t, 200, "")
	waits := func(owner string) string {
		return fmt.Sprintf(`{"name":"n","owner":%q,"ttl_ms":60000,"wait_ms":20000}`, owner)
	}
	var waiting sync.WaitGroup
	for _, client := range []string{"one", "two"} {
		waiting.Go(func() {
			if a := s.as(client, http.MethodPost, wire.Acquire, waits("of-"+client)); a.status == 429 {
				t.Errorf("the client %s has the limits of another: %s", client, a.text)
			}
		})
	}
	eventually(t, "both wait", func() bool {
		_, queue, _ := strings.Cut(s.as("one", http.MethodGet, "/v1/lock?name=n", "").text, "waiters")
		return strings.Count(queue, "handle") == 2
	})
	s.as("two", http.MethodPost, wire.Acquire, waits("another-of-two")).want(t, 429, "limit")
	s.Drain()
	waiting.Wait()
}

// A client that sends its body slowly is dropped, and the others are served.
func TestSlowBodyIsDropped(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`).want(t, 200, "")
	_ = c.SetReadDeadline(time.Now().Add(40 * time.Second))
	if n, err := c.Read(make([]byte, 12)); err != nil || n == 0 {
		t.Errorf("a slow client is not answered: %v", err)
	}
}
