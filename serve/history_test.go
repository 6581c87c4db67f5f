package serve_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// often makes the server look at the store as often as tests can wait for.
var often = &serve.Options{History: serve.HistoryOptions{Every: 20 * time.Millisecond}}

// ask reads the JSON answer to a GET.
func ask[T any](t *testing.T, url string, header ...string) (v T) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func (s *service) history(query string) wire.Entries {
	s.t.Helper()
	return ask[wire.Entries](s.t, s.url+wire.History+"?"+query)
}

// ownerOf returns owners by their handles.
var ownerOf = func() map[string]string {
	all := make(map[string]string)
	for _, owner := range strings.Fields("a b c d e w x before mine") {
		all[wire.Handle(owner)] = owner
	}
	return all
}()

// kinds returns what happened, the oldest first.
func kinds(all wire.Entries) string {
	var b []string
	for i := len(all.Entries) - 1; i >= 0; i-- {
		e := all.Entries[i]
		b = append(b, strings.TrimSpace(e.Kind+" "+ownerOf[e.Handle]))
	}
	return strings.Join(b, ", ")
}

func (s *service) wantHistory(query, want string) wire.Entries {
	s.t.Helper()
	var all wire.Entries
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if all = s.history(query); kinds(all) == want {
			return all
		}
		if time.Now().After(end) {
			s.t.Fatalf("the history of %s is\n%s\nwant\n%s", query, kinds(all), want)
		}
	}
}

// looked waits for a look that begins after this call.
func (s *service) looked(d *asked) {
	s.t.Helper()
	lists := d.lists.Load()
	eventually(s.t, "another look", func() bool { return d.lists.Load() > lists+1 })
}

