package described

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// posts has a call of each kind that changes something.
var posts = map[string]string{
	wire.Acquire: `{"name":"n","owner":"o","ttl_ms":60000,"wanted":true,"details":{"host":"web-7","user":"anna","pid":7,"program":"ci","started":"2026-11-27T10:32:07Z","link":"https://a.example/","labels":{"Team/of":"b"},"text":"nightly","kind":"manual"}}`,
	wire.Renew:   `{"name":"n","owner":"o","ttl_ms":60000,"wanted":true}`,
	wire.Note:    `{"name":"n","owner":"o","note":"a"}`,
	wire.Fence:   `{"name":"n","owner":"o","token":"1"}`,
	wire.Release: `{"name":"n","owner":"o"}`,
	wire.Evict:   `{"name":"n","owner":"o","reason":"r"}`,

	wire.Rehearse: `{}`,
	wire.Reserve:  `{"name":"n","reason":"r"}`,
	wire.Remove:   `{"name":"n","handle":"h","reason":"r"}`,
	wire.Reset:    `{"name":"n"}`,
	wire.Limit:    `{"name":"n","limit":3}`,
}

var gets = []string{wire.Show + "?name=n", wire.List, wire.History, wire.Overview, wire.Me, wire.Features, wire.Check, "/openapi.json", "/healthz", "/readyz"}

// A failingDriver's calls all come to an error, where they may.
type failingDriver struct {
	driver.Driver
	err error
}

type failingClaim struct{ err error }

func (d failingDriver) Claim(driver.Request) (driver.Claim, error) { return failingClaim{d.err}, nil }
func (d failingDriver) Inspect(context.Context, string) (driver.State, error) {
	return driver.State{}, d.shown()
}
func (d failingDriver) List(context.Context, string, string, int) ([]driver.State, string, error) {
	return nil, "", d.shown()
}
func (d failingDriver) Evict(_ context.Context, _, _, _ string) error    { return d.err }
func (d failingDriver) RaiseFence(context.Context, string, uint64) error { return d.err }
func (d failingDriver) SetLimit(context.Context, string, int) error      { return d.shown() }

func (d failingDriver) Rehearse(context.Context) error { return d.err }
func (d failingDriver) Check(context.Context) ([]driver.Finding, error) {
	return []driver.Finding{{About: driver.AboutServer, Where: "a", Level: driver.Unfit, Text: "away", Advice: "start it"}}, d.err
}

func (c failingClaim) Try(context.Context) (driver.Grant, error) { return driver.Grant{}, c.err }
func (c failingClaim) Renew(context.Context, time.Duration) (driver.Grant, error) {
	return driver.Grant{}, c.err
}
func (c failingClaim) Release(context.Context, driver.End) error { return c.err }
func (c failingClaim) Note(context.Context, string) error        { return c.err }
func (c failingClaim) LiftFence(context.Context, uint64) error   { return c.err }

// shown is what looking comes to.
func (d failingDriver) shown() error {
	if errors.Is(d.err, driver.ErrLost) {
		return nil
	}
	return d.err
}

// A situation has a service answer calls in one way.
type situation struct {
	driver driver.Driver
	opts   serve.Options
	header []string
	body   string // of all calls; "": their own
	drain  bool
	waits  bool // somebody waits, and is removed
}

func situations() map[string]situation {
	nobody := func(*http.Request) (*serve.Client, error) { return nil, serve.ErrUnknownClient }
	may := func(rights ...serve.Right) func(*http.Request) (*serve.Client, error) {
		return func(*http.Request) (*serve.Client, error) {
			return &serve.Client{Name: "c", Rules: []serve.Rule{{Rights: rights}}}, nil
		}
	}
	failing := func(err error) driver.Driver { return failingDriver{memory.New(), err} }
	return map[string]situation{
		"all is well":        {driver: memory.New(), waits: true},
		"no history":         {driver: memory.New(), opts: serve.Options{History: serve.HistoryOptions{Entries: -1}}},
		"no token":           {driver: memory.New(), opts: serve.Options{Client: nobody}},
		"no right":           {driver: memory.New(), opts: serve.Options{Client: may()}},
		"a right to look":    {driver: memory.New(), opts: serve.Options{Client: may(serve.View)}},
		"another origin":     {driver: memory.New(), header: []string{"Origin", "http://evil.test"}},
		"no body":            {driver: memory.New(), body: " "},
		"an unknown field":   {driver: memory.New(), body: `{"name":"n","until":1}`},
		"a long body":        {driver: memory.New(), body: `{"name":"` + strings.Repeat("n", 20_000) + `"}`},
		"another type":       {driver: memory.New(), header: []string{"Content-Type", "text/plain"}},
		"too many calls":     {driver: memory.New(), opts: serve.Options{Limits: serve.Limits{Rate: 1e-9}}},
		"data is damaged":    {driver: failing(driver.ErrCorrupt)},
		"it is not served":   {driver: failing(driver.ErrUnsupported)},
		"a name, invalid":    {driver: failing(driver.ErrInvalidName)},
		"somebody has it":    {driver: failing(&driver.Busy{Retry: time.Second})},
		"nothing is granted": {driver: failing(driver.ErrNotYet)},
		"it rehearses":       {driver: failing(nil)},
		"it is lost":         {driver: failing(driver.ErrLost)},
		"nobody knows":       {driver: failing(errors.New("the engine went away"))},
		"it is stopping":     {driver: memory.New(), drain: true},
	}
}

