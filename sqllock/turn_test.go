package sqllock

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	exclusive = driver.Exclusive
	shared    = driver.Shared
)

func row(ticket int64, owner string, mode driver.Mode, s status, limit int) claimRow {
	return claimRow{Ticket: ticket, Owner: owner, Mode: mode, Status: s, Limit: limit, Expires: 1000 + ticket}
}

func TestObstacle(t *testing.T) {
	t.Parallel()
	free := lockRow{owner: "gone", expires: 1000}
	held := lockRow{owner: "holder", expires: 1500}
	for _, test := range []struct {
		name   string
		lock   lockRow
		claims []claimRow
		mode   driver.Mode
		limit  int
		want   int64
	}{
		{name: "free", lock: free},
		{name: "free for sharing", lock: free, mode: shared, limit: 1},
		{name: "held", lock: held, want: 1500},
		{name: "held, sharing", lock: held, mode: shared, want: 1500},
		{name: "the first to end counts", lock: held, claims: []claimRow{row(1, "a", exclusive, waiting, 0)}, want: 1001},
		{name: "evicted counts for nothing", lock: free, claims: []claimRow{row(1, "a", shared, evicted, 0)}},
		{name: "sharer before exclusive", lock: free, claims: []claimRow{row(1, "a", shared, holding, 0)}, want: 1001},
		{name: "sharers together", lock: free, claims: []claimRow{row(1, "a", shared, holding, 0)}, mode: shared},
		{name: "lingering counts as holding", lock: free, claims: []claimRow{row(1, "a", shared, lingering, 0)}, want: 1001},
		{name: "lingering of myself too", lock: free, claims: []claimRow{row(1, "me", shared, lingering, 0)}, want: 1001},
		{name: "waiter ahead", lock: free, claims: []claimRow{row(1, "a", exclusive, waiting, 0), row(2, "me", exclusive, waiting, 0)}, want: 1001},
		{name: "waiter behind", lock: free, claims: []claimRow{row(2, "me", exclusive, waiting, 0), row(3, "a", exclusive, waiting, 0)}},
		{name: "writer ahead of a reader", lock: free, mode: shared,
			claims: []claimRow{row(1, "a", shared, holding, 0), row(2, "b", exclusive, waiting, 0)}, want: 1002},
		{name: "readers ahead of a reader", lock: free, mode: shared, claims: []claimRow{row(1, "a", shared, waiting, 0), row(2, "b", shared, waiting, 0)}},
		{name: "own limit", lock: free, mode: shared, limit: 1, claims: []claimRow{row(1, "a", shared, holding, 0)}, want: 1001},
		{name: "limit of a holder", lock: free, mode: shared, limit: 5, claims: []claimRow{row(1, "a", shared, holding, 1)}, want: 1001},
		{name: "limit with room", lock: free, mode: shared, limit: 2, claims: []claimRow{row(1, "a", shared, holding, 2)}},
		{name: "slot kept for who is ahead", lock: free, mode: shared, limit: 2,
			claims: []claimRow{row(1, "a", shared, holding, 2), row(2, "b", shared, waiting, 2), row(3, "me", shared, waiting, 2)}, want: 1001},
		{name: "slot not kept for who is behind", lock: free, mode: shared, limit: 2,
			claims: []claimRow{row(1, "a", shared, holding, 2), row(2, "me", shared, waiting, 2), row(3, "b", shared, waiting, 2)}},
	} {
		r := resource{now: 1000, lock: test.lock, claims: test.claims}
		if got := r.obstacle(&driver.Request{Owner: "me", Mode: test.mode, Limit: test.limit}); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// A fence grows with its floor, and where that went back, without it.
func TestNextFence(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ last, floor, want int64 }{
		{0, 1_700_000_000_000_000, 1_700_000_000_000_000},
		{1_700_000_000_000_000, 1_700_000_000_000_000, 1_700_000_000_000_001},
		{1_700_000_000_000_000, 1_600_000_000_000_000, 1_700_000_000_000_001},
	} {
		if got := (&resource{floor: test.floor, lock: lockRow{fence: test.last}}).nextFence(); got != test.want {
			t.Errorf("after %d at %d: %d, want %d", test.last, test.floor, got, test.want)
		}
	}
	if last := time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(); last > maxNumber {
		t.Errorf("the fence of 2255 has more than 53 bits")
	}
}

func TestEvictedKeepsReasonUntilExpiry(t *testing.T) {
	t.Parallel()
	r := resource{now: 1000, lock: lockRow{fence: 7, owner: "holder", expires: 1500},
		claims: []claimRow{row(4, "waiter", exclusive, waiting, 0)}}
	trace := r.evict("holder", "why")
	if trace == nil || trace.Status != evicted || trace.Note != "why" || trace.Expires != 1500 || trace.Ticket != 5 {
		t.Errorf("%+v", trace)
	}
	if r.lock.owner != "" || r.lock.expires > r.now || r.lock.fence <= 7 {
		t.Errorf("%+v", r.lock)
	}
	if r.evict("waiter", "why") != nil {
		t.Error("a waiter was evicted: it holds nothing")
	}
}

// A lease is never shorter than asked for, and never turns negative.
func TestInMillisRoundsUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{
		1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, math.MaxInt64: math.MaxInt64/int64(time.Millisecond) + 1,
	} {
		if got := inMillis(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	p := pace{first: time.Millisecond, last: 20 * time.Millisecond, share: 32, idle: 4}
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

// Whatever stands in the column, it is read or it is damage.
func FuzzClaims(f *testing.F) {
	for _, s := range []string{
		"", "[]", "null", "{}", "x", `[{"ticket":1,"owner":"a","expires":1001}]`, `[{"ticket":-1,"limit":-1,"status":9,"expires":9223372036854775807}]`,
		`[{"ticket":9223372036854775807,"status":1,"mode":1,"expires":2000},{"status":3,"expires":2000}]`, `[{"ticket":"1"}]`, `[null]`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, claims string) {
		r := resource{now: 1000, lock: lockRow{name: "a", owner: "holder", expires: 1500}}
		r.decode(claims)
		if r.damage != nil && (!errors.Is(r.damage, driver.ErrCorrupt) || len(r.claims) > 0) {
			t.Errorf("%v beside %d claims; want ErrCorrupt and none", r.damage, len(r.claims))
		}
		for _, h := range r.state().Holders {
			if h.Left < 0 {
				t.Errorf("%v left", h.Left)
			}
		}
		r.next()
		r.crowd()
		r.obstacle(&driver.Request{Owner: "me"})
		r.evict("holder", "why")
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
