package page

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	who "github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/servers"
	web "github.com/leasehold-go/leasehold/serve"
)

// shares takes or waits for a share of a name, until the test ends.
func (s *service) shares(name, owner string, limit, weight int) {
	s.t.Helper()
	share := map[string]any{"name": name, "owner": owner, "ttl_ms": 600_000, "mode": "shared", "weight": weight, "queue": true, "details": map[string]any{"program": owner}}
	if limit > 0 {
		share["limit"] = limit
	}
	status := s.post("acquire", share)
	if share["wait_ms"], share["queue"] = 25_000, false; status == http.StatusOK {
		return
	}
	ctx := s.t.Context()
	go func() {
		for ctx.Err() == nil {
			if status, err := s.try("acquire", share); err != nil || status != http.StatusConflict {
				return
			}
		}
	}()
}

// Who waits is told why: for a holder, for a limit and whose, or for a turn.
func TestWhyTheFirstWaits(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("tenant/9", "one", "migration", 10*minute)
	s.shares("tenant/9", "export-of-tenant-9", 5, 1)
	s.shares("index", "reader-of-the-index", 0, 1)
	s.waits("index", "writer-of-the-index", nil)
	s.shares("gpu", "training", 24, 16)
	s.shares("gpu", "serving", 24, 4)
	s.shares("gpu", "tuning-which-is-heavy", 24, 8)
	s.shares("gpu", "evaluation", 24, 2)
	if status := s.post("limit", map[string]any{"name": "tenant/7", "limit": 2}); status != http.StatusOK {
		t.Fatalf("limit: %d", status)
	}
	for i := range 5 {
		s.shares("tenant/7", fmt.Sprint("export-", i), 4, 1)
	}
	s.shares("tenant/7", "export-that-is-heavy", 4, 2)
	p := open(t, s.url)
	for name, why := range map[string]string{
		"tenant/9": "waits for the exclusive holder, not for a limit",
		"index":    "wants the lock alone",
		"gpu":      "20 of 24 used, and it needs 8. There is room for some behind it",
		"tenant/7": "2 of 2 used. An operator set this limit; the holders ask for 4",
	} {
		eval[string](p, fmt.Sprintf(`location.hash = '#/lock/' + encodeURIComponent(%q)`, name))
		p.reads("#lock-name", name)
		p.reads(".sum", why)
	}
	eval[string](p, `location.hash = '#/lock/tenant%2F7'`)
	p.reads("#lock-name", "tenant/7")
	p.click("#limit")
	effect := func(typed, want string) {
		t.Helper()
		p.do(chromedp.SetValue(chromedp.CSS("dialog [name=limit]"), typed))
		eval[bool](p, `document.querySelector('dialog [name=limit]').dispatchEvent(new Event('input', { bubbles: true }))`)
		p.reads("dialog .effects", want)
	}
	effect("3", "1 of the 4 waiting would be let in")
	effect("0", "The holders' own limit of 4 would count")
	effect("0", "2 of the 4 waiting would be let in")
	effect("1", "2 are in use: nobody is let in")
	effect("1", "1 of those waiting need more than that")
	p.do(chromedp.SetValue(chromedp.CSS("dialog [name=limit]"), "many"))
	eval[bool](p, `document.querySelector('dialog [name=limit]').dispatchEvent(new Event('input', { bubbles: true }))`)
	p.until("nothing is said of what is no limit", func() bool { return !eval[bool](p, `Boolean(document.querySelector('dialog .effects'))`) }, "dialog")
	effect("0", "2 of the 4 waiting would be let in")
	p.click("dialog .yes")
	p.reads(".sum", "4 of 4") // as was said
	p.reads("#waiters", "export-that-is-heavy")
}

// Remove is offered for those whom this instance can remove.
func TestARemovalIsOfferedWhereItWorks(t *testing.T) {
	t.Parallel()
	store := "redis://" + servers.StartRedis(t).Addr() + "/0"
	s, other := serve(t, store, "127.0.0.1:0"), serve(t, store, "127.0.0.1:0")
	s.hold("deploy", "one", "holder", 10*minute)
	other.waits("deploy", "waits-at-the-other-one", map[string]any{"text": "there"})
	p := open(t, s.url+"/#/lock/deploy")
	p.reads("#waiters", "there")
	p.reads("#elsewhere", "wait at another instance")
	if eval[bool](p, `Boolean(document.querySelector('.remove'))`) {
		t.Error("it offers what it cannot do")
	}
	s.waits("deploy", "waits-here", map[string]any{"text": "here"})
	p.reads("#waiters tbody tr:nth-child(2)", "Remove")
	if text := p.text("#waiters tbody tr:nth-child(1)"); strings.Contains(text, "Remove") {
		t.Errorf("of the other one: %q", text)
	}
}

