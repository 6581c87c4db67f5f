package page

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	web "github.com/leasehold-go/leasehold/serve"
)

// A lock that a program keeps between uses is not called held as others are, and one that others wait for is marked.
func TestWhatIsKeptBetweenUses(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("cache/index", 30*time.Second, map[string]any{"kind": "keeps", "program": "search", "pid": 7, "host": "web-1"})
	s.grant("plain", 10*minute, map[string]any{"program": "worker", "pid": 8})
	p := open(t, s.url+"/#/locks")
	p.reads(".row:nth-child(1) .c-state", "kept")
	p.reads(".row:nth-child(2) .c-state", "held")
	eval[string](p, `location.hash = '#/locks?state=keeps'`)
	p.reads("#count", "1 of 2")
	eval[string](p, `location.hash = '#/locks?state=held'`)
	p.reads("#count", "2 of 2") // it is held as well
	eval[string](p, `location.hash = '#/lock/cache%2Findex'`)
	p.reads(".sum", "Kept between uses by search[7] on web-1")
	p.reads("#holders", "kept between uses")
	p.reads("#holders", "It may not be using it right now.")
	if text := p.text("#holders .is-wanted"); text != "" {
		t.Errorf("nobody waits, and it reads %q", text)
	}
	s.waits("cache/index", "a-waiter", map[string]any{"program": "reindex"})
	p.reads("#holders .is-wanted", "others wait")
	p.reads("#lock-state", "at risk") // for it is renewed, as long as it is kept
	p.click("#language")
	p.reads("#holders", "两次使用之间待用")
	p.reads("#holders .is-wanted", "有人等待")
}

// The preference of candidates stands in the queue, if any has one.
func TestCandidatesHavePreferences(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("leader", 10*minute, map[string]any{"program": "old"})
	s.waits("leader", "waiter-1", map[string]any{"program": "other"})
	p := open(t, s.url+"/#/lock/leader")
	p.reads("#waiters", "other")
	if text := p.text("#waiters"); strings.Contains(text, "Preference") {
		t.Errorf("nobody has a preference, and it reads %q", text)
	}
	s.waits("leader", "waiter-2", map[string]any{"program": "new", "preference": 7})
	p.reads("#waiters thead", "Preference")
	p.reads("#waiters tbody tr:has(td:nth-child(5)):last-child", "7")
}

// A timeline that lacks older entries says from when on, and so does one whose history has a gap that the service warns of.
func TestOlderEntriesAreLeftOut(t *testing.T) {
	t.Parallel()
	now := time.Now()
	old := &past{}
	for i := range 700 {
		kind := []string{"granted", "released"}[i%2]
		old.entries = append(old.entries, web.HistoryEntry{
			Seq: int64(i + 1), Time: now.Add(-time.Duration(700-i) * 4 * time.Second), Kind: kind, Name: "busy", Who: "AAAA",
			WhoID: fmt.Sprint("AAAA~", i/2), Token: fmt.Sprint(i/2 + 1), Mode: "exclusive", Note: "worker",
		})
	}
	warns := make(chan bool, 1)
	s := embeddedWith(t, &web.Options{History: web.HistoryOptions{File: old}}, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.URL.Path != "/v1/history" || len(warns) == 0 {
			service.ServeHTTP(w, r)
			return
		}
		answer(t, w, service, r, func(page map[string]any) { page["warning"] = "the history file does not answer" })
	})
	p := open(t, s.url+"/#/lock/busy?range=1h")
	p.reads(".cut", "Only the latest 500 entries are shown, from ")
	p.until("the timeline says so", func() bool {
		return eval[bool](p, `document.querySelector('.timeline svg').textContent.includes('older entries not shown')`)
	}, ".timeline")
	p.reads("section:has(> h2#history-title)", "and at least 400 more")
	p.click("#language")
	p.reads(".cut", "只显示最近的 500 条记录")
	p.click("#language")
	eval[string](p, `location.hash = '#/lock/busy?range=15m'`)
	p.until("all of 15 minutes is there", func() bool { return p.text("#history") != "" && p.text(".cut") == "" }, ".timeline")
	warns <- true
	p.reads("section:has(> .head > h2#timeline-title) .warn", "Entries may be missing: the history file does not answer")
}
