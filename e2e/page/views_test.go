package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
	web "github.com/leasehold-go/leasehold/serve"
)

// grant takes a lease with what is told of its holder.
func (s *service) grant(name string, ttl time.Duration, details map[string]any) {
	s.t.Helper()
	status := s.post("acquire", map[string]any{"name": name, "owner": "owner-of-" + strings.ReplaceAll(name, "/", "-"), "ttl_ms": ttl.Milliseconds(), "details": details})
	if status != http.StatusOK {
		s.t.Fatalf("acquire %q: %d", name, status)
	}
}

// waits has somebody wait for a name until the test ends, and returns what tells how that went.
func (s *service) waits(name, owner string, details map[string]any) <-chan int {
	done := make(chan int, 1)
	ctx := s.t.Context()
	go func() {
		for ctx.Err() == nil {
			status, err := s.try("acquire", map[string]any{"name": name, "owner": owner, "ttl_ms": 60_000, "wait_ms": 25_000, "details": details})
			if err != nil || status != http.StatusConflict {
				done <- status
				return
			}
		}
	}()
	return done
}

// Leases that nobody renews by design are not at risk, however little is left of them. One that somebody
// renews is.
func TestWhatNobodyRenewsIsNotAtRisk(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second
	s := serve(t, "memory:", "127.0.0.1:0")
	for _, kind := range []string{"manual", "reserved", "once"} {
		s.grant("by-design/"+kind, ttl, map[string]any{"kind": kind, "text": kind})
	}
	s.hold("by-design/curl", "of-curl", "", ttl)
	s.grant("program", ttl, map[string]any{"program": "worker", "pid": 7, "host": "web-1"})
	p := open(t, s.url+"/#/locks")
	p.reads(".row:nth-child(5)", "worker[7]")
	eval[bool](p, `(window.wrong = [], setInterval(() => {
		for (const row of document.querySelectorAll('.row')) {
			if (row.textContent.includes('by-design') && row.querySelector('.is-late')) wrong.push(row.textContent)
		}
	}, 20), true)`)
	p.reads(".row:nth-child(5) .c-state", "at risk")
	p.reads(".row:nth-child(5)", "no renewal for")
	said := p.text(".row:nth-child(5) .lease")
	p.until("another answer", func() bool { text := p.text(".row:nth-child(5) .lease"); return text != "" && text != said }, ".row:nth-child(5)")
	if wrong := eval[[]string](p, `wrong.slice(0, 4)`); len(wrong) > 0 {
		t.Errorf("called at risk: %q", wrong)
	}
}

// The first look cannot tell what is late, so it does not say that nothing is.
func TestTheFirstLookDoesNotSayThatNothingIsLate(t *testing.T) {
	t.Parallel()
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.URL.Path != "/v1/locks" {
			service.ServeHTTP(w, r)
			return
		}
		answer(t, w, service, r, func(answer map[string]any) {
			each(answer["locks"], func(lock map[string]any) {
				each(lock["holders"], func(holder map[string]any) { holder["renewed_ms"] = 400_000 })
			})
		})
	})
	s.grant("program", 10*minute, map[string]any{"program": "worker", "pid": 7})
	p := open(t, "about:blank")
	p.before(`setInterval(() => { if (document.querySelector('.empty')?.textContent.includes('No lock matches')) window.early = true }, 10)`)
	p.do(chromedp.Navigate(s.url + "/#/locks?state=late"))
	p.reads(".row .c-state", "at risk")
	if eval[bool](p, `Boolean(window.early)`) {
		t.Error("it did")
	}
}