// The actions of this instance are in its history at once: grants and their waits, places that were
// given up, releases, and evictions with their reasons. A release has the time for which the lease
// was held. Looks do not report them again.
func TestHistoryOfWhatThisInstanceDoes(t *testing.T) {
	t.Parallel()
	d := &asked{Driver: memory.NewServer().Connect()}
	s := startOn(t, d, often)
	s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000,"note":"first","call":1,"caller":"one"}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000,"queue":true}`).want(t, 409, "busy")
	s.post(wire.Acquire, `{"name":"n","owner":"c","ttl_ms":60000,"queue":true}`).want(t, 409, "busy")
	s.post(wire.Release, `{"name":"n","owner":"c"}`).want(t, 200, "")
	s.post(wire.Release, `{"name":"n","owner":"a"}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"n","owner":"b","ttl_ms":60000,"queue":true}`).want(t, 200, "")
	s.post(wire.Evict, `{"name":"n","owner":"b","reason":"it hangs"}`).want(t, 200, "")
	s.post(wire.Renew, `{"name":"n","owner":"b","ttl_ms":60000}`).want(t, 410, "evicted") // reports the eviction again to the caller
	s.post(wire.Acquire, `{"name":"other","owner":"d","ttl_ms":60000}`).want(t, 200, "")
	s.looked(d)
	all := s.wantHistory("name=n", "granted a, waiting b, waiting c, left c, released a, granted b, evicted b")
	for i, e := range all.Entries {
		if _, err := time.Parse(time.RFC3339, e.Time); err != nil || e.Ago < 0 || e.Name != "n" || e.Handle == "" {
			t.Errorf("%+v", e)
		}
		granted, released, left := e.Kind == wire.EventGranted, e.Kind == wire.EventReleased, e.Kind == wire.Left
		if granted && e.Waited == nil || left && e.Waited == nil || released && (e.Held == nil || *e.Held < 0) {
			t.Errorf("entry %d says no length: %+v", i, e)
		}
	}
	if e := all.Entries[0]; e.Reason != "it hangs" || e.By == "" || e.Token == "" {
		t.Errorf("evicted: %+v", e)
	}
	if e := all.Entries[6]; e.Note != "first" || *e.Waited != 0 {
		t.Errorf("granted: %+v", e)
	}
	if all.Complete || all.Instance == "" || all.Next != "" {
		t.Errorf("%+v", all)
	}
	s.wantHistory("prefix=oth", "granted d")
	s.wantHistory("kind=evicted,left", "left c, evicted b")
}

// Actions of other instances and programs are found by comparing, even if nobody listens to events.
// How a lease ended is unknown.
func TestHistoryOfWhatOthersDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		other := newBubble(t, engine.Connect(), nil)
		other.want(200, wire.Acquire, `{"name":"n","owner":"before","ttl_ms":60000}`)
		s := newBubble(t, engine.Connect(), often)
		time.Sleep(lookedBy + time.Millisecond) // the first look reports no leases as new, and none comes at the instant of a call
		other.want(409, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"queue":true}`)
		s.wantHistory("", "waiting w")
		other.want(409, wire.Acquire, `{"name":"n","owner":"x","ttl_ms":60000,"queue":true}`)
		s.wantHistory("", "waiting w, waiting x")
		other.want(200, wire.Release, `{"name":"n","owner":"x"}`)
		s.wantHistory("kind=left", "left x")
		other.want(200, wire.Release, `{"name":"n","owner":"before"}`)
		other.want(200, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"queue":true}`)
		s.wantHistory("kind=ended", "ended before")
		all := s.wantHistory("kind=granted", "granted w") // nobody saw when "before" was granted
		if all.Entries[0].Waited == nil {
			t.Errorf("it was seen for how long it waited: %+v", all.Entries[0])
		}
		s.want(200, wire.Acquire, `{"name":"n","owner":"w","ttl_ms":60000,"queue":true}`) // the place that the other has granted
		s.wantHistory("kind=granted", "granted w")
		s.wantHistory("kind=waiting,left,ended", "waiting w, waiting x, left x, ended before")
	})
}

// A lease that this instance granted and nobody renewed has expired. The history says so once,
// whether a look finds it or a call that comes too late. A lease that ends earlier has ended for an
// unknown reason.
func TestExpiredIsToldFromEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s, other := newBubble(t, engine.Connect(), often), newBubble(t, engine.Connect(), nil)
		time.Sleep(lookedBy)
		s.want(200, wire.Acquire, `{"name":"looked","owner":"a","ttl_ms":600}`)
		s.want(200, wire.Acquire, `{"name":"early","owner":"b","ttl_ms":60000}`)
		s.want(200, wire.Acquire, `{"name":"renewed","owner":"c","ttl_ms":600}`)
		other.want(200, wire.Renew, `{"name":"renewed","owner":"c","ttl_ms":60000}`)
		time.Sleep(lookedBy)
		other.want(200, wire.Release, `{"name":"early","owner":"b"}`)
		time.Sleep(time.Second)
		all := s.wantHistory("name=looked", "granted a, expired a")
		if e := all.Entries[0]; e.Silent == nil || *e.Silent < 500 || e.Held == nil || *e.Held < 500 {
			t.Errorf("expired: %+v", e)
		}
		s.wantHistory("name=early", "granted b, ended b")
		time.Sleep(lookedBy)
		other.want(200, wire.Release, `{"name":"renewed","owner":"c"}`)
		s.wantHistory("name=renewed", "granted c, ended c")
		s.want(410, wire.Renew, `{"name":"looked","owner":"a","ttl_ms":60000}`)
		time.Sleep(lookedBy)
		s.wantHistory("name=looked", "granted a, expired a")

		slow := newBubble(t, &late{Driver: memory.New(), by: 400 * time.Millisecond}, often)
		time.Sleep(lookedBy)
		slow.want(200, wire.Acquire, `{"name":"called","owner":"d","ttl_ms":300}`)
		slow.want(410, wire.Renew, `{"name":"called","owner":"d","ttl_ms":60000}`)
		slow.wantHistory("name=called", "granted d, expired d")
		for _, one := range []struct {
			details string
			lost    int
		}{{`"host":"h","kind":"manual"`, 0}, {`"host":"h"`, 1}} { // the first is meant to end by itself
			slow.want(200, wire.Acquire, `{"name":"lost","owner":"o%d","ttl_ms":300,"details":{%s}}`, one.lost, one.details)
			slow.want(410, wire.Renew, `{"name":"lost","owner":"o%d","ttl_ms":60000}`, one.lost)
			if f := slow.figures(); *f.LostHour != one.lost || f.Series.Points[0].Lost != one.lost {
				t.Errorf("%s: %d are lost", one.details, *f.LostHour)
			}
		}
		slow.want(200, wire.Acquire, `{"name":"called","owner":"e","ttl_ms":60000}`)
		slow.want(200, wire.Evict, `{"name":"called","owner":"e","reason":"r"}`)
		slow.want(410, wire.Renew, `{"name":"called","owner":"e","ttl_ms":60000}`)
		slow.wantHistory("name=called", "granted d, expired d, granted e, evicted e")
	})
}

// late delays renewals, and delays the answers to other calls after their effect.
type late struct {
	driver.Driver
	by     time.Duration
	served func()        // after a Try
	evicts time.Duration // how long after its effect an eviction is answered
}

type lateClaim struct {
	driver.Claim
	d *late
}

func (d *late) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return lateClaim{c, d}, err
}

func (d *late) Inspect(ctx context.Context, name string) (driver.State, error) {
	return d.Driver.(driver.Operator).Inspect(ctx, name)
}

func (d *late) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	return d.Driver.(driver.Operator).List(ctx, prefix, after, limit)
}

func (d *late) Evict(ctx context.Context, name, owner, reason string) error {
	err := d.Driver.(driver.Operator).Evict(ctx, name, owner, reason)
	time.Sleep(d.evicts)
	return err
}

// A renewing driver has the holder renew after an eviction has taken effect and before Evict returns.
type renewing struct {
	*memory.Driver
	renew func()
	fails error
}

func (d *renewing) Evict(ctx context.Context, name, owner, reason string) error {
	err := d.Driver.Evict(ctx, name, owner, reason)
	d.renew()
	return cmp.Or(d.fails, err)
}

// If the holder learns of its eviction first, the report is still the call's.
func TestEvictionThatTheHolderSeesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &renewing{Driver: memory.New()}
		s := newBubble(t, d, often)
		d.renew = func() { s.want(410, wire.Renew, `{"name":"n","owner":"o","ttl_ms":60000}`) }
		s.want(200, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`)
		s.want(200, wire.Evict, `{"name":"n","owner":"o","reason":"r"}`)
		all := s.wantHistory("name=n", "granted, evicted")
		if e := all.Entries[0]; e.By == "" || e.Reason != "r" {
			t.Errorf("recorded %+v", e)
		}
	})
}

