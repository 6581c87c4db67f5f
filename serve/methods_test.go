package serve_test

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// A path that is called with another method answers which methods it has.
func TestOtherMethodsAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	for path, method := range map[string]string{
		wire.Acquire: "POST", wire.Renew: "POST", wire.Release: "POST", wire.Note: "POST", wire.Evict: "POST", wire.Fence: "POST", wire.Rehearse: "POST",
		wire.Reserve: "POST", wire.Remove: "POST", wire.Reset: "POST", wire.History: "GET, HEAD", wire.Overview: "GET, HEAD", wire.Me: "GET, HEAD",
		wire.Show: "GET, HEAD", wire.List: "GET, HEAD", wire.Features: "GET, HEAD", wire.Events: "GET, HEAD", wire.Check: "GET, HEAD",
		"/openapi.json": "GET, HEAD", "/healthz": "GET, HEAD", "/readyz": "GET, HEAD", "/metrics": "GET, HEAD",
	} {
		for _, other := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
			if strings.Contains(method, other) {
				continue
			}
			r, err := http.NewRequest(other, s.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			a, _ := read(resp)
			resp.Body.Close()
			if a.status != 405 || a.Code != wire.CodeMethod || resp.Header.Get("Allow") != method {
				t.Errorf("%s %s: %d %s, Allow %q; want %q", other, path, a.status, a.text, resp.Header.Get("Allow"), method)
			}
		}
	}
}

// A query is checked like a body: a misspelt field is refused.
func TestUnknownQueryFieldsAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	for path, want := range map[string]int{
		"/v1/lock?name=a": 200, "/v1/locks": 200, "/v1/locks?prefix=a": 200, "/v1/features": 200, "/v1/check": 200, "/readyz?x=1": 200,
		"/v1/lock?nam=a": 400, "/v1/lock?name=a&x=": 400, "/v1/lock?name=a&name=a": 400, "/v1/locks?name=a": 400, "/v1/locks?prefix=a&prefix=b": 400,
		"/v1/history?name=a": 200, "/v1/history?prefix=a&kind=granted&since_ms=1&until_ms=0&limit=1": 200, "/v1/overview": 200, "/v1/overview?prefix=a": 200, "/v1/me": 200,
		"/v1/history?name=a&name=b": 400, "/v1/overview?name=a": 400, "/v1/me?x=1": 400,
		"/v1/locks?Prefix=a": 400, "/v1/features?prefix=": 400, "/v1/check?name=a": 400, "/v1/events?name=a": 400, "/v1/locks?prefix=%zz": 400, "/v1/locks?prefix=a;b": 400,
	} {
		resp, err := http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := read(resp)
		resp.Body.Close()
		if a.status != want || want == 400 && a.Code != wire.CodeInvalid {
			t.Errorf("%s: %d %s, want %d", path, a.status, a.text, want)
		}
	}
	s.post(wire.Acquire+"?ttl_ms=60000", `{"name":"n","ttl_ms":60000}`).want(t, 400, "invalid")
}

// A long list is compressed for clients that accept gzip.
func TestListIsCompressed(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	list := func(accept string) (text string, size int, encoding string) {
		r, err := http.NewRequest(http.MethodGet, s.url+wire.List+"?limit=1000", nil)
		if err != nil {
			t.Fatal(err)
		}
		if accept != "" {
			r.Header.Set("Accept-Encoding", accept)
		}
		resp, err := (&http.Transport{DisableCompression: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%v, Vary %q", err, resp.Header.Get("Vary"))
		}
		text, size, encoding = string(body), len(body), resp.Header.Get("Content-Encoding")
		if encoding == "gzip" {
			z, err := gzip.NewReader(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			all, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			text = string(all)
		}
		return text, size, encoding
	}
	if _, _, encoding := list("gzip"); encoding != "" {
		t.Errorf("an empty list is in %s", encoding)
	}
	for i := range 200 {
		s.post(wire.Acquire, `{"name":"orders/%d","owner":"owner-of-%d","ttl_ms":60000,"note":"a host, a pid"}`, i, i).want(t, 200, "")
	}
	_, plain, _ := list("")
	for accept, want := range map[string]string{
		"": "", "identity": "", "br": "", "gzip;q=0": "", "*;q=0": "", "gzip;q=0, *": "", "gzip": "gzip", "deflate, GZIP;q=0.5": "gzip", "br;q=1, *;q=0.1": "gzip",
	} {
		text, size, encoding := list(accept)
		if encoding != want || strings.Count(text, "orders/") != 200 || want != "" && size > plain/2 {
			t.Errorf("Accept-Encoding %q: %d of %d bytes in %q, with %d locks", accept, size, plain, encoding, strings.Count(text, "orders/"))
		}
	}
}

// The answer to a HEAD ends with its headers, even for a stream: the client sends its next call on
// the same connection.
func TestHeadOfEventsEnds(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	answers := bufio.NewReader(conn)
	for _, method := range []string{http.MethodHead, http.MethodGet} {
		path := map[string]string{http.MethodHead: wire.Events, http.MethodGet: "/healthz"}[method]
		fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method, path)
		resp, err := http.ReadResponse(answers, &http.Request{Method: method})
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s %s: %v", method, path, err)
		}
	}
}