// The overview tells who holds most, what is waited for, and how leases ended.
func TestTheOverviewAnswers(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	for i := range 3 {
		s.grant(fmt.Sprint("orders/", i), minute, map[string]any{"host": "web-7", "program": "billing"})
	}
	s.grant("deploy/production", minute, map[string]any{"host": "ci-3", "text": "gitlab 88123"})
	s.waits("deploy/production", "the-one-that-waits", map[string]any{"host": "web-7", "text": "gitlab 88124"})
	const short = 6 * time.Second // a look sees that nobody else renews it
	s.grant("short", short, map[string]any{"text": "somebody who died", "program": "worker"})
	s.hold("by-curl", "one-that-curl-made", "curl", short)
	p := open(t, s.url)
	p.reads("#console", "Most contended")
	p.until("it counts", func() bool {
		return strings.Contains(p.text(".figure:nth-child(1)"), "4") && strings.Contains(p.text(".figure:nth-child(2)"), "1")
	}, ".figures")
	p.reads("[aria-labelledby=contended]", "deploy/production")
	p.reads("[aria-labelledby=hosts] tbody tr", "web-7\t3")
	p.reads("[aria-labelledby=ends]", "short lost by somebody who died · no renewal for")
	p.reads("[aria-labelledby=ends]", "by-curl ran out, held by curl") // which nobody meant to renew
	p.reads(".figure:nth-child(5) .value", "1")                        // lost
	p.click("[aria-labelledby=hosts] tbody a")
	p.reads("#count", "4 of 4") // three that it holds, and one that it waits for
	if hash := eval[string](p, `location.hash`); hash != "#/locks?host=web-7" {
		t.Errorf("the address is %q", hash)
	}
	p.do(chromedp.NavigateBack())
	p.click("[aria-labelledby=contended] tbody a")
	p.reads(".sum", "Held by gitlab 88123 on ci-3")
	p.reads("#waiters", "gitlab 88124")
	p.until("a bar of the holder", func() bool {
		return eval[bool](p, `document.querySelector('.timeline .is-held')?.textContent.includes('gitlab 88123') ?? false`)
	}, ".timeline")
}

func TestANameIsReservedAndReleased(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	p := open(t, s.url+"/#/locks")
	p.click("#reserve")
	p.write("dialog [name=name]", "db/primary")
	p.write("dialog [name=reason]", "tuning the index")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.reads("dialog .answer", "Reserved until")
	owner := p.text("dialog .owner code")
	if len(owner) < 20 {
		t.Errorf("its owner reads %q", owner)
	}
	p.click("dialog .no")
	p.reads(".row .c-state", "reserved")
	p.reads(".row", "tuning the index")
	p.click(".row a")
	p.reads(".sum", "Reserved: ")
	p.click(".release")
	p.click("dialog .yes")
	p.reads("#lock-state", "free")
	p.reads("#history", "reserved")
	if kept := eval[string](p, `sessionStorage.getItem('reservations')`); strings.Contains(kept, owner) {
		t.Error("its owner is kept")
	}
}

func TestAPeriodIsReset(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("cron/daily", minute, map[string]any{"kind": "once", "text": "report", "labels": map[string]string{"exit": "3"}})
	if status := s.post("release", map[string]any{"name": "cron/daily", "owner": "owner-of-cron-daily", "linger_ms": 3_600_000}); status != 200 {
		t.Fatalf("release: %d", status)
	}
	p := open(t, s.url+"/#/lock/cron%2Fdaily")
	p.reads("#lock-state", "done")
	p.reads("#holders", "exit 3")
	p.click("#reset")
	p.reads("dialog", "may run again at once")
	p.click("dialog .yes")
	p.reads("#lock-state", "free")
}

func TestAWaiterIsRemoved(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("deploy", 10*minute, map[string]any{"text": "holder"})
	waits := s.waits("deploy", "the-one-that-waits", map[string]any{"text": "gitlab 88124"})
	p := open(t, s.url+"/#/lock/deploy")
	p.reads("#waiters", "gitlab 88124")
	p.click(".remove")
	p.reads("dialog", "It gives up its place")
	p.write("dialog [name=reason]", "not needed any more")
	p.click("dialog .yes")
	p.reads("#history", "left the queue gitlab 88124")
	p.reads("#history", "not needed any more")
	if status := <-waits; status != http.StatusGone {
		t.Errorf("the waiter: %d, want 410", status)
	}
	p.reads("#lock-state", "held")
	p.reads("[aria-labelledby=queue-title]", "Nobody waits")
}

// embedded is a service in this process, with something before it.
func embedded(t *testing.T, before func(w http.ResponseWriter, r *http.Request, service http.Handler)) *service {
	t.Helper()
	return embeddedWith(t, nil, before)
}

func embeddedWith(t *testing.T, opts *web.Options, before func(w http.ResponseWriter, r *http.Request, service http.Handler)) *service {
	t.Helper()
	return embeddedOn(t, memory.New(), opts, before)
}

// embeddedOn serves the locks of d, which it closes.
func embeddedOn(t *testing.T, d driver.Driver, opts *web.Options, before func(w http.ResponseWriter, r *http.Request, service http.Handler)) *service {
	t.Helper()
	server, err := web.New(d, opts)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { before(w, r, server) }))
	t.Cleanup(func() { server.Drain(); h.Close(); server.Close(); d.Close() })
	return &service{t: t, url: h.URL}
}

