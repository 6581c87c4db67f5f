package zklock

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// in returns a claim in the phase of that name, as the table of phase.go names it.
func in(t *testing.T, name string) *claim {
	t.Helper()
	s := testSession(t, DefaultSessionTimeout)
	s.greeted(s.timeout, 77, boottime.Now(), false)
	s.begin()
	s.prove(77, boottime.Now().Add(s.timeout/carriedAfter))
	c := newClaim(s, driver.Request{Resource: "r", Owner: "o", TTL: s.ttl, Queue: true})
	c.tried = boottime.Now()
	name, c.uncertain = strings.TrimSuffix(name, "?"), strings.HasSuffix(name, "?")
	if name != "idle" && !c.uncertain {
		c.node = &own{name: nodeOf(c), session: 77, fence: 12, alarm: &alarm{}}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch name {
	case "queued":
		c.become(&queued{})
	case "held":
		s.keep(c)
		c.become(&held{expires: boottime.Now().Add(s.ttl)})
	case "leaving":
		c.become(&leaving{at: boottime.Now().Add(time.Minute)})
	}
	t.Cleanup(func() {
		if c.timer != nil {
			c.timer.Stop()
		}
	})
	return c
}

func nodeOf(c *claim) string { return "_c_" + c.guid + markLock + "0000000002" }

// nameOf is how the table names the phase of c.
func nameOf(c *claim) (name string) {
	switch c.current().(type) {
	case idle:
		name = "idle"
	case *queued:
		name = "queued"
	case *held:
		name = "held"
	case *leaving:
		name = "leaving"
	}
	if c.uncertain {
		name += "?"
	}
	return name
}

// events are the rows of the table.
var events = map[string]func(c *claim){
	"creation sent":         func(c *claim) { c.entering() },
	"creation: yes":         func(c *claim) { _ = c.entered(boottime.Now(), c.parent+"/"+nodeOf(c), nil) },
	"creation: no":          func(c *claim) { _ = c.entered(boottime.Now(), "", zk.ErrNoAuth) },
	"creation: unknown":     func(c *claim) { _ = c.entered(boottime.Now(), "", zk.ErrConnectionClosed) },
	"looked for: there":     func(c *claim) { c.looked([]string{"another-lock-0000000001", nodeOf(c)}) },
	"looked for: not there": func(c *claim) { c.looked([]string{"another-lock-0000000001"}) },
	"node or session gone": func(c *claim) {
		if c.holds(boottime.Now()) == nil {
			c.lose(errExpired)()
			return
		}
		c.forget()
	},
	"granted":          func(c *claim) { _, _ = c.granted(boottime.Now(), c.s.proof().lasts, nil, 0) },
	"renewal: yes":     func(c *claim) { _, _ = c.renewed(boottime.Now(), c.s.proof(), nil) },
	"renewal: unknown": func(c *claim) { _, _ = c.renewed(boottime.Now(), c.s.proof(), zk.ErrConnectionClosed) },
	"lost":             func(c *claim) { c.s.lose(errExpired) },
	"lease over":       func(c *claim) { _ = c.holds(boottime.Now().Add(time.Minute)) },
	"given up":         func(c *claim) { c.giveUp() },
	"deletion: yes":    func(c *claim) { _ = c.left(nil) },
	"deletion: no node": func(c *claim) {
		_ = c.left(lostFor("its node is gone"))
	},
	"deletion: unknown": func(c *claim) { _ = c.left(zk.ErrConnectionClosed) },
}

// Each event leaves a claim in the phase that the table says, and whatever may have a
// node at the ensemble has an instant at which the timer looks after it.
func TestPhasesAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	phases, rows := table(t)
	if len(rows) != len(events) {
		t.Errorf("the table has %d rows, there are %d events", len(rows), len(events))
	}
	for event, cells := range rows {
		happens := events[event]
		if happens == nil {
			t.Errorf("the table has %q, which is no event", event)
			continue
		}
		for i, want := range cells {
			if want == "-" {
				continue
			}
			c := in(t, phases[i])
			happens(c)
			if got := nameOf(c); got != want {
				t.Errorf("%s, %s: now %s, want %s", phases[i], event, got, want)
			}
			c.mu.Lock()
			if due := c.phase.due(c); due == 0 != (want == "idle") {
				t.Errorf("%s, %s: the timer looks at %v", phases[i], event, due)
			}
			if told := c.s.held[c]; told != (want == "held") {
				t.Errorf("%s, %s: told of the session's end: %v", phases[i], event, told)
			}
			c.mu.Unlock()
		}
	}
}

// table reads that of phase.go.
func table(t *testing.T) (phases []string, rows map[string][]string) {
	t.Helper()
	text, err := os.ReadFile("phase.go")
	if err != nil {
		t.Fatal(err)
	}
	gaps := regexp.MustCompile(`\s{2,}`)
	rows = make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		line, ok := strings.CutPrefix(line, "//\t")
		cells := gaps.Split(strings.TrimSpace(line), -1)
		switch {
		case !ok:
		case phases == nil:
			phases = cells
		case len(cells) != len(phases)+1:
			t.Errorf("%q has %d cells", line, len(cells))
		default:
			rows[cells[0]] = cells[1:]
		}
	}
	return phases, rows
}