// If an eviction has no answer, the loss that the holder has learned of is reported all the same.
func TestEvictionWithoutAnAnswerThatTheHolderSees(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &renewing{Driver: memory.New(), fails: errors.New("no answer")}
		s := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{Every: time.Hour}}) // no look finds it
		d.renew = func() { s.want(410, wire.Renew, `{"name":"n","owner":"o","ttl_ms":60000}`) }
		s.want(200, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`)
		s.want(503, wire.Evict, `{"name":"n","owner":"o","reason":"r"}`)
		s.wantHistory("name=n", "granted, evicted")
	})
}

// If a look comes between an eviction's effect and its answer, it leaves the report to the call,
// which knows the reason and who evicted.
func TestEvictionThatALookSeesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, &late{Driver: memory.New(), evicts: lookedBy}, often)
		time.Sleep(lookedBy)
		s.want(200, wire.Acquire, `{"name":"a","owner":"o","ttl_ms":60000}`)
		time.Sleep(lookedBy)
		s.want(200, wire.Evict, `{"name":"a","owner":"o","reason":"r"}`)
		time.Sleep(lookedBy)
		s.wantHistory("name=a", "granted, evicted")
	})
}

func (d *late) RaiseFence(ctx context.Context, name string, fence uint64) error {
	return d.Driver.(driver.Operator).RaiseFence(ctx, name, fence)
}

func (d *late) SetLimit(ctx context.Context, name string, limit int) error {
	return d.Driver.(driver.Operator).SetLimit(ctx, name, limit)
}

func (c lateClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	time.Sleep(c.d.by) // a call in progress keeps its claim
	return c.Claim.Renew(ctx, ttl)
}

func (c lateClaim) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(ctx)
	if c.d.served != nil {
		c.d.served()
	}
	return g, err
}

// A look that sees a grant before its call is answered leaves the report to the call, which knows
// how long it waited.
func TestGrantThatALookSeesFirst(t *testing.T) {
	t.Parallel()
	seen := &asked{Driver: memory.NewServer().Connect()}
	d := &late{Driver: seen}
	s := startOn(t, d, often)
	s.looked(seen)
	d.served = func() {
		for lists, end := seen.lists.Load(), time.Now().Add(20*time.Second); seen.lists.Load() < lists+3 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000,"call":1,"caller":"one"}`).want(t, 200, "")
	s.looked(seen)
	if all := s.wantHistory("", "granted a"); all.Entries[0].Waited == nil {
		t.Errorf("%+v", all.Entries[0])
	}
}

