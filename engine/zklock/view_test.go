package zklock

import (
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
