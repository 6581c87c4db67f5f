package page

import (
	"context"
	"fmt"
	"net/http"
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

// A dialog says what would come of it now: whoever holds the lock, and whether anybody waits.
func TestDialogsSayWhatWouldHappen(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("deploy", 10*minute, map[string]any{"text": "gitlab 88123"})
	for _, owner := range []string{"export-1", "export-2", "export-3"} {
		s.shares("tenant", owner, 2, 1)
	}
	p := open(t, s.url+"/#/lock/deploy")
	p.reads("#lock-state", "held")
	p.click("#reserve")
	p.reads("dialog .facts", "gitlab 88123 holds it, so this is refused until its lease ends.")
	p.click("dialog .no")
	eval[string](p, `location.hash = '#/lock/tenant'`)
	p.reads("#lock-name", "tenant")
	p.reads("#waiters", "export-3")
	p.click("#limit")
	p.types("dialog [name=limit]", "1")
	p.reads("dialog .effects", "None of those waiting would be let in.")
	p.click("dialog .no")
	eval[string](p, `location.hash = '#/lock/free'`)
	p.reads("#lock-state", "free")
	p.click("#reserve")
	if text := p.text("dialog .facts"); text != "" {
		t.Errorf("of a free lock: %q", text)
	}
	p.write("dialog [name=reason]", "to see it")
	p.click("dialog .yes")
	p.reads("dialog .answer", "Reserved until")
	p.click("dialog .no")
	p.click(".release")
	p.reads("dialog .facts", "As of")
	p.reads("dialog .facts", "Nobody waits, so the lock becomes free.")
	p.click("dialog .no")
	s.waits("free", "a-waiter", map[string]any{"text": "gitlab 88124"})
	p.reads("#waiters", "gitlab 88124")
	p.click(".release")
	p.reads("dialog .facts", "Next in the queue: gitlab 88124")
}

// Rights that were told stay known while the service does not answer.
func TestRightsAreNotForgotten(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if silent.Load() {
			http.Error(w, `{"outcome":"unknown","error":"the store does not answer"}`, http.StatusServiceUnavailable)
			return
		}
		service.ServeHTTP(w, r)
	})
	s.hold("deploy", "one", "ci", 10*minute)
	p := open(t, s.url+"/#/lock/deploy")
	p.reads("#holders", "Evict")
	silent.Store(true)
	p.reads("#status", "UNKNOWN")
	eval[bool](p, `(window.wrong = '', setInterval(() => { wrong ||= document.querySelector('#may-not')?.textContent ?? '' }, 10), dispatchEvent(new Event('online')), true)`)
	eval[bool](p, `import('./me.js').then((m) => m.askWho()), true`)
	p.reads("main", "As of")
	p.stays("#may-not", "")
	if said := eval[string](p, `wrong`); said != "" {
		t.Errorf("it says %q", said)
	}
	p.reads("#holders", "Evict")
}

// A lock that a filter finds by a waiter says which.
func TestAFilterFindsWhoWaits(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("deploy", 10*minute, map[string]any{"text": "holder", "host": "ci-3"})
	s.waits("deploy", "a-waiter", map[string]any{"text": "gitlab 88124", "host": "web-1", "labels": map[string]string{"team": "search"}})
	p := open(t, s.url+"/#/locks?host=web-1")
	p.reads(".row .found", "gitlab 88124 waits, number 1")
	eval[string](p, `location.hash = '#/locks?label=team%3Dsearch'`)
	p.reads(".row .found", "gitlab 88124 waits, number 1")
	eval[string](p, `location.hash = '#/locks?host=ci-3'`)
	p.until("the holder is found", func() bool { return p.text(".row") != "" && p.text(".row .found") == "" }, ".row")
}

// A holder that keeps a lock although others wait is not said to give it up when others wait.
func TestWhatIsKeptAlthoughOthersWait(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("cache/index", 10*minute, map[string]any{"kind": "keeps", "program": "search", "pid": 7})
	s.waits("cache/index", "a-waiter", map[string]any{"program": "reindex"})
	p := open(t, s.url+"/#/lock/cache%2Findex")
	p.reads("#waiters", "reindex")
	p.reads("#holders", "Others wait, so it is to give the lock up once it is not using it.")
	if text := p.text("#holders"); strings.Contains(text, "when others wait") {
		t.Errorf("it reads %q", text)
	}
}

