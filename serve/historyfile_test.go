package serve_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A paper is a history file in memory, which may fail or hang.
type paper struct {
	mu      sync.Mutex
	entries []serve.HistoryEntry
	alive   time.Time
	err     error
	hangs   chan struct{} // it hangs until this is closed; nil: it does not hang
}

func (p *paper) State() serve.HistoryState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := serve.HistoryState{ID: "paper", Alive: p.alive}
	if n := len(p.entries); n > 0 {
		s.Last, s.Began = p.entries[n-1].Seq, p.entries[0].Time
	}
	return s
}

func (p *paper) wait() error {
	p.mu.Lock()
	hangs := p.hangs
	p.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *paper) Append(_ context.Context, seen time.Time, entries []serve.HistoryEntry) error {
	if err := p.wait(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range entries {
		e.Time = e.Time.Round(0) // files keep no monotonic clock
		p.entries = append(p.entries, e)
	}
	p.alive = seen
	return nil
}

func (p *paper) Read(_ context.Context, q serve.HistoryQuery) (all []serve.HistoryEntry, next int64, err error) {
	if err := p.wait(); err != nil {
		return nil, 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range slices.Backward(p.entries) {
		if q.Before > 0 && e.Seq >= q.Before || q.Name != "" && e.Name != q.Name && e.Name != "" || len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind) {
			continue
		}
		if len(all) == q.Limit {
			return all, all[len(all)-1].Seq, nil
		}
		all = append(all, e)
	}
	return all, 0, nil
}

func (p *paper) set(err error, hangs chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.hangs = err, hangs
}

func (p *paper) kinds() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, e := range p.entries {
		all = append(all, e.Kind)
	}
	return strings.Join(all, " ")
}

func keptIn(p *paper, entries int) *serve.Options {
	return &serve.Options{History: serve.HistoryOptions{File: p, Entries: entries, Every: -1}}
}

func (s *service) cycle(name string) {
	s.t.Helper()
	owner := s.post(wire.Acquire, `{"name":%q,"ttl_ms":60000}`, name).want(s.t, 200, "").grant.Owner
	s.post(wire.Release, `{"name":%q,"owner":%q}`, name, owner).want(s.t, 200, "")
}

// The next instance reports what the previous one has seen, with the gap between them. The same
// goes for figures.
func TestHistoryOutlivesTheInstance(t *testing.T) {
	t.Parallel()
	p := &paper{}
	first, err := serve.New(memory.New(), keptIn(p, 0))
	if err != nil {
		t.Fatal(err)
	}
	web := serving(t, first)
	web.cycle("n")
	if err := first.Close(); err != nil { // Close waits for the file
		t.Fatal(err)
	}
	if got := p.kinds(); got != "granted released" {
		t.Fatalf("the file has %s", got)
	}
	s := startOn(t, memory.New(), keptIn(p, 0))
	s.cycle("n")
	all := s.wantHistory("name=n", "granted, released, gap, granted, released")
	if len(all.Gaps) != 1 || all.Gaps[0].From == "" || all.Gaps[0].To == "" || all.Begins > all.Entries[4].Time {
		t.Errorf("it begins at %s, with the gaps %v", all.Begins, all.Gaps)
	}
	if other := startOn(t, memory.New(), nil).history(""); all.History != "paper" || other.History == "" || other.History == all.History {
		t.Errorf("the histories are %q, and %q of another instance of this name", all.History, other.History)
	}
	eventually(t, "the file is read", func() bool {
		f := ask[wire.Figures](t, s.url+wire.Overview)
		return len(f.Ends) == 2 && f.Series.Points[0].Grants+f.Series.Points[min(1, len(f.Series.Points)-1)].Grants >= 2
	})
	seen, after := "", ""
	for range 5 {
		page := s.history("limit=1&name=n&after=" + url.QueryEscape(after))
		seen += page.Entries[0].Kind + " "
		after = page.Next
	}
	if seen != "released granted gap released granted " || after != "" {
		t.Errorf("pages of one: %s, then %q", seen, after)
	}
}

// serving serves a Server until the test ends. The test closes the Server.
func serving(t *testing.T, s *serve.Server) *service {
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return &service{t, s, web.URL}
}

