package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/program"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A served is an instance of the service whose metrics are recorded.
type served struct {
	*recording
	engine *locktest.Faulty
	server *serve.Server
}

// newServed is for a synctest bubble.
func newServed(t *testing.T, opts *serve.Options) *served {
	t.Helper()
	s := &served{recording: newRecording(t), engine: locktest.NewFaulty(memory.NewServer().Connect())}
	var err error
	if s.server, err = serve.New(s.engine, opts); err != nil {
		t.Fatal(err)
	}
	s.target = s.server
	return s
}

// call makes a call, and returns its status.
func (s *served) call(path, format string, args ...any) int {
	ask := httptest.NewRequest(http.MethodPost, path, strings.NewReader(fmt.Sprintf(format, args...)))
	ask.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.target.ServeHTTP(w, ask)
	return w.Code
}

// take takes and releases a lock now and then.
func (s *served) take(d time.Duration) {
	end := time.Now().Add(d)
	for n := 0; time.Now().Before(end); n++ {
		s.call("/v1/acquire", `{"name":"a","owner":"owner%d","ttl_ms":60000}`, n)
		s.call("/v1/release", `{"name":"a","owner":"owner%d"}`, n)
		time.Sleep(5 * time.Second)
	}
}

// lose has a client lose a lease, which lasts so long that a look sees that nobody else renews it.
func (s *served) lose() {
	s.t.Helper()
	time.Sleep(time.Second) // the first look is over
	s.call("/v1/acquire", `{"name":"a","owner":"owner","ttl_ms":21000}`)
	time.Sleep(22 * time.Second)
	if got := s.call("/v1/renew", `{"name":"a","owner":"owner","ttl_ms":21000}`); got != http.StatusGone {
		s.t.Errorf("the renewal of what is over: %d", got)
	}
}

// full is a store that grants nothing.
func full(context.Context, func() error) error { return driver.ErrFull }

// busy is a refusal that needs no store.
func busy(context.Context, func() error) error { return &driver.Busy{} }

// A stuck is a history file that takes nothing.
type stuck struct{}

// State implements serve.HistoryFile.
func (stuck) State() serve.HistoryState { return serve.HistoryState{ID: "stuck"} }

// Append implements serve.HistoryFile.
func (stuck) Append(context.Context, time.Time, []serve.HistoryEntry) error {
	return errors.New("no room")
}

// Read implements serve.HistoryFile.
func (stuck) Read(context.Context, serve.HistoryQuery) ([]serve.HistoryEntry, int64, error) {
	return nil, 0, nil
}