// While the store does not answer, the history has an open gap, and afterwards one with its end.
func TestHistorySaysWhatItDidNotSee(t *testing.T) {
	t.Parallel()
	d := &asked{Driver: memory.NewServer().Connect()}
	s := startOn(t, d, &serve.Options{History: serve.HistoryOptions{Every: often.History.Every, Sole: true}})
	s.looked(d)
	if all := s.history(""); len(all.Gaps) > 0 || !all.Complete { // nothing else happens
		t.Fatalf("%+v", all)
	}
	d.fails.Store(true)
	eventually(t, "a gap that lasts", func() bool {
		all := s.history("")
		return len(all.Gaps) == 1 && all.Gaps[0].From != "" && all.Gaps[0].To == "" && !all.Complete
	})
	if f := ask[wire.Figures](t, s.url+wire.Overview); f.Store != wire.StoreDown {
		t.Errorf("the store is %s", f.Store)
	}
	d.fails.Store(false)
	all := s.wantHistory("", "gap")
	if len(all.Gaps) != 1 || all.Gaps[0].To == "" || all.Entries[0].From != all.Gaps[0].From {
		t.Errorf("gaps %+v, entry %+v", all.Gaps, all.Entries[0])
	}
	if f := ask[wire.Figures](t, s.url+wire.Overview); f.Store != wire.StoreUp {
		t.Errorf("the store is %s", f.Store)
	}
}

// swollen lists more names than are compared.
type swollen struct {
	asked
	many   int
	narrow atomic.Int64 // how often names with a prefix were requested
}

func (d *swollen) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	all, next, err := d.asked.List(ctx, prefix, after, limit)
	if prefix != "" {
		d.narrow.Add(1)
	}
	if err != nil || prefix != "" || after != "" {
		return all, next, err
	}
	for i := range d.many {
		all = append(all, driver.State{Resource: fmt.Sprint("x/", i), Holders: []driver.Holder{{Owner: driver.OwnerOf(fmt.Sprint(i))}}})
	}
	return all, next, nil
}

// With more names than are compared, a history has only this instance's actions, and says so. A
// listener to a few of the names gets their events as before.
func TestHistoryOfTooManyNames(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	d := &swollen{asked: asked{Driver: engine.Connect()}, many: 50_001}
	s, other := startOn(t, d, often), start(t, engine, nil)
	next := s.listen("a/")
	eventually(t, "a gap that lasts", func() bool { return len(s.history("").Gaps) == 1 })
	s.post(wire.Acquire, `{"name":"b/1","owner":"mine","ttl_ms":60000}`).want(t, 200, "")
	for i := range 2 {
		lists := d.lists.Load()
		other.post(wire.Acquire, `{"name":"a/1","owner":"o%d","ttl_ms":60000}`, i).want(t, 200, "")
		if kind, e := next(); kind != wire.EventGranted || e.Name != "a/1" {
			t.Fatalf("told %s %+v", kind, e)
		}
		other.post(wire.Release, `{"name":"a/1","owner":"o%d"}`, i).want(t, 200, "")
		if kind, e := next(); kind != wire.EventEnded || e.Name != "a/1" {
			t.Fatalf("told %s %+v", kind, e)
		}
		eventually(t, "other looks", func() bool { return d.lists.Load() > lists+2 })
	}
	s.wantHistory("name=b/1", "granted mine")
	f := ask[wire.Figures](t, s.url+wire.Overview)
	if !f.Partial || f.Held != 1 || f.Age != nil {
		t.Errorf("%+v", f)
	}
}

// A stream opens once its own names have been compared. A look at all names that finds too many
// compares nothing. Here every look is one at all names, because looks take no time.
func TestStreamIsNotOpenBeforeItsNamesAreCompared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &swollen{asked: asked{Driver: memory.New()}, many: 50_001}
		s := newBubble(t, d, often)
		time.Sleep(lookedBy)
		began := time.Now()
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodHead, wire.Events+"?prefix=a/", nil))
		if took := time.Since(began); d.narrow.Load() == 0 || took > time.Second {
			t.Errorf("the stream opened after %v and %d looks at its names", took, d.narrow.Load())
		}
	})
}