// Entries that found no room in memory are read from the file.
func TestHistoryBeyondMemory(t *testing.T) {
	t.Parallel()
	p := &paper{}
	s := startOn(t, memory.New(), keptIn(p, 20))
	s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Evict, `{"name":"n","owner":"a","reason":"r"}`).want(t, 200, "") // a rare entry, which memory keeps longer
	for i := range 40 {
		s.cycle("n")
		if done := strings.Count(p.kinds(), "released"); i-done > 5 { // there is room for ten
			eventually(t, "it is written", func() bool { return strings.Count(p.kinds(), "released") > done })
		}
	}
	eventually(t, "all is written", func() bool { return strings.Count(p.kinds(), "released") == 40 })
	if all := s.history("limit=1000"); len(all.Entries) != 82 || len(all.Gaps) > 0 {
		t.Errorf("%d entries, gaps %v", len(all.Entries), all.Gaps)
	}
}

// While the file hangs or its disk is full, leases continue, and so does the history in memory.
// Entries without room there become a gap in the file.
func TestLeasesGoOnWhileTheHistoryFileDoesNot(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		err   error
		hangs chan struct{}
	}{"full": {err: errors.New("the disk is full")}, "hangs": {hangs: make(chan struct{})}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := &paper{}
			s := startOn(t, memory.New(), keptIn(p, 50))
			s.cycle("before")
			eventually(t, "it is written", func() bool { return p.kinds() == "granted released" })
			p.set(c.err, c.hangs)
			began := time.Now()
			for range 100 {
				s.cycle("n")
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("leases took %v", took)
			}
			all := s.history("name=n&limit=5")
			if kinds(all) != "released, granted, released, granted, released" {
				t.Errorf("memory has %s", kinds(all))
			}
			eventually(t, "it says that entries are missing", func() bool {
				all := s.history("name=n&limit=1000")
				return all.Warning != "" && len(all.Gaps) > 0
			})
			if c.hangs != nil {
				close(c.hangs)
			}
			p.set(nil, nil)
			eventually(t, "the file has a gap", func() bool { return strings.Contains(p.kinds(), "gap") })
			eventually(t, "and what comes after it", func() bool { return strings.HasSuffix(p.kinds(), "granted released") })
			p.mu.Lock()
			defer p.mu.Unlock()
			if !slices.IsSortedFunc(p.entries, func(a, b serve.HistoryEntry) int { return int(a.Seq - b.Seq) }) {
				t.Error("entries are in no order")
			}
		})
	}
}

// A gap of entries without room is reported before the file has it, and afterwards, once.
func TestGapOfTheHistoryFileIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{}) // an attempt to write in between would end the gap, and begin another
		p := &paper{err: errors.New("the disk is full"), hangs: hangs}
		b := newBubble(t, memory.New(), keptIn(p, 50))
		for i := range 100 {
			b.want(200, wire.Acquire, `{"name":"n","owner":"a%d","ttl_ms":60000}`, i)
			b.want(200, wire.Release, `{"name":"n","owner":"a%d"}`, i)
		}
		close(hangs)
		for _, what := range []string{"before it is written", "while it cannot be", "once it is"} {
			all := b.history("name=n&limit=1000")
			if len(all.Gaps) != 1 || all.Complete {
				t.Errorf("%s: the gaps %v", what, all.Gaps)
			}
			if what == "once it is" && strings.Count(kinds(all), wire.Gap) != 1 {
				t.Errorf("the history is %s", kinds(all))
			}
			if time.Sleep(3 * time.Second); what == "while it cannot be" {
				p.set(nil, nil)
				time.Sleep(3 * time.Second)
			}
		}
		if strings.Count(p.kinds(), wire.Gap) != 1 {
			t.Errorf("the file has %s", p.kinds())
		}
	})
}

// A gap that is only in the file, because the instance has begun anew since, is listed with the entries around it.
func TestGapOfAnEarlierInstanceIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		p := &paper{}
		for i := range 20 {
			e := serve.HistoryEntry{Seq: int64(i + 1), Time: now.Add(time.Duration(i-20) * time.Minute), Kind: wire.EventGranted, Name: "n"}
			if i == 1 {
				e.Name, e.Kind, e.From, e.To = "", wire.Gap, e.Time.Add(-time.Minute), e.Time
			}
			p.entries = append(p.entries, e)
		}
		b := newBubble(t, memory.New(), keptIn(p, 20))
		time.Sleep(time.Second)
		all := b.history("name=n&limit=1000")
		if len(all.Gaps) != 1 || all.Gaps[0].From != all.Entries[18].From || all.Gaps[0].To != all.Entries[18].To || all.Complete {
			t.Errorf("of %d entries, the gaps are %v", len(all.Entries), all.Gaps)
		}
	})
}