// passed answers as a service does.
func passed(w http.ResponseWriter, r *http.Request, service http.Handler) { service.ServeHTTP(w, r) }

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

// Figures of one prefix do not stand under another while the answer is awaited.
func TestFiguresAreOfThePrefixThatIsShown(t *testing.T) {
	t.Parallel()
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.URL.Path == "/v1/overview" && r.URL.Query().Get("prefix") != "" {
			<-r.Context().Done()
			return
		}
		service.ServeHTTP(w, r)
	})
	p := open(t, s.url+"/#/")
	p.reads(".figures", "Leases held")
	eval[bool](p, `(location.hash = '#/?prefix=b', true)`)
	p.until("the figures go", func() bool {
		return eval[bool](p, `document.querySelector('#prefix').value === 'b' && !document.querySelector('.figures')`)
	}, ".view")
	p.reads(".view", "Loading")
}

// Figures of a store that is looked at less often, because a look takes long, are not called an answer that does not come.
func TestFiguresOfAStoreThatIsLookedAtLessOften(t *testing.T) {
	t.Parallel()
	var age atomic.Int64
	var hangs atomic.Bool
	age.Store(15_000)
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.URL.Path != "/v1/overview" {
			service.ServeHTTP(w, r)
			return
		}
		if hangs.Load() {
			<-r.Context().Done()
			return
		}
		answer(t, w, service, r, func(figures map[string]any) {
			figures["age_ms"], figures["pause_ms"], figures["store"] = age.Load(), 20_000, "up"
		})
	})
	p := open(t, "about:blank")
	p.before(silence)
	p.do(chromedp.Navigate(s.url))
	p.reads(".figures", "Leases held")
	p.reads("#status", "live")
	if text := p.text(".stale"); text != "" {
		t.Errorf("it reads %q", text)
	}
	age.Store(27_000)
	p.reads(".stale", "As of")
	age.Store(6000)
	p.reads("#status", "live")
	eval[bool](p, `delete window.givenUp && delete window.unknown`)
	hangs.Store(true)
	p.saysSoBeforeItGivesUp()
}

// Events come by themselves, and are held back while somebody reads.
func TestEventsArePausedAndFiltered(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("before", "one", "from before", minute)
	p := open(t, s.url+"/#/events")
	p.reads("#live", "live")
	p.reads("#events", "before granted to from before")
	s.hold("apply", "two", "worker-2", minute)
	p.reads("#events", "apply granted to worker-2")
	p.click("#pause")
	s.hold("deploy", "three", "worker-3", minute)
	p.reads("#pause", "1 new")
	if text := p.text("#events"); strings.Contains(text, "deploy") {
		t.Errorf("paused, it reads %q", text)
	}
	p.click("#pause")
	p.reads("#events", "deploy granted to worker-3")
	s.post("release", map[string]any{"name": "deploy", "owner": "three"})
	p.reads("#events", "deploy released by worker-3")
	p.write("#q", "worker-2")
	p.until("others are left out", func() bool {
		text := p.text("#events")
		return strings.Contains(text, "worker-2") && !strings.Contains(text, "worker-3")
	}, "#events")
	if hash := eval[string](p, `location.hash`); hash != "#/events?q=worker-2" {
		t.Errorf("the address is %q", hash)
	}
}

func TestWhoAmI(t *testing.T) {
	t.Parallel()
	s := guarded(t, `[{"prefix":"ci/","rights":["view","lock"]}]`)
	p := open(t, s.url+"/#/me")
	p.write("#bearer", s.token)
	p.click("#sign-in .main")
	p.reads("#me", "looks")
	p.reads(".sum", "Signed in as looks by an access token")
	p.reads("tbody", "ci/…")
	p.reads("main", "memory")
}

// A service that does not tell what the console asks for is not taken for one that has nothing to tell.
func TestAnOlderService(t *testing.T) {
	t.Parallel()
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		switch r.URL.Path {
		case "/v1/me", "/v1/overview", "/v1/history", "/v1/reserve", "/v1/remove", "/v1/reset":
			http.NotFound(w, r)
		default:
			service.ServeHTTP(w, r)
		}
	})
	s.hold("deploy", "one", "ci", minute)
	p := open(t, s.url)
	p.reads("main", "does not provide")
	eval[string](p, `location.hash = '#/lock/deploy'`)
	p.reads("#lock-state", "held")
	p.reads("main", "as received by this tab")
	if eval[bool](p, `Boolean(document.querySelector('#reserve'))`) {
		t.Error("it offers what the service cannot do")
	}
	p.click("#holders .evict")
	p.write("dialog [name=reason]", "gone")
	p.write("dialog [name=typed]", "deploy")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.reads("#lock-state", "free")
	p.reads("#history", "evicted ci")
}