// A holder that was killed after its grant is at risk, where the store does not say how long leases are, and its end is
// told as that of a lease that nobody renewed.
func TestAHolderThatWasKilled(t *testing.T) {
	t.Parallel()
	redis := servers.StartRedis(t)
	s := serve(t, "redis://"+redis.Addr()+"/0", "127.0.0.1:0")
	p := open(t, s.url+"/#/lock/billing")
	p.reads("#lock-state", "free")
	d, err := redislock.OpenURL(t.Context(), "redis://"+redis.Addr()+"/0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	note := who.Details{Host: "web-9", Program: "billing", PID: 7}.Note()
	for again := range 5 { // a busy machine may look too late to learn the lease's length, or that it was not released
		owner := fmt.Sprint("owner-of-one-that-was-killed-", again)
		claim := claimtest.New(t, d, driver.Request{Resource: "billing", Owner: owner, TTL: 30 * time.Second, Note: note})
		claimtest.Granted(t, claim)
		p.reads(".sum", "no renewal for")
		p.reads("#lock-state", "at risk")
		p.click("#holders .evict")
		p.reads("dialog .facts", "It has not renewed its lease for")
		p.click("dialog .no")
		p.reads("#lock-state", "free")
		p.reads("#history", "last held by")
		if strings.Contains(p.text("#history"), "no renewal seen for") {
			break
		}
	}
	p.reads("#history", "no renewal seen for")
	p.reads("#history", "this instance did not see why")
}

// A search for a job finds the locks that it waits for.
func TestASearchFindsWhoWaits(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("deploy", 10*minute, map[string]any{"text": "holder"})
	for i, job := range []string{"gitlab 88124", "gitlab 88125"} {
		owner := fmt.Sprint("owner-of-waiter-", i)
		wait := map[string]any{"name": "deploy", "owner": owner, "ttl_ms": 60_000, "queue": true, "details": map[string]any{"text": job}}
		if status := s.post("acquire", wait); status != http.StatusConflict {
			t.Fatalf("acquire: %d", status)
		}
		s.waits("deploy", owner, map[string]any{"text": job})
	}
	s.grant("other", 10*minute, map[string]any{"text": "another"})
	p := open(t, s.url+"/#/locks")
	p.reads(".row", "holder")
	p.write("#q", "88125")
	p.reads("#count", "1 of 2")
	p.reads(".row .found", "gitlab 88125 waits, number 2")
}

// The history shows an eviction at another instance with its reason, if the store keeps the reason.
func TestAnEvictionAtAnotherInstance(t *testing.T) {
	t.Parallel()
	store := "sqlite:" + filepath.Join(t.TempDir(), "locks.db")
	a, b := serve(t, store, "127.0.0.1:0"), serve(t, store, "127.0.0.1:0")
	b.hold("deploy", "one", "ci", 10*minute)
	p := open(t, a.url+"/#/lock/deploy")
	p.reads("#lock-state", "held")
	if status := b.post("evict", map[string]any{"name": "deploy", "owner": "one", "reason": "it hangs"}); status != http.StatusOK {
		t.Fatalf("evict: %d", status)
	}
	p.reads("#history", "evicted ci")
	p.reads("#history", "it hangs")
}

// past is a history that was kept before.
type past struct {
	entries []web.HistoryEntry
	stops   int64 // a search stops here, as if its time were over; 0: none does
}

func (p *past) State() web.HistoryState {
	return web.HistoryState{ID: "past", Last: int64(len(p.entries)), Began: p.entries[0].Time}
}

func (p *past) Append(context.Context, time.Time, []web.HistoryEntry) error { return nil }

func (p *past) Read(_ context.Context, q web.HistoryQuery) (found []web.HistoryEntry, next int64, err error) {
	if q.Before > p.stops && p.stops > 0 {
		return nil, p.stops, nil
	}
	for _, e := range slices.Backward(p.entries) {
		if (q.Name == "" || q.Name == e.Name) && (q.Before == 0 || e.Seq < q.Before) && !e.Time.Before(q.Since) && (q.Until.IsZero() || !e.Time.After(q.Until)) && (len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind)) {
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

// What happened at some time is asked for by that time, however much has happened since.
func TestEventsUpToATime(t *testing.T) {
	t.Parallel()
	s := embeddedWith(t, &web.Options{History: web.HistoryOptions{File: hourAgo(time.Now())}}, passed)
	for i := range 250 {
		name := fmt.Sprint("busy/", i)
		s.hold(name, fmt.Sprint("owner-of-busy-", i), "busy", minute)
	}
	p := open(t, s.url+"/#/events")
	p.reads("#reach", "200 events, the oldest from")
	p.click("#older")
	p.reads("#events", "deploy/production evicted gitlab 88105")
	p.reads("#live", "up to")
	p.click("#newest")
	p.reads("#live", "live")
	zone := time.FixedZone("the browser's", -60*eval[int](p, `new Date().getTimezoneOffset()`))
	eval[bool](p, fmt.Sprintf(`(() => { const field = document.getElementById('until'); field.value = %q; return field.dispatchEvent(new Event('change', { bubbles: true })) })()`,
		time.Now().Add(-35*time.Minute).In(zone).Format("2006-01-02T15:04")))
	p.reads("#events li", "granted to gitlab 88104")
	p.do(chromedp.Reload()) // as for whoever is sent the address
	p.reads("#events li", "granted to gitlab 88104")
}

// A browser has six connections to a service over HTTP/1.1: tabs that nobody sees leave them to the one that is looked at.
func TestManyTabs(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("deploy", "one", "ci run 17", 10*minute)
	for range 7 {
		p := open(t, s.url+"/#/lock/deploy")
		p.reads("#lock-state", "held")
		eval[bool](p, `(Object.defineProperty(document, 'hidden', { get: () => true }), document.dispatchEvent(new Event('visibilitychange')))`)
	}
	p := open(t, s.url+"/#/locks")
	p.reads(".row", "ci run 17")
	p.reads("#status", "live")
}