// A history begins with its oldest entry that no clock ahead has written, however many of those come
// before it.
func TestHistoryBeginsAfterAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		p := &paper{}
		for i := range 45 {
			at := now.Add(time.Duration(i-60) * time.Minute)
			if i < 15 {
				at = now.Add(48 * time.Hour)
			}
			p.entries = append(p.entries, serve.HistoryEntry{Seq: int64(i + 1), Time: at, Kind: wire.EventGranted, Name: "n"})
		}
		b := newBubble(t, memory.New(), keptIn(p, 0))
		time.Sleep(time.Second)
		if all := b.history("limit=1000"); all.Begins != all.Entries[29].Time {
			t.Errorf("it begins at %s, want %s", all.Begins, all.Entries[29].Time)
		}
	})
}

// Closing a Server waits only some seconds for a file that hangs.
func TestCloseLeavesAHistoryFileThatHangs(t *testing.T) {
	t.Parallel()
	p := &paper{hangs: make(chan struct{})}
	defer close(p.hangs)
	s, err := serve.New(memory.New(), keptIn(p, 0))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.Close()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// An entry that is recorded while Close waits for a write is written too.
func TestCloseWritesWhatComesDuringAWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &paper{}
		s, err := serve.New(memory.New(), keptIn(p, 0))
		if err != nil {
			t.Fatal(err)
		}
		b := bubble{t, s}
		time.Sleep(time.Second)
		hangs := make(chan struct{})
		p.set(nil, hangs)
		b.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`)
		time.Sleep(time.Second) // until it is being written
		b.want(200, wire.Release, `{"name":"n","owner":"a"}`)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			s.Close()
		}()
		synctest.Wait()
		close(hangs)
		if <-closed; p.kinds() != "granted released" {
			t.Errorf("the file has %s", p.kinds())
		}
	})
}

// While the file fails, rare entries are reported from memory, and not twice once the file has
// them.
func TestRareEntriesThatTheFileDoesNotTake(t *testing.T) {
	t.Parallel()
	p := &paper{err: errors.New("disk full")}
	s := startOn(t, memory.New(), keptIn(p, 100))
	s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Evict, `{"name":"n","owner":"a","reason":"r"}`).want(t, 200, "")
	for range 100 {
		s.cycle("other")
	}
	told := func() string { return kinds(s.history("kind=evicted&limit=1000")) }
	if got := told(); got != "evicted a" {
		t.Errorf("told %q", got)
	}
	p.set(nil, nil)
	eventually(t, "it is written", func() bool { return strings.Count(p.kinds(), "evicted") == 1 })
	if got := told(); got != "evicted a" {
		t.Errorf("told %q when it is written", got)
	}
}

// An instance that ends while the store is down leaves its gap to the next one, from the last look on.
func TestGapThatOutlivesTheInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, d := &paper{}, &asked{Driver: memory.New()}
		opts := &serve.Options{History: serve.HistoryOptions{File: p}}
		first, err := serve.New(d, opts)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		d.fails.Store(true)
		down := time.Now()
		time.Sleep(time.Hour)
		first.Close()
		d.fails.Store(false)
		s := newBubble(t, d, opts)
		time.Sleep(time.Minute)
		all := s.history("kind=gap")
		if len(all.Entries) != 1 {
			t.Fatalf("the gaps %+v", all.Entries)
		}
		from, _ := time.Parse(time.RFC3339, all.Entries[0].From)
		to, _ := time.Parse(time.RFC3339, all.Entries[0].To)
		if from.After(down) || down.Sub(from) > 10*time.Second || to.Sub(down) < time.Hour {
			t.Errorf("it is from %v to %v, and the store was down from %v on", from, to, down)
		}
		if f := s.figures(); len(f.Series.Points) > 10 {
			t.Errorf("figures of %d minutes", len(f.Series.Points))
		}
	})
}