// The marks of a timeline stand above the bars, and runs that follow each other stand in one line.
func TestMarksAreAboveBars(t *testing.T) {
	t.Parallel()
	past := hourAgo(time.Now())
	for i := range past.entries {
		if past.entries[i].Kind == "granted" {
			past.entries[i].Time = past.entries[i].Time.Add(-20 * time.Millisecond)
		}
	}
	p := open(t, embeddedWith(t, &web.Options{History: web.HistoryOptions{File: past}}, func(w http.ResponseWriter, r *http.Request, service http.Handler) { service.ServeHTTP(w, r) }).url+"/#/lock/deploy%2Fproduction?range=1h")
	p.until("the marks are there", func() bool { return eval[int](p, `document.querySelectorAll('.timeline .end').length`) == 2 }, ".timeline")
	if hidden := eval[int](p, `(() => {
		const all = [...document.querySelectorAll('.timeline .span rect, .timeline .end')]
		return all.findLastIndex((e) => e.matches('rect')) > all.findIndex((e) => e.matches('.end')) ? 1 : 0
	})()`); hidden > 0 {
		t.Error("a bar is drawn over a mark")
	}
	if lanes := eval[int](p, `new Set([...document.querySelectorAll('.timeline .span rect')].map((e) => e.getAttribute('y'))).size`); lanes != 1 {
		t.Errorf("%d lines", lanes)
	}
}

// ends releases a lease whose name is kept on.
func (s *service) ends(name, owner, kept string) {
	s.t.Helper()
	if status := s.post("release", map[string]any{"name": name, "owner": owner, kept: 3_600_000}); status != http.StatusOK {
		s.t.Fatalf("release %q: %d", name, status)
	}
}

// types sets a field of a dialog to a text.
func (p *tab) types(field, text string) {
	p.t.Helper()
	p.do(chromedp.SetValue(chromedp.CSS(field), text))
	eval[bool](p, fmt.Sprintf(`document.querySelector(%q).dispatchEvent(new Event('input', { bubbles: true }))`, field))
}

// Somebody holds what another one's share is kept of, however old the kept share is.
func TestAKeptShareBesideAHolder(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.shares("gpu", "worker-a", 3, 1)
	s.shares("gpu", "worker-b", 3, 1)
	s.ends("gpu", "worker-a", "at_least_ms")
	p := open(t, s.url+"/#/locks")
	p.reads(".row .c-state", "held")
	p.reads(".row .c-holder", "worker-b")
	p.reads(".row .c-mode", "2 of 3")
	p.click(".row a")
	p.reads("#lock-state", "held")
	p.reads(".sum", "Shared: 2 of 3.")
	if text := p.text(".sum"); strings.Contains(text, "Nobody holds") {
		t.Errorf("it reads %q", text)
	}
	p.click("#reserve")
	p.reads("dialog .facts", "worker-b holds it, so this is refused until its lease ends.")
}

// A waitless engine does not know how long waiters have waited.
type waitless struct{ *memory.Driver }

func (d waitless) Inspect(ctx context.Context, name string) (driver.State, error) {
	state, err := d.Driver.Inspect(ctx, name)
	for i := range state.Waiters {
		state.Waiters[i].Waited = 0
	}
	return state, err
}

func (d waitless) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	for _, state := range states {
		for i := range state.Waiters {
			state.Waiters[i].Waited = 0
		}
	}
	return states, next, err
}

// Where nobody knows how long those who wait have waited, they are not said to be none, or to have just come.
func TestAWaitOfUnknownLength(t *testing.T) {
	t.Parallel()
	s := embeddedOn(t, waitless{memory.New()}, nil, passed)
	s.grant("deploy", 10*minute, map[string]any{"text": "holder"})
	s.waits("deploy", "a-waiter", map[string]any{"text": "gitlab 88124"})
	p := open(t, s.url+"/#/lock/deploy")
	p.reads("#waiters", "gitlab 88124")
	p.reads(".sum", "1 waiting.")
	eval[string](p, `location.hash = '#/'`)
	p.reads(".figure:nth-child(2) .value", "1")
	p.reads(".figure:nth-child(3) .of", "unknown")
	p.reads("[aria-labelledby=contended] tbody", "deploy\t1\t–")
}