// Whatever is described is answered by somebody, and all that is answered is described.
func TestAllThatIsDescribedIsAnswered(t *testing.T) {
	t.Parallel()
	all := New(t)
	for name, s := range situations() {
		server, err := serve.New(s.driver, &s.opts)
		if err != nil {
			t.Fatal(err)
		}
		if s.drain {
			server.Drain()
		}
		j := record(t, false, server, func(client *http.Client, url string) { s.ask(t, client, url) })
		if err := errors.Join(server.Close(), s.driver.Close()); err != nil {
			t.Error(err)
		}
		for what := range j.seen {
			all.seen[what] = true
		}
		for what := range j.wrong {
			t.Errorf("%s: not as described: %s", name, what)
		}
	}
	if unseen := all.Unseen(); len(unseen) > 0 {
		t.Errorf("described, and never answered:\n%s", strings.Join(unseen, "\n"))
	}
}

// ask makes all calls.
func (s *situation) ask(t *testing.T, client *http.Client, url string) {
	for _, path := range []string{wire.Acquire, wire.Renew, wire.Note, wire.Fence, wire.Release, wire.Evict, wire.Reserve, wire.Remove, wire.Reset, wire.Limit, wire.Rehearse} {
		body := posts[path]
		if s.body != "" {
			body = s.body
		}
		call(t, client, http.MethodPost, url+path, body, s.header...)
	}
	call(t, client, http.MethodPost, url+wire.Acquire, `{"name":"n","owner":"o2","ttl_ms":60000,"wait_ms":1}`, s.header...)
	call(t, client, http.MethodPost, url+wire.Acquire, `{"name":"n3","owner":"o4","ttl_ms":60000,"mode":"shared","limit":1,"weight":2}`, s.header...)
	call(t, client, http.MethodPost, url+wire.Evict, `{"name":"n","owner":"o2","reason":"r"}`, s.header...)
	call(t, client, http.MethodPost, url+wire.Fence, `{"name":"n","token":"1"}`, s.header...)
	call(t, client, http.MethodPost, url+wire.Reset, `{"name":"n2"}`, s.header...)
	call(t, client, http.MethodPost, url+wire.Acquire, `{"name":"n4","owner":"o5","ttl_ms":60000}`, s.header...)
	call(t, client, http.MethodPost, url+wire.Release, `{"name":"n4","owner":"o5","linger_ms":60000}`, s.header...)
	call(t, client, http.MethodPost, url+wire.Reset, `{"name":"n4","token":"1"}`, s.header...)
	if s.waits {
		s.remove(t, client, url)
	}
	for _, path := range append(gets, wire.Show, wire.History+"?kind=none", wire.Overview+"?prefix=%00", wire.Me+"?x=y", wire.Features+"?x=y", wire.Check+"?x=y", wire.List+"?prefix=%00", wire.Events+"?prefix=%00") {
		call(t, client, http.MethodGet, url+path, "", s.header...)
	}
	for _, path := range append(gets, wire.Events) {
		call(t, client, http.MethodGet, url+path, "", append(s.header, "Host", "evil.test")...)
	}
	s.listen(t, client, url)
}

// remove sends a waiter away.
func (s *situation) remove(t *testing.T, client *http.Client, url string) {
	var waiting sync.WaitGroup
	waiting.Go(func() {
		call(t, client, http.MethodPost, url+wire.Acquire, `{"name":"n","owner":"o3","ttl_ms":60000,"wait_ms":30000}`, s.header...)
	})
	for status, end := 0, time.Now().Add(20*time.Second); status != http.StatusOK && time.Now().Before(end); { // when it waits
		status, _ = call(t, client, http.MethodPost, url+wire.Remove, `{"name":"n","owner":"o3","reason":"r"}`, s.header...)
	}
	waiting.Wait()
}

// listen reads the first event.
func (s *situation) listen(t *testing.T, client *http.Client, url string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+wire.Events, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := fmt.Fscanln(resp.Body, new(string), new(string)); err != nil && resp.StatusCode == http.StatusOK {
		t.Errorf("no first event: %v", err)
	}
}
