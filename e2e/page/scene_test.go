package page

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A scene is a service as operators meet it: leases that programs renew, one at risk that others wait for, a
// reservation, a job that is done, readers, a limit, and what happened before. All of it happens: programs take,
// renew and lose leases, somebody is evicted, and the service's own clock tells the ages.
type scene struct {
	*service          // as its operator calls it
	ci       *service // as programs do
	beat     time.Duration
}

// The operator's token, and that of programs.
const (
	annas = "the-token-of-anna-which-is-long-enough"
	cis   = "the-token-of-programs-which-is-long-too"
)

// newScene plays what happened before, which lasts sixty beats. The lease at risk is renewed after nine tenths of its TTL,
// so for a part of each TTL nobody knows whether it will be.
func newScene(t *testing.T, beat, risky time.Duration) *scene {
	t.Helper()
	access := filepath.Join(t.TempDir(), "access.json")
	text := fmt.Sprintf(`{"clients":[{"name":"anna","tokens":["%x"],"rules":[{"prefix":"","rights":["view","lock","evict"]}]},
		{"name":"ci","tokens":["%x"],"rules":[{"prefix":"","rights":["view","lock"]}]}]}`, sha256.Sum256([]byte(annas)), sha256.Sum256([]byte(cis)))
	if err := os.WriteFile(access, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &scene{service: serve(t, "memory:", "127.0.0.1:0", "--access", access), beat: beat}
	s.ci = &service{t: t, url: s.url, token: cis}
	s.token = annas
	s.fill()
	s.play(risky)
	return s
}

// open signs in.
func (s *scene) open() *tab {
	p := open(s.t, s.url)
	p.write("#bearer", s.token)
	p.click("#sign-in .main")
	p.until("it is live", func() bool { return eval[bool](p, `Boolean(document.querySelector('#status.is-live'))`) }, "#console")
	return p
}

// A use is a program's use of a lock.
type use struct {
	name, owner string
	ttl         time.Duration
	fields      map[string]any
}

var (
	programs = []string{"billing", "reindex", "backup", "payout", "mailer", "gitlab-runner"}
	hosts    = []string{"web-1", "web-2", "web-7", "ci-3", "batch-1"}
)

// uses is a use by one of several programs.
func uses(name string, i int, ttl time.Duration) use {
	return use{name, fmt.Sprintf("owner-%d-of-%s", i, name), ttl, map[string]any{"details": map[string]any{
		"host": hosts[i*7%5], "user": "deploy", "pid": 4000 + i*17, "program": programs[i%6],
		"started": time.Now().UTC().Format(time.RFC3339), "labels": map[string]string{"team": []string{"payments", "search"}[i%2]},
	}}}
}

// gitlab is a use of deploy/production.
func gitlab(job int, ttl time.Duration) use {
	u := uses("deploy/production", job, ttl)
	maps.Copy(u.fields["details"].(map[string]any), map[string]any{
		"program": "gitlab-runner", "pid": job, "text": fmt.Sprint("gitlab ", job),
		"link": fmt.Sprint("https://gitlab.example.com/shop/-/jobs/", job), "labels": map[string]string{"branch": "main", "project": "shop"},
	})
	return u
}

// acquire makes one call. Its status is 409 while others have the lock.
func (s *scene) acquire(u use, more map[string]any) (status int) {
	body := map[string]any{"name": u.name, "owner": u.owner, "ttl_ms": u.ttl.Milliseconds()}
	maps.Copy(body, u.fields)
	maps.Copy(body, more)
	status, err := s.ci.try("acquire", body)
	if err != nil && s.t.Context().Err() == nil {
		s.t.Errorf("acquire %q: %v", u.name, err)
	}
	return status
}

// takes takes a lock that nobody has.
func (s *scene) takes(u use) {
	s.t.Helper()
	if status := s.acquire(u, nil); status != http.StatusOK {
		s.t.Fatalf("acquire %q: %d", u.name, status)
	}
}

// awaits waits for a lock. ok: it has it.
func (s *scene) awaits(u use) (ok bool) {
	for s.t.Context().Err() == nil {
		if status := s.acquire(u, map[string]any{"wait_ms": 25_000}); status != http.StatusConflict {
			return status == http.StatusOK
		}
	}
	return false
}

// keeps renews until the time is over, or else the lease or the test. ok: it is the time.
func (s *scene) keeps(u use, every, length time.Duration) (ok bool) {
	over := time.After(length)
	for {
		select {
		case <-over:
			return true
		case <-s.t.Context().Done():
			return false
		case <-time.After(every):
		}
		if status, err := s.ci.try("renew", map[string]any{"name": u.name, "owner": u.owner, "ttl_ms": u.ttl.Milliseconds()}); err != nil || status != http.StatusOK {
			return false
		}
	}
}

func (s *scene) releases(u use, linger time.Duration) {
	status, err := s.ci.try("release", map[string]any{"name": u.name, "owner": u.owner, "linger_ms": linger.Milliseconds()})
	if (err != nil || status != http.StatusOK) && s.t.Context().Err() == nil {
		s.t.Errorf("release %q: %d, %v", u.name, status, err)
	}
}

const forGood = 24 * time.Hour

// fill has programs hold locks until the test ends.
func (s *scene) fill() {
	s.t.Helper()
	for i := range 34 {
		u := uses(fmt.Sprintf("%s/%s-%d", []string{"orders", "reports", "invoices", "cron"}[i%4], []string{"nightly", "emea", "apac"}[i%3], 1000+i*37), i, 30*time.Second)
		s.takes(u)
		go s.keeps(u, 3*time.Second+time.Duration(i)*200*time.Millisecond, forGood)
	}
	staging := gitlab(88090, minute)
	staging.name = "deploy/staging"
	s.takes(staging)
	go s.keeps(staging, 20*time.Second, forGood)
	if status := s.post("reserve", map[string]any{"name": "db/primary", "reason": "tuning the index, back by noon", "for_ms": (4 * time.Hour).Milliseconds()}); status != http.StatusOK {
		s.t.Fatalf("reserve: %d", status)
	}
	s.takes(use{"import/prices", "owner-of-what-is-by-hand", 2 * time.Hour, map[string]any{"details": map[string]any{"user": "kim", "host": "laptop-4", "kind": "manual", "text": "by hand"}}})
	for i := range 3 {
		reader := uses("cache/readers", i, 30*time.Second)
		reader.fields["mode"], reader.fields["limit"] = "shared", 4
		s.takes(reader)
		go s.keeps(reader, 8*time.Second, forGood)
	}
	if status := s.post("limit", map[string]any{"name": "tenant/7", "limit": 2}); status != http.StatusOK {
		s.t.Fatalf("limit: %d", status)
	}
	for i := range 4 {
		export := uses("tenant/7", i, 30*time.Second)
		export.fields["mode"], export.fields["limit"] = "shared", 4
		if s.acquire(export, map[string]any{"queue": true}) == http.StatusOK {
			go s.keeps(export, 8*time.Second, forGood)
		} else {
			go s.awaits(export)
		}
	}
	keeper := uses("cache/kept", 4, 30*time.Second)
	keeper.fields["details"].(map[string]any)["kind"] = "keeps"
	s.takes(keeper)
	go s.keeps(keeper, 8*time.Second, forGood)
	go s.awaits(uses("cache/kept", 5, 30*time.Second))
	report := use{"cron/daily-report", "owner-of-the-daily-report", minute, map[string]any{"details": map[string]any{"kind": "once", "host": "batch-1", "text": "report of Friday", "labels": map[string]string{"exit": "0"}}}}
	s.takes(report)
	s.releases(report, 2*time.Hour)
}

// play is what happens meanwhile: jobs that come and go, and runs of deploy/production, of which one dies and one is evicted.
func (s *scene) play(risky time.Duration) {
	s.t.Helper()
	pace := max(s.beat, time.Second)
	for i := range 6 { // two jobs for each of three names, so that they wait
		go func() {
			for n := 0; s.t.Context().Err() == nil; n++ {
				u := uses(fmt.Sprint("batch/", []string{"mail", "ledger", "thumbnails"}[i%3]), i*1000+n, 30*time.Second)
				if s.awaits(u) && s.keeps(u, 8*time.Second, pace*time.Duration(2+i)/4) {
					s.releases(u, 0)
				}
				select {
				case <-time.After(pace * time.Duration(3+i%4) / 4):
				case <-s.t.Context().Done():
				}
			}
		}()
	}
	began := time.Now()
	at := func(beats int) { time.Sleep(time.Until(began.Add(time.Duration(beats) * s.beat))) }
	type end struct {
		job, queues, holds int
		how                string
	}
	done := make(chan end)
	ttl := max(2*s.beat, 2*time.Second)
	all := []end{{88101, 0, 9, "released"}, {88102, 5, 8, "released"}, {88103, 13, 3, "dies"}, {88104, 15, 7, "released"}, {88105, 17, 6, "evicted"}, {88106, 27, 8, "released"}}
	for _, run := range all {
		at(run.queues)
		go func() {
			defer func() { done <- run }()
			u := gitlab(run.job, ttl)
			if !s.awaits(u) || !s.keeps(u, ttl/3, time.Duration(run.holds)*s.beat) {
				return
			}
			switch run.how {
			case "released":
				s.releases(u, 0)
			case "evicted":
				if status, err := s.try("evict", map[string]any{"name": u.name, "owner": u.owner, "reason": "stuck in a migration"}); err != nil || status != http.StatusOK {
					s.t.Errorf("evict: %d, %v", status, err)
				}
			}
		}()
	}
	for range all {
		<-done
	}
	holder := gitlab(88123, risky)
	if !s.awaits(holder) {
		s.t.Fatal("the last run does not get the lock")
	}
	go s.keeps(holder, risky*9/10, forGood)
	for i := range 7 {
		waiter := gitlab(88124+i, minute)
		s.acquire(waiter, map[string]any{"queue": true})
		go s.awaits(waiter)
		time.Sleep(s.beat)
	}
	at(60)
}

var views = []string{"#/", "#/locks", "#/locks?state=waited", "#/lock/deploy%2Fproduction", "#/lock/db%2Fprimary", "#/lock/cron%2Fdaily-report", "#/lock/cache%2Freaders", "#/lock/cache%2Fkept", "#/lock/tenant%2F7", "#/lock/nobody", "#/events", "#/me"}
