package sqllock

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

const (
	exclusive = driver.Exclusive
	shared    = driver.Shared
)

// one returns a claim of a record.
func one(owner string, mode driver.Mode, s record.Status, ends int64) record.Claim {
	c := record.Claim{Owner: owner, Mode: mode, Status: s, Ends: ends, TTL: placeTTL}
	if s != record.Waiting && s != record.Gone {
		c.Fence = 7
	}
	return c
}

// decoded returns the row as it is read at the instant 1000.
func decoded(c columns) *row {
	r := &row{name: "a", now: 1000, floor: 1000}
	r.decode(&c, "[]")
	return r
}

// A row that was written is read back equal, whatever has happened before.
func TestRowsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	for range 200 {
		r := &row{name: "a", now: 1000, floor: 1000}
		for range 20 {
			who := rand.N(5)
			req := driver.Request{Owner: string(rune('a' + who)), TTL: time.Minute, Mode: driver.Mode(who % 2), Limit: who % 2 * rand.N(3)}
			switch rand.N(8) {
			case 0:
				_ = r.Release(req.Owner)
			case 1:
				_ = r.Linger(r.now, req.Owner, time.Minute)
			case 2:
				_ = r.Evict([]string{req.Owner, ""}[rand.N(2)], "why", r.floor)
			case 3:
				r.Bar(r.now, req.Owner, goneTTL)
			default:
				r.Try(r.now, &req, placeTTL, r.floor)
			}
			back := decoded(r.encode())
			if back.damage != nil || back.Fence != r.Fence || !reflect.DeepEqual(shownOf(back), shownOf(r)) {
				t.Fatalf("%+v, %v\nwas %+v", back.Record, back.damage, r.Record)
			}
			if before, after := slices.Collect(r.Next), slices.Collect(back.Next); !slices.Equal(before, after) {
				t.Fatalf("next is %q, was %q\n%+v\nwas %+v", after, before, back.Record, r.Record)
			}
		}
	}
}

// shownOf returns what is shown of r, without TTLs, for which the exclusive lease has no column.
func shownOf(r *row) driver.State {
	st := r.State(r.now, "a")
	for i := range st.Holders {
		st.Holders[i].TTL = 0
	}
	return st
}

// Plain statements see the exclusive lease, and when the record counts.
func TestColumns(t *testing.T) {
	t.Parallel()
	lease, waiting := one("holder", exclusive, record.Holding, 1500), one("waiter", exclusive, record.Waiting, 1002)
	linger := one("", exclusive, record.Lingering, 1500)
	for _, test := range []struct {
		claims []record.Claim
		want   columns
		next   []string
	}{
		{nil, columns{record: nothing}, nil},
		{[]record.Claim{lease}, columns{owner: "holder", expires: 1500, record: nothing}, nil},
		{[]record.Claim{linger}, columns{expires: 1500, record: nothing}, nil},
		{[]record.Claim{lease, waiting}, columns{owner: "holder", expires: 1500, crowd: 1002}, nil},
		{[]record.Claim{waiting}, columns{crowd: 1002}, []string{"wai"}},
		{[]record.Claim{one("out", exclusive, record.Evicted, 1500)}, columns{}, nil},
		{[]record.Claim{one("sharer", shared, record.Holding, 1500)}, columns{crowd: 1500}, nil},
		{[]record.Claim{one("gone", exclusive, record.Gone, 1500), one("b", exclusive, record.Waiting, 1002)}, columns{crowd: 1500}, []string{""}},
	} {
		r := &row{now: 1000, Record: record.Record{Fence: 7, Claims: test.claims}}
		got := r.encode()
		if test.want.fence = 7; test.want.record == "" {
			test.want.record = got.record
		}
		if got != test.want {
			t.Errorf("%+v: %+v\nwant %+v", test.claims, got, test.want)
		}
		if next := r.next(); !slices.Equal(next, test.next) {
			t.Errorf("%+v: next %q, want %q", test.claims, next, test.next)
		}
	}
}

