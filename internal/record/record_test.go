package record

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
)

const ttl, place = 10 * time.Second, 3 * time.Second

// A world is a record, its time, and the answers that its owners got.
type world struct {
	Record
	now    Instant
	reqs   []driver.Request
	fences map[string]uint64 // of owners that were granted
	last   uint64            // the greatest fence that was given or raised to
}

func newWorld(owners int) *world {
	w := &world{fences: map[string]uint64{}}
	for i := range owners {
		req := driver.Request{Owner: fmt.Sprint("owner", i), TTL: ttl}
		if rand.N(2) == 0 {
			req.Mode, req.Limit = driver.Shared, rand.N(4)
		}
		w.reqs = append(w.reqs, req)
	}
	return w
}

// step lets a random owner do something.
func (w *world) step() error {
	w.now += Instant(rand.N(2 * time.Second / time.Microsecond))
	w.DropOver(w.now)
	req := &w.reqs[rand.N(len(w.reqs))]
	held := w.Holds(req.Owner)
	switch rand.N(8) {
	default:
		return w.try(req, held)
	case 0:
		_, err := w.Renew(w.now, req.Owner, ttl)
		return told("Renew", held, err)
	case 1:
		had := w.Find(req.Owner) != nil
		return told("Release", had, w.Release(req.Owner))
	case 2:
		return told("Linger", held, w.Linger(w.now, req.Owner, time.Second))
	case 3:
		lingers := w.lingering() != nil
		if err := told("Evict of what lingers", lingers, w.Evict("", "because", uint64(w.now))); err != nil {
			return err
		}
		err := w.Evict(req.Owner, "because", uint64(w.now))
		w.last = max(w.last, driver.FenceOf(w.Fence))
		return told("Evict", held, err)
	case 4:
		w.RaiseFence(w.last + uint64(rand.N(5*driver.FenceStep)))
		w.last = max(w.last, driver.FenceOf(w.Raised))
		w.Bar(w.now, req.Owner, time.Second)
		return told("SetNote", held, w.SetNote(req.Owner, "note"))
	}
}

func (w *world) try(req *driver.Request, held bool) error {
	a, _ := w.Try(w.now, req, place*time.Duration(rand.N(2)), uint64(w.now))
	switch {
	case a.Granted && held && a.Fence != w.fences[req.Owner]:
		return fmt.Errorf("granted again with another fence, %d", a.Fence)
	case a.Granted && !held && a.Fence <= w.last:
		return fmt.Errorf("fence %d after %d", a.Fence, w.last)
	case !a.Granted && held:
		return errors.New("busy because of itself")
	case !a.Granted && a.Until <= 0:
		return errors.New("refused for no time")
	case a.Granted:
		w.fences[req.Owner], w.last = a.Fence, max(w.last, a.Fence)
	}
	return nil
}

func told(what string, held bool, err error) error {
	if held != (err == nil) || err != nil && !errors.Is(err, driver.ErrLost) {
		return fmt.Errorf("%s: %v, held: %v", what, err, held)
	}
	return nil
}

// check checks the invariants.
func (w *world) check() error {
	var holds []Claim
	var ahead queue.Ahead
	stopped := false // by a waiter that may not hold
	for _, c := range w.Claims {
		one := queue.Claim{Mode: c.Mode, Limit: c.Limit}
		switch c.Status {
		case Evicted, Gone:
			continue
		case Waiting:
			stopped = stopped || !ahead.Admits(one)
		default:
			holds = append(holds, c)
			if stopped {
				return fmt.Errorf("%s holds behind one who has to wait", c.Owner)
			}
		}
		ahead.Add(one)
	}
	for _, c := range holds {
		if c.Mode == driver.Exclusive && len(holds) > 1 || c.Limit > 0 && len(holds) > c.Limit {
			return fmt.Errorf("%d hold, one of them is %+v", len(holds), c)
		}
	}
	next := slices.Collect(w.Next)
	for _, owner := range next {
		i := slices.IndexFunc(w.reqs, func(r driver.Request) bool { return r.Owner == owner })
		if r := (Record{Claims: slices.Clone(w.Claims)}); !granted(r.Try(w.now, &w.reqs[i], 0, 0)) {
			return fmt.Errorf("%s was woken for nothing", owner)
		}
	}
	back, err := Decode(w.Encode())
	if err != nil || !reflect.DeepEqual(back.State(w.now, "x"), w.State(w.now, "x")) {
		return fmt.Errorf("decoded: %+v, %v", back, err)
	}
	return nil
}

func granted(a Answer, _ bool) bool { return a.Granted }

func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for range 500 {
		w := newWorld(1 + rand.N(6))
		for range 40 {
			before := w.State(w.now, "before")
			if err := errors.Join(w.step(), w.check()); err != nil {
				t.Fatalf("%v\nbefore %+v\nafter %+v", err, before, w.Record)
			}
		}
	}
}