// Lives of instances, and the alerts that have fired in each.
var servedLives = []struct {
	name   string
	opts   serve.Options
	live   func(s *served)
	alerts []string
}{
	{"calm", serve.Options{}, func(s *served) {
		go s.take(20 * time.Minute)
		s.pass(time.Minute)
		s.call("/v1/acquire", `{"name":"b","owner":"owner","ttl_ms":60000}`)
		s.call("/v1/evict", `{"name":"b","owner":"owner","reason":"test"}`)
		s.call("/v1/renew", `{"name":"b","owner":"owner","ttl_ms":60000}`)
		s.pass(20 * time.Minute)
	}, nil},
	{"one call has no answer", serve.Options{}, func(s *served) {
		s.pass(time.Minute)
		s.engine.Next(locktest.OpTry, locktest.LoseRequest)
		s.call("/v1/acquire", `{"name":"a","owner":"owner","ttl_ms":60000}`)
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdServiceUnknown", call="acquire"}`}},
	{"the instance is gone", serve.Options{}, func(s *served) {
		s.pass(10 * time.Minute)
		s.down(5 * time.Minute)
	}, []string{`{alertname="LeaseholdServiceGone"}`}},
	{"the instance is gone for a minute", serve.Options{}, func(s *served) {
		s.pass(10 * time.Minute)
		s.down(time.Minute)
		s.pass(10 * time.Minute)
	}, nil},
	{"the store is gone and nobody calls", serve.Options{}, func(s *served) {
		s.pass(10 * time.Minute)
		s.engine.Always(locktest.OpInspect, locktest.HangRequest)
		s.pass(2 * time.Minute)
	}, []string{`{alertname="LeaseholdStoreDown"}`}},
	{"the store is gone while somebody waits, whom the driver refuses from memory", serve.Options{}, func(s *served) {
		s.pass(10 * time.Minute)
		wait := func() {
			s.call("/v1/acquire", `{"name":"a","owner":"waits","ttl_ms":60000,"queue":true}`)
		}
		s.call("/v1/acquire", `{"name":"a","owner":"holds","ttl_ms":600000}`)
		wait() // from now on the instance knows the claim, and only tries
		s.engine.Always(locktest.OpTry, busy)
		s.engine.Always(locktest.OpInspect, locktest.HangRequest)
		go func() {
			for range 120 {
				wait()
				time.Sleep(time.Second)
			}
		}()
		s.pass(2 * time.Minute)
	}, []string{`{alertname="LeaseholdStoreDown"}`}},
	{"the store is gone for half a minute", serve.Options{}, func(s *served) {
		s.pass(10 * time.Minute)
		s.engine.Always(locktest.OpInspect, locktest.HangRequest)
		s.pass(30 * time.Second)
		s.engine.Always(locktest.OpInspect, nil)
		s.pass(10 * time.Minute)
	}, nil},
	{"the store is slow", serve.Options{}, func(s *served) {
		s.engine.Always(locktest.OpTry, locktest.SlowReply(time.Second))
		go s.take(20 * time.Minute)
		s.pass(20 * time.Minute)
	}, []string{`{alertname="LeaseholdStoreSlow"}`}},
	{"one slow call", serve.Options{}, func(s *served) {
		s.pass(time.Minute)
		s.engine.Next(locktest.OpTry, locktest.SlowReply(4*time.Second))
		s.take(time.Second)
		s.pass(20 * time.Minute)
	}, nil},
	{"the store is full", serve.Options{}, func(s *served) {
		s.pass(10 * time.Minute)
		s.engine.Next(locktest.OpTry, full)
		s.call("/v1/acquire", `{"name":"a","owner":"owner","ttl_ms":60000}`)
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdStoreFull"}`}},
	{"the first loss", serve.Options{}, func(s *served) {
		s.pass(10 * time.Minute)
		s.lose()
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdServiceLost"}`}},
	{"a loss before the first scrape", serve.Options{}, func(s *served) {
		s.lose()
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdServiceLost"}`}},
	{"a history file that cannot be written", serve.Options{History: serve.HistoryOptions{File: stuck{}}}, func(s *served) {
		s.take(time.Second)
		s.pass(10 * time.Minute)
	}, []string{`{alertname="LeaseholdHistoryStuck"}`}},
	{"a webhook that nobody serves", serve.Options{Webhook: &serve.Webhook{URL: "http://127.0.0.1:1/"}}, func(s *served) {
		s.pass(10 * time.Minute)
		s.call("/v1/acquire", `{"name":"b","owner":"owner","ttl_ms":60000}`)
		s.call("/v1/evict", `{"name":"b","owner":"owner","reason":"test"}`)
		s.pass(80 * time.Minute)
	}, []string{`{alertname="LeaseholdWebhookFails"}`}},
}

// Each rule of the service fires in the lives that it is for, and in no other.
func TestRulesOfTheServiceFire(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	fmt.Fprintf(&file, "rule_files: [%q]\nevaluation_interval: %v\ntests:\n", absolute(t, "alerts.yml"), every)
	for _, l := range servedLives {
		synctest.Test(t, func(t *testing.T) {
			opts := l.opts
			s := newServed(t, &opts)
			l.live(s)
			s.server.Close()
			want := make(map[string]float64)
			for _, a := range l.alerts {
				want[a] = 1
			}
			group := s.group(expectation{`count by (alertname, call) (last_over_time(ALERTS{alertstate="firing"}[2h]))`, want})
			file.WriteString(strings.Replace(group, "  - ", fmt.Sprintf("  - name: %q\n    ", l.name), 1))
		})
	}
	promtool(t, "test", "rules", fileOf(t, file.String()))
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(docs + name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A process is "leasehold serve" on a store.
type process struct{ url string }

// ServeHTTP passes a request on to the process.
func (p process) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, p.url+r.URL.Path, r.Body)
	if err == nil {
		req.Header = r.Header
		var resp *http.Response
		if resp, err = http.DefaultClient.Do(req); err == nil {
			defer resp.Body.Close()
			w.WriteHeader(resp.StatusCode)
			_, err = io.Copy(w, resp.Body)
		}
	}
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprintln(w, err)
	}
}

var servingAt = regexp.MustCompile(`serving \S+ at (http://\S+)`)

// startProcess starts "leasehold serve", and returns when it listens.
func startProcess(t *testing.T, store string, env []string, args ...string) process {
	t.Helper()
	cmd := exec.Command(program.Build(t), append([]string{"--store", store, "serve", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(cmd.Environ(), env...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := servers.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	text := make([]byte, 0, 1024)
	for {
		at := servingAt.FindSubmatch(text)
		if at != nil {
			go io.Copy(io.Discard, said)
			return process{string(at[1])}
		}
		more := make([]byte, 1024)
		n, err := said.Read(more)
		if text = append(text, more[:n]...); err != nil {
			t.Fatalf("serve: %s: %v", text, err)
		}
	}
}

// repeat scrapes as often as Prometheus would in d, without waiting: to promtool, samples are 15 s apart.
func (r *recording) repeat(d time.Duration) {
	for ; d > 0; d -= every {
		r.scrape()
	}
}

// What a process exports shows in each panel, from the first event on, and fires the rules for the first loss and for a
// store that is gone.
func TestProcessIsObserved(t *testing.T) {
	t.Parallel()
	store := servers.StartRedis(t)
	proc := startProcess(t, "redis://"+store.Addr(), nil, "--metrics-limits")
	s := &served{recording: newRecording(t)}
	s.target = proc
	s.repeat(5 * time.Minute)
	for path, body := range map[string]string{"/v1/limit": `{"name":"c","limit":5}`, "/v1/acquire": `{"name":"c","owner":"one","ttl_ms":600000}`} {
		if got := s.call(path, "%s", body); got != http.StatusOK {
			t.Fatalf("%s: %d", path, got)
		}
	}
	if got := s.call("/v1/acquire", `{"name":"a","owner":"holds","ttl_ms":60000}`); got != http.StatusOK {
		t.Fatalf("acquire: %d", got)
	}
	s.call("/v1/acquire", `{"name":"a","owner":"waits","ttl_ms":60000,"queue":true}`)
	s.call("/v1/evict", `{"name":"a","owner":"holds","reason":"test"}`)
	s.call("/v1/acquire", `{"name":"b","owner":"dies","ttl_ms":21000}`)
	claimtest.Eventually(t, "a lease of 21 seconds ends", func() bool {
		return s.call("/v1/note", `{"name":"b","owner":"dies","note":"x"}`) == http.StatusGone
	})
	s.repeat(5 * time.Minute)
	var expected []expectation
	shows := func(expr string) {
		expected = append(expected, expectation{fmt.Sprintf("count((%s) >= 0) > bool 0", expr), map[string]float64{"": 1}})
	}
	for _, p := range panels(t, "service.json") {
		for _, target := range p.Targets {
			shows(fmt.Sprintf("max_over_time((%s)[6m:15s])", target.Expr))
		}
	}
	metric := regexp.MustCompile(`\b(leasehold|process)_\w+`)
	for _, p := range panels(t, "service.json") {
		for _, target := range p.Targets {
			for _, name := range metric.FindAllString(target.Expr, -1) {
				shows(name)
			}
		}
	}
	first := func(title, label string, want map[string]float64) {
		for _, p := range panels(t, "service.json") {
			if p.Title == title {
				expr := fmt.Sprintf("count by (%s) (max_over_time((%s)[10m:15s]) > 0)", label, p.Targets[0].Expr)
				expected = append(expected, expectation{expr, want})
				return
			}
		}
		t.Errorf("there is no panel %q", title)
	}
	first("Lost and evicted", "cause", map[string]float64{`{cause="expired"}`: 1})
	first("Grants", "mode", map[string]float64{`{mode="exclusive"}`: 1})
	first("The store answers", "job", map[string]float64{`{job="shop"}`: 1})
	file := fmt.Sprintf("rule_files: [%q]\nevaluation_interval: %v\ntests:\n", absolute(t, "alerts.yml"), every)
	file += s.group(expected...)
	store.Kill()
	claimtest.Eventually(t, "a store that is gone is down", func() bool { return strings.Contains(scrape(t, proc.url), "leasehold_store_up 0") })
	s.repeat(2 * time.Minute)
	file += s.group(expectation{`count by (alertname, cause) (last_over_time(ALERTS{alertstate="firing"}[2h]))`, map[string]float64{
		`{alertname="LeaseholdServiceLost", cause="expired"}`: 1, `{alertname="LeaseholdStoreDown"}`: 1,
	}})
	promtool(t, "test", "rules", fileOf(t, file))
}

func scrape(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