// A fence grows with its floor, and without it if the floor went back.
func TestNextFence(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		last  int64
		floor uint64
		want  uint64
	}{
		{0, 1_700_000_000_000_000, 1_700_000_000_000_000},
		{1_700_000_000_000_000, 1_700_000_000_000_000, 1_700_000_000_000_001},
		{1_700_000_000_000_000, 1_600_000_000_000_000, 1_700_000_000_000_001},
	} {
		if got := decoded(columns{fence: test.last}).NextFence(test.floor); got != test.want {
			t.Errorf("after %d at %d: %d, want %d", test.last, test.floor, got, test.want)
		}
	}
	if last := time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(); last >= 1<<53 {
		t.Errorf("the fence of 2255 has more than 53 bits")
	}
}

// A lease is never shorter than asked for, and never turns negative.
func TestTTLsRoundUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]time.Duration{
		1: time.Microsecond, time.Microsecond: time.Microsecond, time.Microsecond + 1: 2 * time.Microsecond, math.MaxInt64: math.MaxInt64,
	} {
		if got := roundUp(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	p := pace{first: time.Millisecond, last: 20 * time.Millisecond, share: 32, idle: 4}
	distant := p
	distant.far = 80 * time.Millisecond
	heads := pace{first: 4 * time.Millisecond, others: 60 * time.Millisecond, last: 100 * time.Millisecond, share: 4, idle: 1}
	for _, test := range []struct {
		pace         pace
		quiet, spent time.Duration
		ahead        int
		want         time.Duration
	}{
		{p, 0, 0, 0, p.first},
		{p, 0, 0, 3, 4 * p.first},
		{p, time.Hour, 0, 0, p.last},
		{p, 0, time.Second, 0, maxBlind},
		{p, 0, time.Millisecond, 0, 4 * time.Millisecond},
		{p, 0, 0, maxAhead, p.last},
		{distant, time.Hour, 0, 0, p.last},
		{distant, time.Hour, 0, 1, distant.far},
		{distant, 0, 0, 1, 2 * p.first},
		{distant, distant.far - 1, 0, maxAhead, distant.last},
		{distant, distant.far, 0, maxAhead, distant.far},
		{pace{first: p.first, last: p.last, share: 32, idle: 4, far: 2 * maxBlind}, time.Hour, 0, 1, 2 * maxBlind},
		{heads, 0, 0, 0, heads.first},
		{heads, 40 * time.Millisecond, 0, 0, 10 * time.Millisecond},
		{heads, time.Hour, 0, 0, heads.last},
		{heads, 0, 0, 1, heads.others},
		{heads, 0, 0, maxAhead, heads.last},
	} {
		if got := test.pace.after(test.quiet, test.spent, test.ahead); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// Any text in the column is either read or reported as damage.
func FuzzRecords(f *testing.F) {
	for _, s := range []string{
		"", "[]", "null", "{}", "x", nothing, `{"v":1,"claims":[{"owner":"a","ends":1001}]}`, `{"v":1,"claims":[{"limit":-1,"status":9}]}`,
		`{"v":1,"fence":9,"claims":[{"owner":"a","status":1,"mode":1,"ends":9223372036854775807},{"status":2,"ends":2000}]}`, `[null]`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := decoded(columns{owner: "holder", expires: 1500, record: text})
		if r.damage != nil && (!errors.Is(r.damage, driver.ErrCorrupt) || len(r.Claims) > 1) {
			t.Errorf("%v beside %d claims; want ErrCorrupt and the lease", r.damage, len(r.Claims))
		}
		for _, h := range r.State(r.now, "a").Holders {
			if h.Left < 0 {
				t.Errorf("%v left", h.Left)
			}
		}
		r.next()
		r.encode()
		_ = r.Evict("holder", "why", 1)
	})
}

func FuzzPrefix(f *testing.F) {
	for _, s := range []string{"", "leasehold_", "a;b", "a\"", "é", "0a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := (&Options{Prefix: s}).withDefaults()
		if err != nil {
			return
		}
		for i, c := range []byte(o.Prefix) {
			letter := c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z'
			if !letter && (i == 0 || c < '0' || c > '9') {
				t.Fatalf("%q was accepted", s)
			}
		}
	})
}

func ExampleOptions() {
	_, err := NewSQLite(nil, &Options{Prefix: "drop table"})
	fmt.Println(err)
	// Output: sqllock: Prefix "drop table" is not an identifier of at most 40 letters, digits and underscores
}

// A grant ends its owner's place, and not another that was taken in the same microsecond.
func TestGrantEndsItsOwnPlaceAlone(t *testing.T) {
	t.Parallel()
	line := func(places string) *row {
		r := &row{name: "a", now: 1000, floor: 1000}
		r.decode(&columns{record: nothing, crowd: 5000}, places)
		return r
	}
	const first, second = `[7, "first", 0, 0, 1000000, "", 9000000]`, `[7, "second", 0, 0, 1000000, "", 9000000]`
	r := line("[" + second + "," + first + "]")
	if a, _ := r.try(&driver.Request{Owner: "first", TTL: time.Second}); !a.Granted {
		t.Fatalf("%+v", a)
	}
	if c := r.encode(); c.served >= 7 || c.owner != "first" {
		t.Errorf("%+v: the place of the second is over", c)
	}
}

// A row with a limit is kept even by programs that know no limits and purge idle rows.
func TestLimitKeepsTheRow(t *testing.T) {
	t.Parallel()
	r := row{now: 1}
	r.Limit = 2
	if c := r.encode(); c.crowd < limitLife {
		t.Errorf("the row is kept until %d", c.crowd)
	}
	r.Limit = 0
	if c := r.encode(); c.crowd != 0 || c.record != nothing {
		t.Errorf("without a limit it is kept until %d, with %s", c.crowd, c.record)
	}
}

// A place with a weight is exclusive for programs that know no weights, and has all its terms here.
func TestPlaceWithWeight(t *testing.T) {
	t.Parallel()
	for _, req := range []driver.Request{
		{Mode: driver.Exclusive}, {Mode: driver.Shared}, {Mode: driver.Shared, Limit: 5}, {Mode: driver.Shared, Limit: 5, Weight: 1},
		{Mode: driver.Shared, Weight: 2}, {Mode: driver.Shared, Limit: 7, Weight: 3}, {Mode: driver.Shared, Limit: driver.MaxWeight, Weight: driver.MaxWeight},
	} {
		mode, limit := stored(&req)
		if req.Weight > 1 && driver.Mode(mode) != driver.Exclusive {
			t.Errorf("%+v is stored with mode %d", req, mode)
		}
		c := (&place{mode: driver.Mode(mode), limit: limit}).claim()
		if c.Mode != req.Mode || c.Limit != req.Limit || max(c.Weight, 1) != max(req.Weight, 1) {
			t.Errorf("%+v is read as %+v", req, c)
		}
	}
}

// The mark of a row lasts as long as the longest listener, and is for each place if one of them
// wants to know of each.
func TestMarkIsOfAllWhoListen(t *testing.T) {
	t.Parallel()
	const each, once = true, false
	for _, tc := range []struct {
		how  [2]bool
		ends [2]int64
		want int64
	}{
		{[2]bool{once, once}, [2]int64{5, 3}, 5},
		{[2]bool{once, each}, [2]int64{5, 3}, -5},
		{[2]bool{each, once}, [2]int64{3, 5}, -5},
		{[2]bool{each, each}, [2]int64{3, 5}, -5},
	} {
		var r row
		for i, ends := range tc.ends {
			owner := fmt.Sprint(i)
			r.Claims = append(r.Claims, record.Claim{Owner: owner, Status: record.Holding, Ends: ends})
			r.listens(&driver.Request{Owner: owner, Wanted: func() {}, WantedOnce: tc.how[i] == once})
		}
		if r.recall != tc.want {
			t.Errorf("each %v, until %v: the mark is %d; want %d", tc.how, tc.ends, r.recall, tc.want)
		}
	}
}