// When the first in the queue leaves or dies, the next one is woken.
func TestTheNextIsWoken(t *testing.T) {
	t.Parallel()
	var r Record
	reqs := []driver.Request{{Owner: "a", TTL: ttl}, {Owner: "b", TTL: ttl}, {Owner: "c", TTL: ttl}}
	for i := range reqs {
		r.Try(Instant(0), &reqs[i], place, 0)
	}
	if next := slices.Collect(r.Next); next != nil {
		t.Errorf("woken while it is held: %v", next)
	}
	if err := r.Release("a"); err != nil {
		t.Fatal(err)
	}
	if next := slices.Collect(r.Next); !slices.Equal(next, []string{"b"}) {
		t.Errorf("woken after the release: %v", next)
	}
	r.Try(Instant(2_000_000), &reqs[2], place, 0)
	r.DropOver(Instant(4_000_000))
	if next := slices.Collect(r.Next); !slices.Equal(next, []string{"c"}) {
		t.Errorf("woken after the first waiter died: %v", next)
	}
}

// An evicted claim gets the reason. A place from before the clock was set back is void.
func TestEvictionIsToldAndClockStepsAreSeen(t *testing.T) {
	t.Parallel()
	var r Record
	a, b := driver.Request{Owner: "a", TTL: ttl}, driver.Request{Owner: "b", TTL: ttl}
	const hour = Instant(time.Hour / time.Microsecond)
	r.Try(hour, &a, place, 0)
	r.Try(hour, &b, place, 0)
	if err := r.Evict("a", "because", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Renew(hour, "a", ttl); !errors.Is(err, driver.ErrLost) || err.Error() != "lease lost: evicted: because" {
		t.Errorf("Renew after Evict: %v", err)
	}
	r.DropOver(hour / 2)
	if st := r.State(hour/2, "x"); len(st.Waiters) > 0 {
		t.Errorf("the clock was set back, and %+v waits still", st.Waiters)
	}
}

func FuzzDecode(f *testing.F) {
	w := newWorld(3)
	for range 20 {
		_ = w.step()
		f.Add(w.Encode())
	}
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"fence":3,"claims":[{"fence":4,"owner":"a","status":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			if !errors.Is(err, driver.ErrCorrupt) {
				t.Errorf("%v", err)
			}
			return
		}
		again, err := Decode(r.Encode())
		if err != nil || !reflect.DeepEqual(again.State(Instant(0), ""), r.State(Instant(0), "")) {
			t.Errorf("%+v is decoded as %+v, %v", r, again, err)
		}
		r.DropOver(Instant(0))
		for range r.Next {
		}
	})
}

// A record without weights and limits is written in the version that older programs read.
func TestWeightsRaiseTheVersion(t *testing.T) {
	t.Parallel()
	now := Instant(1)
	try := func(r *Record, owner string, weight int) {
		req := driver.Request{Resource: "a", Owner: owner, Mode: driver.Shared, Limit: 9, Weight: weight, TTL: time.Minute}
		if a, _ := r.Try(now, &req, 0, 0); !a.Granted {
			t.Fatalf("%s is refused: %+v", owner, a)
		}
	}
	var r Record
	for _, step := range []struct {
		change  func()
		version string
	}{
		{func() { try(&r, "light", 1) }, `{"v":1,`},
		{func() { try(&r, "heavy", 3) }, `{"v":2,`},
		{func() { r.Limit = 2 }, `{"v":2,`},
		{func() { r.Release("heavy") }, `{"v":2,`},
		{func() { r.Limit = 0 }, `{"v":1,`},
	} {
		step.change()
		b := r.Encode()
		if !strings.HasPrefix(string(b), step.version) {
			t.Errorf("%s does not begin with %s", b, step.version)
		}
		again, err := Decode(b)
		if err != nil || again.Limit != r.Limit || len(again.Claims) != len(r.Claims) || again.Claims[len(r.Claims)-1].Weight != r.Claims[len(r.Claims)-1].Weight {
			t.Errorf("%+v, %v; want %+v", again, err, r)
		}
	}
	for _, bad := range []string{`{"v":3}`, `{"v":2,"limit":-1}`, `{"v":2,"limit":4294967296}`, `{"v":2,"claims":[{"owner":"o","weight":-1}]}`} {
		if _, err := Decode([]byte(bad)); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", bad, err)
		}
	}
}

// A claim that does not know yet that it has room counts for later grants. If an operator then
// lowers the limit, it waits for those that were granted meanwhile.
func TestLowerLimitCountsThoseWhoWereGrantedMeanwhile(t *testing.T) {
	t.Parallel()
	var r Record
	share := func(owner string, weight int) *driver.Request {
		return &driver.Request{Owner: owner, Mode: driver.Shared, Limit: 4, Weight: weight, TTL: ttl}
	}
	first, waits, later := share("first", 3), share("waits", 2), share("later", 2)
	r.Try(Instant(0), first, place, 0)
	r.Try(Instant(0), waits, place, 0)
	if err := r.Release("first"); err != nil {
		t.Fatal(err)
	}
	if !granted(r.Try(Instant(0), later, place, 0)) {
		t.Fatal("2 of 4 are free")
	}
	r.Limit = 2
	if next := slices.Collect(r.Next); next != nil {
		t.Errorf("woken while 2 of 2 are used: %v", next)
	}
	if granted(r.Try(Instant(0), waits, place, 0)) {
		t.Error("granted while 2 of 2 are used")
	}
	if err := r.Release("later"); err != nil {
		t.Fatal(err)
	}
	if next := slices.Collect(r.Next); !slices.Equal(next, []string{"waits"}) {
		t.Errorf("woken when 0 of 2 are used: %v", next)
	}
	if !granted(r.Try(Instant(0), waits, place, 0)) {
		t.Error("refused when 0 of 2 are used")
	}
}