// Rare entries outlive frequent ones, and a page says since when it is complete.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), &serve.Options{History: serve.HistoryOptions{Entries: 100}})
	s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Evict, `{"name":"n","owner":"a","reason":"r"}`).want(t, 200, "")
	before := s.history("")
	for i := range 100 {
		s.post(wire.Acquire, `{"name":"n","owner":"o%d","ttl_ms":60000}`, i).want(t, 200, "")
		s.post(wire.Release, `{"name":"n","owner":"o%d"}`, i).want(t, 200, "")
	}
	all := s.history("limit=1000")
	if n := len(all.Entries); n != 81 || all.Entries[80].Kind != wire.EventEvicted {
		t.Errorf("%d entries, the last %+v", n, all.Entries[n-1])
	}
	if all.Begins <= before.Begins {
		t.Errorf("it begins at %s, and began at %s before", all.Begins, before.Begins)
	}
}

// Pages follow each other, and a cursor of another instance is refused.
func TestPagesOfAHistory(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	s, other := start(t, engine, nil), start(t, engine, nil)
	for i := range 25 {
		s.post(wire.Acquire, `{"name":"n%d","owner":"o%d","ttl_ms":60000}`, i, i).want(t, 200, "")
	}
	seen, after := map[string]bool{}, ""
	for page := 0; ; page++ {
		all := s.history("limit=10&after=" + url.QueryEscape(after))
		for _, e := range all.Entries {
			seen[e.Name] = true
		}
		if after = all.Next; after == "" {
			if page != 2 || len(all.Entries) != 5 || len(seen) != 25 {
				t.Errorf("page %d has %d entries, %d in all", page, len(all.Entries), len(seen))
			}
			break
		}
		for _, bad := range []string{"after=x", "limit=0", "limit=1001", "kind=none", "since_ms=-1", "until_ms=x", "name=a&prefix=b", "x=y", "name="} {
			if resp, err := http.Get(s.url + wire.History + "?" + bad); err != nil || resp.StatusCode != 400 {
				t.Errorf("%s: %v, %v", bad, resp, err)
			}
		}
		if resp, err := http.Get(other.url + wire.History + "?after=" + after); err != nil || resp.StatusCode != 400 {
			t.Errorf("a cursor of another instance: %v, %v", resp, err)
		}
	}
	if all := s.history("since_ms=0"); len(all.Entries) > 0 {
		t.Errorf("of no time: %+v", all.Entries)
	}
	if all := s.history("until_ms=0"); len(all.Entries) != 25 {
		t.Errorf("until now: %d entries", len(all.Entries))
	}
	if all := s.history("until_ms=3600000"); len(all.Entries) > 0 {
		t.Errorf("until an hour ago: %+v", all.Entries)
	}
}