// A later page of the list does not tell that nothing is held when its own locks are free.
func TestALaterPageThatIsEmptyByNow(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	for i := range 51 {
		s.hold(fmt.Sprintf("n/%02d", i), fmt.Sprint("owner-", i), "", 10*minute)
	}
	p := open(t, s.url+"/#/locks")
	p.reads("#count", "50 on this page")
	p.click("#on")
	p.reads("#count", "1 on the last page")
	if status := s.post("release", map[string]any{"name": "n/50", "owner": "owner-50"}); status != http.StatusOK {
		t.Fatalf("release: %d", status)
	}
	p.until("it is empty", func() bool { return p.text(".empty") != "" }, "#count")
	if text := strings.TrimSpace(p.text(".empty")); text != "Nothing on this page." {
		t.Errorf("it reads %q", text)
	}
	eval[string](p, `location.hash = '#/locks?state=held&p=3'`)
	p.reads("#count", "50 of 50")
	p.reads(".row", "n/00")
}

// The dialog describes what a limit would change at the time of the last look, which it names.
func TestTheEffectOfALimitIsOfTheLastLook(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	if status := s.post("limit", map[string]any{"name": "tenant", "limit": 1}); status != http.StatusOK {
		t.Fatalf("limit: %d", status)
	}
	for _, owner := range []string{"export-1", "export-2"} {
		s.shares("tenant", owner, 0, 1)
	}
	p := open(t, s.url+"/#/lock/tenant")
	p.reads("#waiters", "export-2")
	p.click("#limit")
	p.types("dialog [name=limit]", "5")
	p.reads("dialog .effects", "1 of the 1 waiting")
	s.shares("tenant", "export-3", 0, 1)
	p.reads("#waiters", "export-3")
	p.types("dialog [name=limit]", "6")
	p.reads("dialog .effects", "2 of the 2 waiting")
}

// A reset ends what was shown when it was asked for, and not the next period, whose job would run twice.
func TestAResetIsOfThePeriodThatIsShown(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	run := func(owner string) {
		s.hold("cron/daily", owner, "report of "+owner, minute)
		s.ends("cron/daily", owner, "linger_ms")
	}
	run("friday")
	p := open(t, s.url+"/#/lock/cron%2Fdaily")
	p.reads("#lock-state", "done")
	p.click("#reset")
	p.reads("dialog .facts", "As of")
	p.reads("dialog .facts", "report of friday")
	if status := s.post("reset", map[string]any{"name": "cron/daily"}); status != http.StatusOK {
		t.Fatalf("reset: %d", status)
	}
	run("saturday")
	p.click("dialog .yes")
	p.reads("dialog .answer", "Nothing was reset: another run has finished since.")
	p.click("dialog .no")
	p.reads("#holders", "report of saturday")
	p.click("#reset")
	p.click("dialog .yes")
	p.reads("#lock-state", "free")
}

// A service that refuses has answered, and says why what is shown is old.
func TestARefusalIsNotSilence(t *testing.T) {
	t.Parallel()
	var refuses atomic.Int64
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if status := int(refuses.Load()); status != 0 && strings.HasPrefix(r.URL.Path, "/v1/") {
			http.Error(w, `{"outcome":"refused"}`, status)
			return
		}
		service.ServeHTTP(w, r)
	})
	s.hold("deploy", "one", "ci", 10*minute)
	p := open(t, s.url+"/#/lock/deploy")
	p.reads("#holders", "Evict")
	refuses.Store(http.StatusTooManyRequests)
	p.reads("#status", "too many calls")
	p.reads(".stale", "The service refuses to answer: too many calls.")
	eval[bool](p, `import('./me.js').then((m) => m.askWho()), true`)
	p.stays("#may-not", "") // the rights are still known
	p.reads("#holders", "Evict")
	refuses.Store(http.StatusForbidden)
	p.reads("#status", "not allowed")
	p.reads(".stale", "Not allowed.")
	if text := p.text(".stale"); strings.Contains(text, "does not answer") {
		t.Errorf("it reads %q", text)
	}
}

