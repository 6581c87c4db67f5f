package page

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/memory"
	web "github.com/leasehold-go/leasehold/serve"
)

// A scene is a service with locks as an operator meets them: renewed ones, one at risk that others wait for, a
// reservation, a job that is done, readers, and an hour of history. Its leases are real, but for their
// ages: what the service answers is told as if all this had begun an hour ago.
type scene struct {
	*service
	past *past
}

func newScene(t *testing.T) *scene {
	t.Helper()
	d := memory.New()
	s := &scene{past: hourAgo(time.Now())}
	server, err := web.New(d, &web.Options{History: web.HistoryOptions{File: s.past}, Version: "v0.1.0", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.older(server))
	t.Cleanup(func() { server.Drain(); h.Close(); server.Close(); d.Close() })
	s.service = &service{t: t, url: h.URL}
	s.fill()
	return s
}

var (
	programs = []string{"billing", "reindex", "backup", "payout", "mailer", "gitlab-runner"}
	hosts    = []string{"web-1", "web-2", "web-7", "ci-3", "batch-1"}
)

func (s *scene) acquire(name string, fields map[string]any) {
	s.t.Helper()
	body := map[string]any{"name": name, "owner": fmt.Sprintf("owner-%x-of-a-lease", len(name)*7919+int(time.Now().UnixNano()%1e9)), "ttl_ms": 3_600_000}
	for key, value := range fields {
		body[key] = value
	}
	if status := s.post("acquire", body); status != 200 && body["queue"] == nil {
		s.t.Fatalf("acquire %q: %d", name, status)
	}
}

func details(i int, more map[string]any) map[string]any {
	all := map[string]any{
		"host": hosts[i*7%5], "user": "deploy", "pid": 4000 + i*17, "program": programs[i%6],
		"started": time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), "labels": map[string]string{"team": []string{"payments", "search"}[i%2]},
	}
	for key, value := range more {
		all[key] = value
	}
	return map[string]any{"details": all}
}

func (s *scene) fill() {
	s.t.Helper()
	for i := range 34 {
		name := fmt.Sprintf("%s/%s-%d", []string{"orders", "reports", "invoices", "cron"}[i%4], []string{"nightly", "emea", "apac"}[i%3], 1000+i*37)
		s.acquire(name, details(i, nil))
	}
	gitlab := func(job, i int) map[string]any {
		return map[string]any{
			"program": "gitlab-runner", "host": hosts[i%5], "pid": job, "text": fmt.Sprint("gitlab ", job),
			"link": fmt.Sprint("https://gitlab.example.com/shop/-/jobs/", job), "labels": map[string]string{"branch": "main", "project": "shop"},
		}
	}
	s.acquire("deploy/production", details(3, gitlab(88123, 3)))
	for i := range 7 {
		waiter := details(i, gitlab(88124+i, i))
		waiter["queue"], waiter["owner"] = true, fmt.Sprint("waiter-number-", i, "-of-the-queue")
		s.acquire("deploy/production", waiter)
		waiter["name"], waiter["ttl_ms"], waiter["wait_ms"] = "deploy/production", 60_000, 25_000
		go func() {
			for s.t.Context().Err() == nil { // else its place is gone within seconds
				if status, err := s.try("acquire", waiter); err != nil || status != http.StatusConflict {
					return
				}
			}
		}()
	}
	s.acquire("deploy/staging", details(9, gitlab(88090, 1)))
	s.acquire("db/primary", map[string]any{"details": map[string]any{"user": "anna", "kind": "reserved", "text": "tuning the index, back by noon"}})
	s.acquire("import/prices", map[string]any{"details": map[string]any{"user": "kim", "host": "laptop-4", "kind": "manual", "text": "by hand"}})
	for i := range 3 {
		reader := details(i, nil)
		reader["mode"], reader["limit"], reader["owner"] = "shared", 4, fmt.Sprint("reader-number-", i, "-of-four")
		s.acquire("cache/readers", reader)
	}
	s.acquire("cron/daily-report", map[string]any{"owner": "of-the-daily-report", "details": map[string]any{"kind": "once", "host": "batch-1", "text": "report of Friday", "labels": map[string]string{"exit": "0"}}})
	if status := s.post("release", map[string]any{"name": "cron/daily-report", "owner": "of-the-daily-report", "linger_ms": 7_200_000}); status != 200 {
		s.t.Fatalf("release: %d", status)
	}
}

