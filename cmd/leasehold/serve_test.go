//go:build linux

package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

var servingAt = regexp.MustCompile(`serving \S+ at (http://\S+)`)

// serve starts "leasehold serve" on a port that is free, and returns its address.
func (c *cli) serve(args ...string) (j *job, address string) {
	c.t.Helper()
	j = c.start(append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	eventually(c.t, "address of the service", func() bool {
		if at := servingAt.FindStringSubmatch(j.errors()); at != nil {
			address = at[1]
		}
		return address != ""
	})
	return j, address
}

// post makes a call to the service and returns its status.
func (c *cli) post(address, path, body string, header ...string) int {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodPost, address+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

const job30s = `{"name":"job","ttl_ms":30000}`

// What is written wrong is told before anything listens.
func TestServeRefusesFlags(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	broken := filepath.Join(c.dir, "broken.json")
	if err := os.WriteFile(broken, []byte(`{"clients": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, says := range map[string]string{
		"x":                                  "unexpected argument",
		"--listen 7400":                      "HOST:PORT",
		"--listen 0.0.0.0:0":                 "--tls-cert, --tls-key and --access, or --insecure",
		"--listen :0":                        "--insecure",
		"--tls-cert a.pem":                   "go together",
		"--tls-key a.pem":                    "go together",
		"--client-ca a.pem":                  "go together",
		"--tls-cert no.pem --tls-key no.pem": "no.pem",
		"--access missing.json":              "missing.json",
		"--access " + broken:                 "broken.json",
		"--proxy-user X-User --proxy-from 10.0.0.1": "--access",
		"--max-waiting x":                                     "whole number",
		"--max-waiting -1":                                    "",
		"--max-waiting-each -1":                               "",
		"--max-streams -1":                                    "",
		"--max-streams-each -1":                               "",
		"--rate -1":                                           "",
		"--listen 127.0.0.1:0 --access ":                      "--access is empty",
		"--store sqlite: --require-shared":                    "other machines share",
		"--store memory: --listen nosuch:99999":               "--insecure",
		"--webhook ftp://host":                                "webhook",
		"--webhook-secret-file x":                             "needs --webhook",
		"--webhook http://host --webhook-secret-file missing": "missing",
		"--webhook http://host --webhook-wait 0":              "positive",
		"--webhook http://host --webhook-wait x":              "90s",
	} {
		contains(t, c.want(exitUsage, append([]string{"serve"}, strings.Split(line, " ")...)...).stderr, says)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	contains(t, c.want(exitInternal, "serve", "--listen", taken.Addr().String()).stderr, "address already in use")
	contains(t, c.want(exitInternal, "serve", "--audit", "missing/log").stderr, "audit log")
	c.store = "redis://" + nobody
	contains(t, c.want(exitUnavailable, "serve").stderr, "refused")
}

func TestServe(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = "memory:"
	sh := *c
	j, address := sh.serve("--audit", "audit.log", "--host", "locks.test")
	if code := c.post(address, "/v1/acquire", job30s); code != http.StatusOK {
		t.Fatalf("acquire: %d", code)
	}
	eventually(t, "line in the audit log", func() bool { // which is written beside the answer
		line := c.file("audit.log")
		return strings.Contains(line, `"job"`) && strings.Contains(line, "acquire")
	})
	if code := c.post(address, "/v1/acquire", job30s, "Host", "locks.test"); code != http.StatusConflict {
		t.Errorf("a second acquire, by a name of --host: %d", code)
	}
	if code := c.post(address, "/v1/acquire", job30s, "Host", "other.test"); code == http.StatusOK || code == http.StatusConflict {
		t.Errorf("by a name that nobody allows: %d", code)
	}
	c.store = address
	contains(t, c.want(0, "ls").stdout, "job")
	examined := c.call("doctor")
	contains(t, examined.stdout, "ok  rights      not tried")
	if examined.code != 0 {
		t.Errorf("doctor: exit code %d: %s", examined.code, examined.stdout)
	}
	j.signal(syscall.SIGTERM)
	if code := j.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
}

// Who is known by --access may what it says, and calls beyond --rate are put off.
func TestServeLimits(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	sum := sha256.Sum256([]byte(canary))
	access := fmt.Sprintf(`{"clients": [{"name": "ci", "tokens": [%q], "rules": [{"prefix": "ci/", "rights": ["lock"]}]}]}`, hex.EncodeToString(sum[:]))
	if err := os.WriteFile(filepath.Join(c.dir, "access.json"), []byte(access), 0o600); err != nil {
		t.Fatal(err)
	}
	j, address := c.serve("--access", "access.json", "--rate", "0.01")
	mine := []string{"Authorization", "Bearer " + canary}
	if code := c.post(address, "/v1/acquire", job30s); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d", code)
	}
	codes := map[int]bool{}
	for i := range 5 {
		codes[c.post(address, "/v1/acquire", fmt.Sprintf(`{"name":"ci/%d","ttl_ms":30000}`, i), mine...)] = true
	}
	if !codes[http.StatusOK] || !codes[http.StatusTooManyRequests] {
		t.Errorf("five calls at once: %v", codes)
	}
	if strings.Contains(j.errors(), canary) {
		t.Errorf("it tells the token: %s", j.errors())
	}
}

// A webhook gets notices as the schema says, signed by the secret of the file. No output has its address.
func TestServeTellsAWebhook(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = "memory:"
	type notice struct{ body, id, sent, signature string }
	notices := make(chan notice, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		h := r.Header
		notices <- notice{string(body), h.Get("webhook-id"), h.Get("webhook-timestamp"), h.Get("webhook-signature")}
		w.WriteHeader(http.StatusServiceUnavailable) // which is said
	}))
	defer hook.Close()
	const secret = "a secret of the webhook"
	if err := os.WriteFile(filepath.Join(c.dir, "secret"), []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := *c
	j, address := sh.serve("--webhook", hook.URL+"/confidential", "--webhook-secret-file", "secret", "--webhook-wait", "1ms")
	c.post(address, "/v1/acquire", `{"name":"job","owner":"holds","ttl_ms":30000}`)
	c.post(address, "/v1/acquire", `{"name":"job","owner":"waits","ttl_ms":30000,"queue":true}`)
	c.post(address, "/v1/evict", `{"name":"job","owner":"holds","reason":"test"}`)
	types := make(map[string]bool)
	for len(types) < 2 {
		n := <-notices
		c.obeys("webhook", n.body, false)
		var what struct{ Type string }
		if err := json.Unmarshal([]byte(n.body), &what); err != nil {
			t.Fatal(err)
		}
		types[what.Type] = true
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(n.id + "." + n.sent + "." + n.body))
		if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); n.signature != want {
			t.Errorf("signed %q, want %q", n.signature, want)
		}
	}
	if !types["lease.evicted"] || !types["wait.long"] {
		t.Errorf("told %v", types)
	}
	eventually(t, "line of a webhook that fails", func() bool { return strings.Contains(j.errors(), "webhook") })
	if strings.Contains(j.errors(), "confidential") || strings.Contains(j.errors(), secret) {
		t.Error(j.errors())
	}
}

// Errors in the environment variables of OpenTelemetry are reported before the service listens. A
// collector that does not answer delays nothing.
func TestServeWithTraces(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = "memory:"
	c.env = append(c.env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+nobody, "OTEL_BSP_SCHEDULE_DELAY=10")
	j, address := c.serve()
	if code := c.post(address, "/v1/acquire", job30s); code != http.StatusOK {
		t.Errorf("acquire: %d", code)
	}
	eventually(t, "line of a collector that is gone", func() bool { return strings.Contains(j.errors(), "traces are not sent") })
}
