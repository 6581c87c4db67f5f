package serve_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A narrowListener makes the kernel buffer little of what a connection's reader does not read.
type narrowListener struct{ net.Listener }

func (l narrowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return c, err
}

// deaf requests a stream and reads no more than its beginning.
func deaf(t *testing.T, addr string) (isOpen func()) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", wire.Events, addr)
	return func() {
		head := make([]byte, 12)
		if _, err := conn.Read(head); err != nil || !strings.HasSuffix(string(head), "200") {
			t.Fatalf("a stream begins with %q, %v", head, err)
		}
	}
}

// Streams whose readers do not read share their queued events, however much happens, and are
// dropped.
func TestStreamsWithoutAReaderTakeNoMemory(t *testing.T) {
	s, err := serve.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewUnstartedServer(s)
	web.Listener = narrowListener{web.Listener}
	web.Start()
	t.Cleanup(func() { s.Drain(); web.CloseClientConnections(); web.Close(); s.Close() })
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	svc := &service{t, s, web.URL}
	const streams, cycles, most = 300, 500, 96 << 10 // a stream's goroutine and buffers are a third of it
	before := inUse()
	var opening []func()
	for range streams {
		opening = append(opening, deaf(t, web.Listener.Addr().String()))
	}
	for _, isOpen := range opening {
		isOpen()
	}
	open := inUse()
	peak := open
	note := strings.Repeat("x", 4000)
	for i := range cycles { // a listener may be behind by a part of them
		svc.post(wire.Acquire, `{"name":"n","owner":"o%d","ttl_ms":60000,"note":%q}`, i, note).want(t, 200, "")
		svc.post(wire.Release, `{"name":"n","owner":"o%d"}`, i).want(t, 200, "")
		if i%50 == 49 {
			peak = max(peak, inUse())
		}
	}
	each := func(n uint64) int { return (int(n) - int(before)) / streams }
	t.Logf("bytes a stream: %d when open, %d at most", each(open), each(peak))
	if each(peak) > most {
		t.Errorf("a stream takes %d bytes, want at most %d", each(peak), most)
	}
	eventually(t, "those that do not read are dropped", func() bool { return strings.Contains(svc.get("/metrics"), "leasehold_listeners 0\n") })
}

// Streams are limited for each client and for all, separately from calls that wait.
func TestTooManyStreamsAreRefused(t *testing.T) {
	t.Parallel()
	name := func(r *http.Request) (*serve.Client, error) {
		return &serve.Client{Name: r.Header.Get("Authorization"), Rules: []serve.Rule{{Rights: []serve.Right{serve.View, serve.Lock}}}}, nil
	}
	s := start(t, memory.NewServer(), &serve.Options{Client: name, Limits: serve.Limits{Streams: 3, StreamsEach: 2, Waiting: 1}})
	stream := func(client string, status int) func() {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+wire.Events, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", client)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != status || (status == 429) != (resp.Header.Get("Retry-After") != "") {
			t.Fatalf("%s: %s, Retry-After %q; want %d", client, resp.Status, resp.Header.Get("Retry-After"), status)
		}
		if status == 200 {
			if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		return func() { resp.Body.Close() }
	}
	leave := stream("a", 200)
	stream("a", 200)
	stream("a", 429)
	stream("b", 200)
	stream("c", 429)
	leave()
	eventually(t, "a stream has ended", func() bool { return strings.Contains(s.get("/metrics"), "leasehold_listeners 2\n") })
	stream("c", 200)
}

// A streamed records a stream. Streams need deadlines for what they write.
type streamed struct{ *httptest.ResponseRecorder }

func (streamed) SetWriteDeadline(time.Time) error { return nil }

// A stream at an instance that drains still gets the events that are queued for it. So a client can
// tell it from one that never opened.
func TestStreamOfAnInstanceThatDrainsOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, memory.New(), nil)
		s.Drain()
		for range 20 { // of two things that are ready, a stream may choose either
			w := streamed{httptest.NewRecorder()}
			s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, wire.Events, nil))
			if text := w.Body.String(); !strings.Contains(text, "event: open\n") {
				t.Fatalf("the stream has ended after %q", text)
			}
		}
	})
}