// A line in a chart breaks where nobody looked, and earlier points stay at the time when they happened.
func TestChartsLeaveOutWhatNobodySaw(t *testing.T) {
	t.Parallel()
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.URL.Path != "/v1/overview" {
			service.ServeHTTP(w, r)
			return
		}
		points := []any{}
		for _, minutes := range []int{0, 1, 2, 40, 41, 42} {
			if minutes > 0 || r.URL.Query().Get("prefix") == "" {
				points = append(points, map[string]any{"ago_ms": minutes * 60_000, "held": 4 + minutes%2, "grants": 1, "lost": 1})
			}
		}
		answer(t, w, service, r, func(figures map[string]any) {
			figures["series"] = map[string]any{"step_ms": 60_000, "points": points}
		})
	})
	p := open(t, s.url)
	// The minutes at which the lines of a figure are drawn.
	lines := func(figure int) string {
		return eval[string](p, fmt.Sprintf(`[...document.querySelectorAll('.figure:nth-child(%d) path.line')].map((line) =>
			line.getAttribute('d').match(/[\d.]+ /g).map((x) => ((line.ownerSVGElement.clientWidth - 3 - x) * 42 / (line.ownerSVGElement.clientWidth - 6)).toFixed(0)).join(' ')).join(', ')`, figure))
	}
	drawn := func(figure int, want string) {
		t.Helper()
		p.until("lines at "+want, func() bool { return lines(figure) == want }, ".figures")
	}
	drawn(1, "0 1 2, 40 41 42")
	drawn(7, "1 2, 40 41 42") // without the current minute, which is not over
	hovers := func(figure int, part float64, want string) {
		t.Helper()
		eval[bool](p, fmt.Sprintf(`(() => { const chart = document.querySelector('.figure:nth-child(%d) svg'), box = chart.getBoundingClientRect()
			return chart.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: box.left + %g * box.width })) })()`, figure, part))
		p.reads(fmt.Sprintf(".figure:nth-child(%d) .tip", figure), want)
	}
	hovers(1, 0.06, "40 min ago")
	hovers(5, 0.06, "40 min ago")
	eval[string](p, `location.hash = '#/?prefix=b'`)
	drawn(7, "1 2, 40 41 42")
}

// A pause is of what was shown: events of another kind are not looked for among those that it keeps.
func TestAPauseEndsWithAnotherFilter(t *testing.T) {
	t.Parallel()
	s := embedded(t, passed)
	s.hold("x", "one", "", minute)
	s.post("release", map[string]any{"name": "x", "owner": "one"})
	p := open(t, s.url+"/#/events?kind=granted")
	p.reads("#events", "x granted")
	p.click("#pause")
	p.reads("#live", "paused")
	eval[bool](p, `(() => { const kind = document.getElementById('kind'); kind.value = 'released'; return kind.dispatchEvent(new Event('change', { bubbles: true })) })()`)
	p.reads("#events", "x released")
	p.reads("#live", "live")
	p = open(t, s.url+"/#/events?kind=evicted")
	p.reads(".known", "No event matches.")
	p.click("#pause")
	p.reads("#pause", "(0 new)") // there is nothing of which more could have come
}

// An instance that does not look at the store does not say what it cannot know of others.
func TestFiguresOfThisInstanceAlone(t *testing.T) {
	t.Parallel()
	s := embeddedWith(t, &web.Options{History: web.HistoryOptions{Every: -1}}, passed)
	s.grant("deploy", minute, map[string]any{"host": "web-1"})
	p := open(t, s.url)
	p.reads("#partial", "not the whole store")
	p.reads(".figure:nth-child(1) .value", "1")
	for at, never := range map[string]string{
		"[aria-labelledby=hosts]": "No holder", "[aria-labelledby=contended]": "Nobody waits", ".figure:nth-child(3)": "Nobody waits",
	} {
		if text := p.text(at); strings.Contains(text, never) || !strings.Contains(text, "unknown") {
			t.Errorf("%s reads %q", at, text)
		}
	}
}