// Renew believes in nothing but a lease that is held, whose node is watched, and whose session
// was proven.
func TestRenewedCountsFromItsCall(t *testing.T) {
	t.Parallel()
	var unanswered error
	for why, spoil := range map[string]func(c *claim, p *proof){
		"":                       func(*claim, *proof) {},
		"unanswered":             func(*claim, *proof) { unanswered = zk.ErrConnectionClosed },
		"the node was disturbed": func(c *claim, _ *proof) { c.disturbed(c.node, c.node.alarm) },
		"another session":        func(_ *claim, p *proof) { p.session++ },
		"no session for so long": func(_ *claim, p *proof) { p.lasts = boottime.Now().Add(-time.Second) },
		"lost":                   func(c *claim, _ *proof) { c.lose(errExpired)() },
		"given up":               func(c *claim, _ *proof) { c.giveUp() },
	} {
		c := in(t, "held")
		if !c.calls.TryBegin() { // as a renewal does: else the timer listens to the node again
			t.Fatal("another call is under way")
		}
		asked, p := boottime.Now(), c.s.proof()
		unanswered = nil
		spoil(c, &p)
		g, err := c.renewed(asked, p, unanswered)
		c.calls.End()
		if (why == "") != (err == nil) {
			t.Errorf("%s: %+v, %v", why, g, err)
		}
		if h, ok := c.current().(*held); err == nil && (!ok || h.expires != asked.Add(g.TTL) || g.Fence != c.node.fence) {
			t.Errorf("%+v, which ends at %+v", g, h)
		}
	}
	c := in(t, "held")
	c.lose(lostFor("tested"))()
	if _, err := c.renewed(boottime.Now(), c.s.proof(), nil); !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "tested") {
		t.Errorf("after the loss: %v", err)
	}
}

// A grant counts from before its call, and lasts no longer than the session.
func TestGrantedCountsFromItsCall(t *testing.T) {
	t.Parallel()
	for _, of := range []time.Duration{time.Hour, 3 * time.Second, 0} {
		c := in(t, "queued")
		asked := boottime.Now().Add(-time.Second)
		want := min(c.req.TTL, of)
		g, err := c.granted(asked, asked.Add(of), nil, 0)
		if h, ok := c.current().(*held); ok != (of > 0) || ok && (h.expires != asked.Add(want) || g.TTL != want) || !ok && err == nil {
			t.Errorf("of a session that lasts for %v: %+v, %v, which ends at %+v", of, g, err, h)
		}
	}
}

// The node of a lost lease stays as long as its holder may not have heard of the loss.
func TestLostKeepsTheNode(t *testing.T) {
	t.Parallel()
	c := in(t, "held")
	expires := c.current().(*held).expires
	c.lose(errExpired)()
	if l := c.current().(*leaving); l.at != expires {
		t.Errorf("the node goes at %v, the lease ended at %v", l.at, expires)
	}
}

// A lease that expired says so for as long as the claim is not tried again, whether its timer or its
// holder is first to find out, and whatever comes of the deletion.
func TestExpiredStaysTheReason(t *testing.T) {
	t.Parallel()
	c := in(t, "held")
	c.mu.Lock()
	c.phase.(*held).expires = boottime.Now()
	c.mu.Unlock()
	check := func(when string) {
		t.Helper()
		if err := c.holds(boottime.Now()); !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "it has expired") {
			t.Errorf("%s: %v; want that it has expired", when, err)
		}
	}
	if over, due := c.overdue(); !over || !due {
		t.Fatal("the timer does not remove the node of a lease that is over")
	}
	c.giveUp()
	check("before the deletion")
	_ = c.left(zk.ErrConnectionClosed)
	check("the deletion is unknown")
	_ = c.left(nil)
	check("the node is gone")
	if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "it has expired") {
		t.Errorf("Release: %v; want that it has expired", err)
	}
	c.entering()
	if err := c.holds(boottime.Now()); !errors.Is(err, errNotHeld) {
		t.Errorf("it waits again: %v; want %v", err, errNotHeld)
	}
}

// The timer was to watch a node, or to end a place in the queue, and waited for another call. It removes
// no node of a lease that was lost meanwhile, whose holder may not have heard of it, and of no waiter who is back.
func TestTimerLooksAgain(t *testing.T) {
	t.Parallel()
	for _, when := range []struct {
		phase     string
		meanwhile func(c *claim)
		over, due bool
	}{
		{"held", func(*claim) {}, false, true},
		{"held", func(c *claim) { c.lose(errExpired)() }, false, false},
		{"queued", func(c *claim) { c.tried = c.tried.Add(-placeTTL) }, true, true},
		{"queued?", func(c *claim) { c.tried = c.tried.Add(-placeTTL); c.attend() }, false, false},
		{"leaving", func(c *claim) { c.phase.(*leaving).at = boottime.Now() }, true, true},
		{"leaving", func(*claim) {}, false, false},
	} {
		c := in(t, when.phase)
		if h, ok := c.current().(*held); ok {
			h.watchAt = boottime.Now()
		}
		when.meanwhile(c)
		if over, due := c.overdue(); over != when.over || due != when.due {
			t.Errorf("%s: over %v, due %v; want %v, %v", when.phase, over, due, when.over, when.due)
		}
	}
}
