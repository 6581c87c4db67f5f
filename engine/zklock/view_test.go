package zklock

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A waiter is refused unseen only while a view says that it is where it was, over the connection that would tell of more.
func TestRefusedUnseenOnlyWhileNothingHasChanged(t *testing.T) {
	for what, test := range map[string]struct {
		change func(s *session, c *claim, v *view)
		unseen bool
	}{
		"seen a moment ago":              {func(*session, *claim, *view) {}, true},
		"seen too long ago":              {func(s *session, _ *claim, v *view) { v.asked = v.asked.Add(-s.timeout / viewsPerSession) }, false},
		"nobody knows who holds":         {func(_ *session, _ *claim, v *view) { v.told = false }, false},
		"nobody has seen it":             {func(s *session, c *claim, _ *view) { delete(s.views, c.parent) }, false},
		"the next":                       {func(_ *session, _ *claim, v *view) { v.nodes = v.nodes[2:] }, false},
		"the one ahead has gone":         {func(_ *session, _ *claim, v *view) { v.nodes = slices.Delete(v.nodes, 2, 3) }, false},
		"it has gone itself":             {func(_ *session, _ *claim, v *view) { v.nodes = v.nodes[:3] }, false},
		"it was woken":                   {func(_ *session, c *claim, _ *view) { close(c.phase.(*queued).wake.rung) }, false},
		"it does not listen":             {func(_ *session, c *claim, _ *view) { c.phase.(*queued).wake = nil }, false},
		"over another connection":        {func(s *session, _ *claim, _ *view) { s.conn.greeting++ }, false},
		"the connection is down":         {func(s *session, _ *claim, _ *view) { s.conn.state = down }, false},
		"another session":                {func(s *session, _ *claim, _ *view) { s.life.id++ }, false},
		"another node of it may come":    {func(_ *session, c *claim, _ *view) { c.uncertain = true }, false},
		"it was granted, and knows that": {func(_ *session, c *claim, _ *view) { c.phase = &held{} }, false},
	} {
		d, err := New([]string{"localhost"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := newSession(d, 15*time.Second, 10*time.Second)
		s.conn.state, s.conn.greeting, s.life.id = up, 1, 7
		c := newClaim(s, driver.Request{Resource: "r", Owner: "o", TTL: s.ttl, Queue: true})
		c.node = &own{name: "c-lock-0000000003", session: 7}
		c.phase = &queued{wake: &wake{names: []string{"b-lock-0000000002"}, rung: make(chan struct{})}}
		nodes, err := parseNodes([]string{"z-lock-0000000000", "a-lock-0000000001", "b-lock-0000000002", c.node.name})
		if err != nil {
			t.Fatal(err)
		}
		v := &view{nodes: nodes, told: true, greeting: 1, seen: d.clock.Now()}
		s.saw(c.parent, v)
		test.change(s, c, v)
		if busy := c.stays(d.clock.Now()); (busy != nil) != test.unseen {
			t.Errorf("%s: refused unseen: %t; want %t", what, busy != nil, test.unseen)
		}
	}
}

// Views that nobody asks for any more go.
func TestOldViewsGo(t *testing.T) {
	d, err := New([]string{"localhost"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(d, 15*time.Second, 10*time.Second)
	for i := range 1000 {
		s.saw(string(rune('a'+i)), &view{seen: d.clock.Now().Add(-time.Minute)})
	}
	s.saw("now", &view{seen: d.clock.Now()})
	if n := len(s.views); n > 3 {
		t.Errorf("%d views are kept; want few", n)
	}
}

// Who holds a resource is asked for but while it changes hands.
func TestHolderIsNotAskedForWhileTheQueueMoves(t *testing.T) {
	d, err := New([]string{"localhost"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, before, now := newSession(d, 15*time.Second, 10*time.Second), node{name: "a"}, node{name: "b"}
	if s.moves("r", now) {
		t.Error("a queue moves that nobody has seen")
	}
	s.saw("r", &view{nodes: []node{before, now}, seen: d.clock.Now()})
	if !s.moves("r", now) || s.moves("r", before) || s.moves("other", now) {
		t.Errorf("another holds: %t; the same does: %t; of another resource: %t", s.moves("r", now), s.moves("r", before), s.moves("other", now))
	}
	s.saw("r", &view{nodes: []node{before, now}, seen: d.clock.Now().Add(-2 * moment)})
	if s.moves("r", now) {
		t.Error("a queue moves that was seen long ago")
	}
}

// Each node is found where it is, also where sequence numbers begin anew, and none that has gone.
func TestViewFindsEachNode(t *testing.T) {
	for _, start := range []int32{0, math.MaxInt32 - 50, math.MinInt32, -50} {
		var names []string
		for i := range int32(100) {
			names = append(names, fmt.Sprintf("x-lock-%010d", start+i))
		}
		nodes, err := parseNodes(append([]string{"y-lock-" + names[7][len("x-lock-"):]}, names...)) // another client's
		if err != nil {
			t.Fatal(err)
		}
		v := &view{nodes: slices.Delete(slices.Clone(nodes), 20, 21)}
		for i, n := range nodes {
			want := i
			switch {
			case i == 20:
				want = -1
			case i > 20:
				want--
			}
			if got := v.index(n.name); got != want {
				t.Errorf("number %d from %d is found at %d, want %d", i, start, got, want)
			}
		}
		for _, name := range []string{"x-lock-" + fmt.Sprintf("%010d", start-1), "x-lock-" + fmt.Sprintf("%010d", start+100), "z", ""} {
			if got := v.index(name); got != -1 {
				t.Errorf("%q, which is not there, is found at %d", name, got)
			}
		}
	}
	if got := new(view).index("x-lock-0000000001"); got != -1 {
		t.Errorf("in an empty queue one is found at %d", got)
	}
}

// Where one stands in a long queue is hardly more work to find than in a short one: all who wait ask, one after the other.
func TestViewIsNoWorkForEachWaiter(t *testing.T) {
	cost := func(n int) time.Duration {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("x-lock-%010d", i)
		}
		nodes, err := parseNodes(names)
		if err != nil {
			t.Fatal(err)
		}
		v, least := &view{nodes: nodes}, time.Hour
		for range 5 {
			start := time.Now()
			for range 100 {
				if v.index(names[n-1]) != n-1 {
					t.Fatal("the last is not found")
				}
			}
			least = min(least, time.Since(start))
		}
		return least
	}
	few, many := cost(100), cost(100_000)
	t.Logf("%v in a queue of 100, %v in one of 100,000", few, many)
	if many > 20*few {
		t.Errorf("it takes %v in a queue of 100,000, and %v in one of 100; want at most 20 times as long", many, few)
	}
}