// older tells what a service answers as if its leases had begun earlier, and been renewed since.
func (s *scene) older(h http.Handler) http.Handler {
	change := map[string]func(answer map[string]any){
		"/v1/lock":     age,
		"/v1/locks":    func(answer map[string]any) { each(answer["locks"], age) },
		"/v1/overview": s.chart,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ages := change[r.URL.Path]
		if ages == nil {
			h.ServeHTTP(w, r)
			return
		}
		answer(s.t, w, h, r, ages)
	})
}

// answer answers as a service does, but for what change does to the answer.
func answer(t *testing.T, w http.ResponseWriter, service http.Handler, r *http.Request, change func(answer map[string]any)) {
	r.Header.Del("Accept-Encoding")
	rec := httptest.NewRecorder()
	service.ServeHTTP(rec, r)
	var fields map[string]any
	body := rec.Body.Bytes()
	if rec.Code == http.StatusOK {
		err := json.Unmarshal(body, &fields)
		if err == nil {
			change(fields)
			body, err = json.Marshal(fields)
		}
		if err != nil {
			t.Errorf("%s: %v", r.URL, err)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(rec.Code)
	_, _ = w.Write(body) // the tab may be gone
}

func each(list any, do func(one map[string]any)) {
	all, _ := list.([]any)
	for _, one := range all {
		do(one.(map[string]any))
	}
}

func number(one map[string]any, key string) float64 { n, _ := one[key].(float64); return n }

// age makes the leases of a state older, and those that are renewed shorter.
func age(state map[string]any) {
	name, _ := state["name"].(string)
	sum := 0
	for _, c := range name {
		sum += int(c) * 131
	}
	each(state["holders"], func(h map[string]any) {
		d, _ := h["details"].(map[string]any)
		switch kind, _ := d["kind"].(string); {
		case h["owner"] == "":
			return
		case kind != "":
			h["held_ms"], h["ttl_ms"], h["renewed_ms"] = 2_400_000+number(h, "held_ms"), 6_000_000, 2_400_000+number(h, "held_ms")
		case name == "deploy/production":
			h["held_ms"], h["ttl_ms"], h["left_ms"], h["renewed_ms"] = 754_000+number(h, "held_ms"), 30_000, 9_000, 21_000
		default:
			renewed := float64(sum*7919%9000 + 300)
			h["held_ms"], h["ttl_ms"], h["left_ms"], h["renewed_ms"] = float64(sum%4000)*1000+number(h, "held_ms"), 30_000, 30_000-renewed, renewed
		}
	})
	waits := 291_000.0
	each(state["waiters"], func(w map[string]any) {
		w["waited_ms"] = waits + number(w, "waited_ms")
		waits -= 41_000
	})
}

// chart gives an overview the ninety minutes before.
func (s *scene) chart(figures map[string]any) {
	var points []any
	for i := range 90 {
		at := float64(i)
		points = append(points, map[string]any{
			"ago_ms": i * 60_000, "held": math.Round(number(figures, "held") - 4 + 4*math.Cos(at/9) + 2*math.Sin(at/2.3)), "waiting": math.Max(0, math.Round(4+3.5*math.Cos(at/7))),
			"grants": math.Round(30 + 14*math.Sin(at/5) + 6*math.Sin(at*1.7)), "lost": map[bool]int{true: 1}[i == 36], "wait_p50_ms": 12 + i%7, "wait_p99_ms": math.Round(1500 + 900*math.Sin(at/6)),
		})
	}
	figures["series"] = map[string]any{"step_ms": 60_000, "points": points}
	figures["longest_wait_ms"], figures["grants_minute"], figures["wait_p50_ms"], figures["wait_p99_ms"], figures["at_risk"] = 291_000, 31, 12, 1500, 1
	figures["lost_hour"], figures["evicted_hour"] = 1, 1
	figures["begins_ms"] = 5_400_000
	each(figures["contended"], func(one map[string]any) { one["longest_wait_ms"] = 291_000 })
}

// past is a history that was kept before.
type past struct{ entries []web.HistoryEntry }

func (p *past) State() web.HistoryState {
	return web.HistoryState{ID: "past", Last: int64(len(p.entries)), Began: p.entries[0].Time, Alive: time.Now()}
}

func (p *past) Append(context.Context, []web.HistoryEntry) error { return nil }

func (p *past) Read(_ context.Context, q web.HistoryQuery) (found []web.HistoryEntry, next int64, err error) {
	for _, e := range slices.Backward(p.entries) {
		if (q.Name == "" || q.Name == e.Name) && (q.Before == 0 || e.Seq < q.Before) && !e.Time.Before(q.Since) && (len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind)) {
			if len(found) == q.Limit {
				return found, found[len(found)-1].Seq, nil
			}
			found = append(found, e)
		}
	}
	return found, 0, nil
}

// hourAgo is what happened to deploy/production before now.
func hourAgo(now time.Time) *past {
	p := &past{}
	at := func(minutes float64) time.Time { return now.Add(-time.Duration(minutes * float64(time.Minute))) }
	add := func(minutes float64, kind string, job int, more web.HistoryEntry) {
		more.Time, more.Kind, more.Name, more.Note, more.Mode = at(minutes), kind, "deploy/production", fmt.Sprint("gitlab ", job), "exclusive"
		more.Who, more.WhoID, more.Token = fmt.Sprint("G", job), fmt.Sprint("G", job, "~handle"), fmt.Sprint(job)
		p.entries = append(p.entries, more)
	}
	ms := func(minutes float64) *int64 { n := int64(minutes * 60_000); return &n }
	for _, run := range []struct {
		job             int
		waits, from, to float64
		end             string
		more            web.HistoryEntry
	}{
		{88101, 60, 58, 49, "released", web.HistoryEntry{}},
		{88102, 55, 49, 41, "released", web.HistoryEntry{}},
		{88103, 47, 41, 38, "expired", web.HistoryEntry{Silent: ms(0.5)}},
		{88104, 45, 37.9, 30, "released", web.HistoryEntry{}},
		{88105, 43, 30, 24, "evicted", web.HistoryEntry{By: "anna", Reason: "stuck in a migration"}},
		{88106, 33, 23.5, 14, "released", web.HistoryEntry{}},
	} {
		add(run.waits, "waiting", run.job, web.HistoryEntry{})
		add(run.from, "granted", run.job, web.HistoryEntry{Waited: ms(run.waits - run.from)})
		run.more.Held = ms(run.from - run.to)
		add(run.to, run.end, run.job, run.more)
	}
	slices.SortFunc(p.entries, func(a, b web.HistoryEntry) int { return a.Time.Compare(b.Time) })
	for i := range p.entries {
		p.entries[i].Seq = int64(i + 1)
	}
	return p
}

var views = []string{"#/", "#/locks", "#/locks?state=waited", "#/lock/deploy%2Fproduction", "#/lock/db%2Fprimary", "#/lock/cron%2Fdaily-report", "#/lock/cache%2Freaders", "#/lock/nobody", "#/events", "#/me"}

// Each view on each screen, for the six pictures of docs/images, and for who looks at all of them.
func TestPictures(t *testing.T) {
	t.Parallel()
	if !*pictures {
		t.Skip("go test ./page -pictures makes them")
	}
	s := newScene(t)
	p := open(t, s.url)
	at := func(view string) {
		t.Helper()
		eval[string](p, fmt.Sprintf(`location.hash = %q`, view))
		p.reads("#status", "live")
		p.until("all is loaded", func() bool { return !eval[bool](p, `Boolean(document.querySelector('.loading'))`) }, "#console")
		time.Sleep(3 * time.Second) // for a second look
		eval[bool](p, `(document.activeElement?.blur(), scrollTo(0, 0), true)`)
	}
	p.sees(1440, 900, false)
	at("#/")
	p.picture("console-overview")
	at("#/locks")
	p.picture("console-locks")
	p.sees(1440, 1024, true)
	at("#/lock/deploy%2Fproduction")
	p.picture("console-lock-dark")
	p.sees(1024, 860, false)
	p.click("#holders .evict")
	p.write("dialog [name=reason]", "its runner is gone")
	p.write("dialog [name=typed]", "deploy/production")
	p.picture("console-evict")
	p.click("dialog .no")
	p.click("#language")
	p.sees(390, 844, true)
	eval[string](p, `location.hash = '#/locks?sort=waiting&dir=desc'`)
	p.reads("#status", "实时")
	time.Sleep(3 * time.Second)
	p.picture("console-narrow-dark-zh")
	p.click("#language")
	p.sees(1440, 600, false)
	at("#/locks?sort=waiting&dir=desc")
	eval[bool](p, `(window.fetch = () => Promise.reject(new Error('the network is gone')), true)`)
	p.reads("#status", "no answer for 12 s")
	p.picture("console-unknown")
}

// axe-core finds nothing that would keep people out of a view.
func TestNothingKeepsPeopleOut(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(servers.Axe(t))
	if err != nil {
		t.Fatal(err)
	}
	axe := string(text)
	s := newScene(t)
	s.grant("cache/kept", 10*minute, map[string]any{"kind": "keeps", "program": "search"})
	s.waits("cache/kept", "waits-for-what-is-kept", map[string]any{"program": "reindex"})
	p := open(t, s.url)
	find := func(what string) {
		t.Helper()
		p.until("nothing moves", func() bool { return !eval[bool](p, `document.getAnimations().length > 0`) }, "#console")
		eval[bool](p, axe+"; true")
		for _, found := range run(p, chromedp.Evaluate[[]string](`axe.run(document).then((r) => r.passes.length < 10 ? ['it looked at little'] : r.violations.flatMap((v) => v.nodes.map((n) => v.id + ' ' + n.target.join() + ': ' + n.any.concat(n.all).map((c) => c.message).join())))`, chromedp.EvalAwaitPromise)) {
			t.Errorf("%s: %s", what, found)
		}
	}
	for _, dark := range []bool{false, true} {
		for _, width := range []int64{1440, 390} {
			p.sees(width, 900, dark)
			for _, view := range append(views, "#/lock/cache%2Fkept") {
				eval[string](p, fmt.Sprintf(`location.hash = %q`, view))
				p.until(view+" is shown", func() bool { return p.text("h1") != "" && p.text(".loading") == "" }, "#console")
				find(fmt.Sprint(view, " at ", width, " dark ", dark))
			}
			eval[string](p, `location.hash = '#/lock/deploy%2Fproduction'`)
			p.click("#holders .evict")
			find(fmt.Sprint("the dialog at ", width, " dark ", dark))
			p.click("dialog .no")
		}
	}
	p.click("#language")
	find("in Chinese")
	eval[bool](p, `(window.fetch = () => Promise.reject(new Error('no answer')), true)`)
	p.reads("#status", "状态未知")
	for _, dark := range []bool{false, true} {
		p.sees(1440, 900, dark)
		find(fmt.Sprint("what is stale, dark ", dark))
	}
}
