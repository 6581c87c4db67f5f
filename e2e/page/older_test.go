package page

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	web "github.com/leasehold-go/leasehold/serve"
)

// A search that is cut short before it finds anything does not say that nothing happened, and goes on where it stopped.
func TestASearchThatIsCutShort(t *testing.T) {
	t.Parallel()
	old := hourAgo(time.Now())
	old.stops = 5
	s := embeddedWith(t, &web.Options{History: web.HistoryOptions{File: old}}, passed)
	p := open(t, s.url+"/#/lock/deploy%2Fproduction?range=1h")
	p.reads("section:has(> h2#history-title) .empty", "older entries have not been searched yet")
	if drawn := eval[string](p, `[...document.querySelectorAll('.timeline .unseen')].map((r) => r.getAttribute('x') + ' ' + (r.getAttribute('width') === r.ownerSVGElement.getAttribute('width'))).join()`); drawn != "0 true" {
		t.Errorf("drawn as not seen: %q, want all of the period", drawn)
	}
	p.click("section:has(> h2#history-title) .empty a")
	p.reads("#events", "deploy/production queued gitlab 88101")
	eval[string](p, fmt.Sprintf(`location.hash = '#/events?until=%s'`, time.Now().Add(-50*time.Minute).UTC().Format(time.RFC3339)))
	p.reads(".known .empty", "older entries have not been searched yet")
	if text := p.text("#reach"); text != "" {
		t.Errorf("it says how far it has seen: %q", text)
	}
	p.click("#older")
	p.reads("#events li", "deploy/production queued gitlab 88102")
	p.reads("#live", "up to")
	p.reads("#reach", "Since")
}

// Entries that tell of earlier times than their neighbours, as what a look finds late does, let no page leave others out.
func TestOlderEventsLeaveNoneOut(t *testing.T) {
	t.Parallel()
	old := &past{}
	for i := range int64(400) {
		old.entries = append(old.entries, web.HistoryEntry{Seq: i + 1, Time: time.Now().Add(time.Duration(i-400) * time.Second), Kind: "granted", Name: fmt.Sprint("n/", i+1)})
	}
	old.entries[300-1].Time = old.entries[50-1].Time
	s := embeddedWith(t, &web.Options{History: web.HistoryOptions{File: old}}, passed)
	p := open(t, s.url+"/#/events")
	p.reads("#events li", "n/400 granted")
	p.reads("#reach", "200 events, the oldest from ")
	p.click("#older")
	p.until("the next page", func() bool { return !strings.Contains(p.text("#events li"), "n/400") }, "#events")
	p.reads("#events li", "n/200 granted")
	p.reads("#events li:last-child", "n/1 granted")
	// Another instance, or one that has begun anew, does not know the page.
	eval[string](p, `location.hash = location.hash.replace('-past', '-other')`)
	p.until("the page begins at its time", func() bool {
		return strings.Contains(p.text("#events"), "n/201 granted") && !strings.Contains(p.text("#events"), "n/350 ")
	}, "#events")
}

// A search shows all that it found, because Older goes on after what was searched.
func TestSearchShowsAllThatItFound(t *testing.T) {
	t.Parallel()
	old := &past{}
	for i := range int64(400) {
		old.entries = append(old.entries, web.HistoryEntry{Seq: i + 1, Time: time.Now().Add(time.Duration(i-400) * time.Second), Kind: "granted", Name: fmt.Sprint("n/", i+1)})
	}
	p := open(t, embeddedWith(t, &web.Options{History: web.HistoryOptions{File: old}}, passed).url+"/#/events?q=N%2F")
	p.until("all are shown", func() bool { return eval[int](p, `document.querySelectorAll('#events li').length`) == 400 }, "#events")
}

// Without a history, a lock's page says what the stream of events has left out: the time while it was cut, and what the
// tab has no room for.
func TestWhatTheStreamLeavesOut(t *testing.T) {
	t.Parallel()
	cuts := make(chan struct{})
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		switch r.URL.Path {
		case "/v1/history":
			http.NotFound(w, r)
			return
		case "/v1/events":
			ctx, cut := context.WithCancel(r.Context())
			defer cut()
			r = r.WithContext(ctx)
			go func() {
				select {
				case <-cuts:
					cut()
				case <-ctx.Done():
				}
			}()
		}
		service.ServeHTTP(w, r)
	})
	p := open(t, s.url+"/#/lock/deploy")
	p.reads("#history-title ~ div", "as received by this tab")
	heard := func(what, is string) {
		t.Helper()
		p.until(what, func() bool {
			return run(p, chromedp.Evaluate[bool](`import('./hear.js').then(({ heard }) => `+is+`)`, chromedp.EvalAwaitPromise))
		}, "#history")
	}
	unseen := `document.querySelectorAll('.timeline .unseen').length`
	heard("the stream is open", `heard.open`)
	cuts <- struct{}{}
	p.reads("#history", "gap: events may be missing")
	heard("it is open again", `heard.open`)
	p.until("the gap is drawn, and what was before", func() bool { return eval[int](p, unseen) == 2 }, ".timeline")
	s.hold("deploy", "one", "ci run 17", 10*minute)
	p.reads("#history", "granted to ci run 17")
	for i := range 500 {
		s.hold(fmt.Sprint("busy/", i), fmt.Sprint("owner-of-busy-", i), "", 10*minute)
	}
	heard("there is no room for what was first", `heard.events[0].name === 'busy/499' && heard.events.length === 500 && heard.from === heard.events[499].at`)
	p.until("it is left out, and said to be", func() bool { return p.text("#history") == "" && eval[int](p, unseen) == 1 }, "#history")
}
