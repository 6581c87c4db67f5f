package described

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// record runs calls against a handler, by HTTP/1.1 or 2, and returns a judge that has judged them.
func record(t *testing.T, two bool, h http.Handler, calls func(client *http.Client, url string)) *Judge {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(!two)
	protocols.SetUnencryptedHTTP2(two)
	web := httptest.NewUnstartedServer(h)
	web.Config.Protocols = &protocols
	web.Start()
	defer web.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := proxy.ListenAt(l, Record(dir), web.Listener.Addr().String())
	client := &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	calls(client, "http://"+b.Addr())
	client.CloseIdleConnections()
	b.Close()
	j := New(t)
	j.Folder(dir)
	return j
}

// call makes a call and reads all of its answer.
func call(t *testing.T, client *http.Client, method, url, body string, header ...string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

const (
	aCall  = `{"name":"n","ttl_ms":1000}`
	aGrant = `{"outcome":"granted","name":"n","owner":"o","token":"9007199254740993","ttl_ms":1000,"left_ms":999,"waited_ms":0}`
)

// A service that answers otherwise than described is seen, and so is a call that it should not
// have served.
func TestWrongAnswersAreSeen(t *testing.T) {
	t.Parallel()
	const grant, json, stream = wire.Acquire, "application/json", "text/event-stream"
	for name, c := range map[string]struct {
		path, body, kind string
		status           int
		answer           string
		right            bool
	}{
		"a grant":               {grant, aCall, json, 200, aGrant, true},
		"a token as a number":   {grant, aCall, json, 200, strings.Replace(aGrant, `"9007199254740993"`, "9007199254740993", 1), false},
		"a field too many":      {grant, aCall, json, 200, strings.Replace(aGrant, `{`, `{"until":1,`, 1), false},
		"a field too few":       {grant, aCall, json, 200, strings.Replace(aGrant, `"owner":"o",`, "", 1), false},
		"a negative length":     {grant, aCall, json, 200, strings.Replace(aGrant, `999`, "-1", 1), false},
		"another status":        {grant, aCall, json, 202, aGrant, false},
		"another outcome":       {grant, aCall, json, 410, aGrant, false},
		"another code":          {grant, aCall, json, 409, `{"outcome":"busy","code":"bsy","error":"e"}`, false},
		"text":                  {grant, aCall, "text/plain", 200, aGrant, false},
		"no JSON":               {grant, aCall, json, 200, "granted", false},
		"a wrong call, served":  {grant, `{"name":"n","ttl":1000}`, json, 200, aGrant, false},
		"a wrong call, refused": {grant, `{"name":"n","ttl":1000}`, json, 400, `{"outcome":"refused","code":"invalid","error":"e"}`, true},
		"a call, not found":     {"/v1/nothing", aCall, json, 404, `{}`, true},
		"an unknown call":       {"/v1/nothing", aCall, json, 200, `{"outcome":"done"}`, false},
		"events":                {wire.Events, "", stream, 200, "event: open\ndata: {}\n\n: still here\n\nevent: granted\ndata: {\"name\":\"n\"}\n\n", true},
		"an event too many":     {wire.Events, "", stream, 200, "event: taken\ndata: {}\n\n", false},
		"a wrong event":         {wire.Events, "", stream, 200, "event: open\ndata: {\"until\":1}\n\n", false},
		"an event without JSON": {wire.Events, "", stream, 200, "event: open\ndata: open\n\n", false},
	} {
		for _, two := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s by HTTP/2 %v", name, two), func(t *testing.T) {
				t.Parallel()
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body) // a call that is answered before it was read may be cut off
					w.Header().Set("Content-Type", c.kind)
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, c.answer) // the judge sees what is missing
				})
				method := http.MethodPost
				if c.body == "" {
					method = http.MethodGet
				}
				j := record(t, two, h, func(client *http.Client, url string) { call(t, client, method, url+c.path, c.body) })
				if (len(j.wrong) == 0) != c.right || len(j.wrong) == 0 && j.judged == 0 && !strings.HasSuffix(name, "not found") {
					t.Errorf("judged %d, and found %v", j.judged, j.wrong)
				}
			})
		}
	}
}

// What was cut off is left out, and what came before is judged all the same.
func TestCutOffIsNotJudged(t *testing.T) {
	t.Parallel()
	for _, two := range []bool{false, true} {
		j := record(t, two, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == wire.Renew {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, aGrant) // the judge sees what is missing
		}), func(client *http.Client, url string) {
			call(t, client, http.MethodPost, url+wire.Acquire, aCall)
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url+wire.Renew, bytes.NewReader([]byte("{}")))
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
				t.Errorf("answered %s", resp.Status)
			}
		})
		if j.judged != 1 || len(j.wrong) > 0 {
			t.Errorf("judged %d, and found %v", j.judged, j.wrong)
		}
	}
}