// A token with a character that no request can carry is a wrong one.
func TestATokenThatCannotBeSent(t *testing.T) {
	t.Parallel()
	s := guarded(t, `[{"prefix":"","rights":["view","lock"]}]`)
	s.hold("deploy", "one", "ci", 10*minute)
	p := open(t, s.url+"/#/locks")
	p.reads("#sign-in", "asks for an access token")
	p.types("#bearer", s.token+"\u200b")
	p.click("#sign-in .main")
	p.reads("#sign-in", "not known here")
	p.types("#bearer", s.token)
	p.click("#sign-in .main")
	p.reads(".row", "ci")
}

// An address with a name as somebody has typed it is that name's.
func TestAnAddressThatIsNotEncoded(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("50%", "one", "ci", 10*minute)
	p := open(t, s.url+"/#/lock/50%")
	p.reads("#lock-name", "50%")
	p.reads("#lock-state", "held")
}

// Names that differ only in spaces look different.
func TestSpacesAreSeen(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	for i, name := range []string{" ", "a  b", "a b", "a b "} {
		s.hold(name, fmt.Sprint("owner-", i), "ci", 10*minute)
	}
	p := open(t, s.url+"/#/locks")
	p.reads("#count", "4 in all")
	for i, want := range []string{`\u{20}`, "a  b", "a b", `a b\u{20}`} {
		if text := p.text(fmt.Sprintf(".row:nth-child(%d) .lock-link", i+1)); text != want {
			t.Errorf("row %d reads %q, want %q", i+1, text, want)
		}
	}
	p.click(".row a")
	p.reads("#lock-name", `\u{20}`)
	p.reads("#lock-state", "held")
}

// A caller who is refused a name that nobody holds is not told that somebody holds it.
func TestARefusalSaysWhoIsInTheWay(t *testing.T) {
	t.Parallel()
	var young atomic.Bool
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.URL.Path != "/v1/reserve" || !young.Load() {
			service.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"outcome":"busy","code":"not_yet","error":"the server may have forgotten leases"}`)
	})
	s.hold("kept", "job", "", minute)
	s.ends("kept", "job", "at_least_ms")
	s.hold("held", "program", "", minute)
	for _, c := range []struct{ name, want string }{
		{"kept", "Refused: a finished job keeps it."},
		{"held", "Refused: somebody holds it."},
		{"other", "Not now: the server may have forgotten leases"},
	} {
		young.Store(c.name == "other")
		p := open(t, s.url+"/#/lock/"+c.name)
		p.click("#reserve")
		p.write("dialog [name=reason]", "tuning")
		p.do(chromedp.KeyEvent(kb.Enter))
		p.until("it is refused", func() bool { return p.text("dialog .answer") != "" }, "dialog")
		if text := p.text("dialog .answer"); text != c.want {
			t.Errorf("%s: it reads %q, want %q", c.name, text, c.want)
		}
	}
}

// A timeline has those who wait now, although nobody knows since when.
func TestATimelineHasWaitsOfUnknownLength(t *testing.T) {
	t.Parallel()
	p := open(t, embedded(t, passed).url)
	most := run(p, chromedp.Evaluate[int](`import('./parts/timeline.js').then(({ waitsOf }) =>
		Math.max(0, ...waitsOf([], { waiters: [{ handle: 'a' }, { handle: 'b' }] }, 3_600_000).map((step) => step.count)))`, chromedp.EvalAwaitPromise))
	if most != 2 {
		t.Errorf("at most %d wait, want 2", most)
	}
}

// Letters and marks that nothing is drawn for are seen too.
func TestLettersWithoutAShapeAreSeen(t *testing.T) {
	t.Parallel()
	s := embedded(t, passed)
	s.hold("a\u3164", "one", "\u034f\ufe0f\u115f", minute)
	p := open(t, s.url+"/#/locks")
	p.reads(".row .lock-link", `a\u{3164}`)
	p.reads(".row .c-holder", `\u{34f}\u{fe0f}\u{115f}`)
}