// An eviction stays among the last ends, however many leases are released after it.
func TestTroublesStayInTheOverview(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	s.post(wire.Acquire, `{"name":"evicted","owner":"a","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Evict, `{"name":"evicted","owner":"a","reason":"r"}`).want(t, 200, "")
	for range 12 {
		s.cycle("busy")
	}
	ends := ask[wire.Figures](t, s.url+wire.Overview).Ends
	if len(ends) != 10 || ends[9].Name != "evicted" || ends[0].Name != "busy" {
		t.Errorf("%d ends: %+v", len(ends), ends)
	}
}

// Nobody learns of names without the right to view them, from the history or from figures.
func TestHistoryOfWhatOneMayView(t *testing.T) {
	t.Parallel()
	rules := map[string][]serve.Rule{"all": {{Rights: []serve.Right{serve.View, serve.Lock, serve.Evict}}}, "ci": {{Prefix: "ci/", Rights: []serve.Right{serve.View}}}, "none": {{Rights: []serve.Right{serve.Lock}}}}
	name := func(r *http.Request) (*serve.Client, error) {
		who := r.Header.Get("Authorization")
		if rules[who] == nil {
			who = "all"
		}
		return &serve.Client{Name: who, Rules: rules[who]}, nil
	}
	d := &asked{Driver: memory.NewServer().Connect()}
	s := startOn(t, d, &serve.Options{Client: name, History: often.History})
	s.post(wire.Acquire, `{"name":"ci/a","owner":"a","ttl_ms":60000,"call":1,"caller":"one"}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"secret","owner":"b","ttl_ms":60000}`).want(t, 200, "")
	go post(s.url+wire.Acquire, `{"name":"secret","owner":"c","ttl_ms":60000,"wait_ms":30000}`)
	s.waiterOf("secret")
	s.looked(d)
	for who, want := range map[string]string{"all": "granted a, granted b, waiting c", "ci": "granted a", "none": ""} {
		if got := kinds(ask[wire.Entries](t, s.url+wire.History, "Authorization", who)); got != want {
			t.Errorf("%s sees %s, want %s", who, got, want)
		}
	}
	f := ask[wire.Figures](t, s.url+wire.Overview, "Authorization", "ci") // none of whose leases has ended
	if f.Held != 1 || f.Waiting != 0 || f.Names != 1 || *f.EvictedHour != 0 || len(f.Ends) != 0 || f.LongestName != "" || *f.GrantsMin != 1 || f.Series.Points[0].Held != nil || f.Series.Points[0].Grants != 1 {
		t.Errorf("ci sees %+v", f)
	}
	f = ask[wire.Figures](t, s.url+wire.Overview, "Authorization", "all")
	s.post(wire.Evict, `{"name":"secret","owner":"b","reason":"r"}`).want(t, 200, "")
	after := ask[wire.Figures](t, s.url+wire.Overview, "Authorization", "all")
	if f.Held != 2 || f.Waiting != 1 || f.Names != 2 || *after.EvictedHour != 1 || len(after.Ends) != 1 || f.LongestName != "secret" || *f.GrantsMin != 2 || f.Store != wire.StoreUp ||
		len(f.Contended) != 1 || f.Contended[0].Waiting != 1 || f.P50 == nil || f.Age == nil || *f.Series.Points[0].Held != 2 {
		t.Errorf("all see %+v", f)
	}
	r, _ := http.NewRequest(http.MethodGet, s.url+wire.History+"?name=secret", nil)
	r.Header.Set("Authorization", "ci")
	if resp, err := http.DefaultClient.Do(r); err != nil || resp.StatusCode != 403 {
		t.Errorf("%v, %v", resp, err)
	}
}

// Clients learn what they may do. A wrong token is distinguished from a missing one.
func TestMe(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), &serve.Options{Version: "v1"})
	me := ask[wire.Identity](t, s.url+wire.Me)
	if me.By != wire.ByOpen || len(me.Rights) != 1 || len(me.Rights[0].Rights) != 3 || me.Engine != "memory" || me.Version != "v1" || me.Instance == "" || !me.Reserves {
		t.Errorf("%+v", me)
	}
}

// A look that finds the next holder tells that an exclusive lease was over when that one began, and not at the look.
func TestALeaseWasOverWhenTheNextBegan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		by, s := newBubble(t, engine.Connect(), nil), newBubble(t, engine.Connect(), nil)
		time.Sleep(time.Second)
		by.want(200, wire.Acquire, `{"name":"deploy","owner":"first-owner-of-all","ttl_ms":60000}`)
		by.want(200, wire.Acquire, `{"name":"alone","owner":"third-owner-of-all","ttl_ms":60000}`)
		time.Sleep(11 * time.Second)
		by.want(200, wire.Release, `{"name":"deploy","owner":"first-owner-of-all"}`)
		by.want(200, wire.Release, `{"name":"alone","owner":"third-owner-of-all"}`)
		by.want(200, wire.Acquire, `{"name":"deploy","owner":"second-owner-of-all","ttl_ms":60000}`)
		time.Sleep(6 * time.Second)
		ago := map[string]int64{}
		for _, e := range told[wire.Entries](s, wire.History).Entries {
			ago[e.Kind+" "+e.Name+" "+e.Owner] = e.Ago
			if e.Kind == wire.EventEnded && e.Name == "deploy" && (e.Held == nil || *e.Held > 11_100) {
				t.Errorf("%+v", e)
			}
		}
		if ended, granted := ago["ended deploy first-ow"], ago["granted deploy second-o"]; ended < granted || granted < 5000 {
			t.Errorf("ended %d ms ago, the next granted %d ms ago: %v", ended, granted, ago)
		}
		if ended := ago["ended alone third-ow"]; ended > 5000 {
			t.Errorf("what nobody took after it ended %d ms ago", ended)
		}
	})
}
