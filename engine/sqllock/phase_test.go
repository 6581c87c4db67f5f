package sqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/record"
)

// The table in the package's documentation: each answer in each phase.
func TestPhases(t *testing.T) {
	t.Parallel()
	wake := make(chan struct{})
	for _, from := range []phase{idle, refused, queued, held, leaving, over} {
		for what, answer := range map[string]struct {
			err       error
			yes, want phase
		}{
			"granted":               {nil, held, held},
			"refused":               {&driver.Busy{}, held, refused},
			"refused, with a place": {&driver.Busy{Wake: wake}, held, queued},
			"released":              {nil, over, over},
			"lost":                  {driver.ErrLost, held, over},
			"unknown":               {context.DeadlineExceeded, held, from},
			"a release unknown":     {nil, leaving, leaving},
		} {
			c := claim{phase: from, lease: lease{number: 1, ttl: time.Second}, turn: new(waiter)}
			c.moves(answer.err, answer.yes)
			if c.phase != answer.want || c.phase != held && c.lease != (lease{}) || c.phase != queued && c.turn != nil {
				t.Errorf("%s in phase %d: %+v, want phase %d and nothing of others", what, from, c, answer.want)
			}
		}
	}
}

// The first statement of each call in each phase, for an exclusive claim, with and without
// uncertain calls.
func TestCallsOfPhases(t *testing.T) {
	t.Parallel()
	const statement, row = "one statement", "the row"
	for _, test := range []struct {
		from         phase
		lateGrant    bool
		try, release string
	}{
		{idle, false, statement, row},
		{refused, false, statement, row},
		{queued, false, statement, row},
		{held, false, row, statement},
		{leaving, false, row, row},
		{over, false, statement, row},
		{idle, true, row, row},
		{queued, true, row, row},
		{held, true, row, row},
	} {
		var first string
		d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			if first == "" {
				first = row
				if slices.Contains([]string{d.texts.grant, d.texts.next, d.texts.pass, d.texts.free}, text) {
					first = statement
				}
			}
			return nil, errors.New("no answer")
		})
		for what, call := range map[string]func(c *claim) error{
			test.try:     func(c *claim) error { _, err := c.Try(t.Context()); return err },
			test.release: func(c *claim) error { return c.Release(t.Context(), driver.End{}) },
		} {
			if test.try == test.release && what == test.release {
				continue // the map has one of them
			}
			c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute})
			c.phase, c.lateGrant, c.lease.number = test.from, test.lateGrant, 7
			first = ""
			if err := call(c); err == nil || first != what {
				t.Errorf("in phase %d, late %v: %v, began with %q, want %q", test.from, test.lateGrant, err, first, what)
			}
		}
	}
}

// A release without an answer may arrive when the claim holds again. It names an old fence, so it
// does nothing.
func TestLateReleaseFindsAnotherFence(t *testing.T) {
	t.Parallel()
	var saved []sqldriver.NamedValue
	d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		switch text {
		case d.texts.pass, d.texts.free:
			return nil, errors.New("no answer")
		case d.texts.save:
			saved = args
			return [][]sqldriver.Value{{int64(4)}}, nil
		}
		return [][]sqldriver.Value{{int64(1000), int64(1000), "x", int64(7), "me", int64(1_001_000), int64(0), "", int64(3), int64(0), nothing, int64(0), int64(0), "[]"}}, nil
	})
	c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute})
	c.holds(7, time.Minute)
	if err := c.Release(t.Context(), driver.End{}); err == nil {
		t.Fatal("no error")
	}
	g, err := c.Try(t.Context())
	if err != nil || g.Fence <= driver.FenceOf(int64(7)) || saved[1].Value.(int64) <= 7 {
		t.Errorf("Try after a release without an answer: %+v, %v, saved fence %v; want a greater one", g, err, saved[1].Value)
	}
}

// A Try after the release of a place had no answer keeps the place if it is still there.
func TestTryKeepsThePlaceOfALateRelease(t *testing.T) {
	t.Parallel()
	var saved []sqldriver.NamedValue
	d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		switch text {
		case d.texts.leave:
			return nil, errors.New("no answer")
		case d.texts.save:
			saved = args
			return [][]sqldriver.Value{{int64(4)}}, nil
		}
		rows := heldRow("x")
		rows[0][len(rows[0])-1] = list([]any{11, "me", 0, 0, 1, "", 8_000_000}, []any{12, "behind", 0, 0, 1, "", 8_000_000})
		return rows, nil
	})
	c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute, Queue: true})
	c.phase = queued
	if err := c.Release(t.Context(), driver.End{}); err == nil || c.phase != leaving {
		t.Fatalf("Release: %v in phase %d; it is to be unknown", err, c.phase)
	}
	_, err := c.Try(t.Context())
	if busy, ok := errors.AsType[*driver.Busy](err); !ok || busy.Wake == nil {
		t.Errorf("Try: %v; want a place", err)
	}
	if saved != nil {
		t.Errorf("the row says that places up to %v are over; want no write", saved[8].Value)
	}
}

// A delivered grant counts for the Try that was refused, and not for an earlier one.
func TestGrantsThatAreTold(t *testing.T) {
	t.Parallel()
	req := driver.Request{Resource: "x", Owner: "me", TTL: time.Minute, Queue: true}
	for _, test := range []struct {
		name   string
		during int64 // delivered before the Try was answered; 0: none
		after  int64 // delivered afterwards
		want   int64
	}{
		{"afterwards", 0, 9, 9},
		{"before the answer", 9, 0, 9},
		{"of an earlier Try", 7, 6, 0},
		{"nothing", 0, 0, 0},
	} {
		d := scripted(t, func(context.Context, *Driver, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			return rowOf("x", one("", exclusive, record.Lingering, 1_001_000)), nil
		})
		d.watch.sent[3] = boottime.Now()
		turn := d.watch.arm(&req, nil, boottime.Now())
		tell := func(number int64) {
			if number != 0 {
				d.watch.hear(givenMessage + givenTo(&driver.Request{Resource: "x", Owner: "another"}) + " 99 3")
				d.watch.hear(givenMessage + givenTo(&req) + " " + string(rune('0'+number)) + " 3")
				d.watch.hear(givenMessage + givenTo(&req) + " x")
			}
		}
		tell(test.during)
		d.watch.refused(turn, true, 7, &driver.Busy{})
		tell(test.after)
		var got driver.Grant
		select {
		case got = <-turn.granted:
		default:
		}
		want := driver.Grant{}
		if test.want != 0 {
			want = driver.Grant{TTL: got.TTL, Fence: driver.FenceOf(test.want)}
		}
		if got != want || got.TTL > placeTTL || want.Fence != 0 && got.TTL < minTTL {
			t.Errorf("%s: %+v, want %+v", test.name, got, want)
		}
		c := claimed(t, d, req)
		c.phase, c.turn = queued, turn
		if c.collect(); (c.phase == held) != (test.want != 0) || c.lease.number != test.want {
			t.Errorf("%s: the claim is in phase %d with %+v", test.name, c.phase, c.lease)
		}
		d.watch.disarm(&req)
	}
}

// A place without an answer may arrive after the release, which leaves a mark against it.
func TestLatePlaceIsBarred(t *testing.T) {
	t.Parallel()
	var joined, saved []sqldriver.NamedValue
	d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		switch text {
		case d.texts.grant:
			return nil, nil // somebody holds
		case d.texts.join:
			joined = args
			return nil, errors.New("no answer")
		case d.texts.leave:
			return nil, nil // it is not there yet
		case d.texts.save:
			saved = args
			return [][]sqldriver.Value{{int64(4)}}, nil
		}
		return rowOf("x", one("other", exclusive, record.Holding, 1_001_000)), nil
	})
	c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute, Queue: true})
	if _, err := c.Try(t.Context()); err == nil || errors.Is(err, driver.ErrBusy) || joined == nil {
		t.Fatalf("Try: %v; it is to be unknown", err)
	}
	if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Fatal(err)
	}
	rec, err := record.Decode([]byte(saved[7].Value.(string)))
	if err != nil || !slices.ContainsFunc(rec.Claims, func(c record.Claim) bool { return c.Owner == "me" && c.Status == record.Gone }) {
		t.Errorf("the row has %+v, %v; want a mark", rec, err)
	}
}

// A release soon after a grant without waiters first sends a plain statement. If that gets no
// answer, no other statement follows. If somebody has come to wait meanwhile, a second statement
// grants the lock to the waiter.
func TestReleaseSoonAfterAGrant(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		age  time.Duration // of the grant
		give error         // nil: the statement finds that somebody waits
		want int           // statements that grant to a waiter
	}{
		"somebody waits": {0, nil, 1},
		"no answer":      {0, errors.New("no answer"), 0},
		"later":          {time.Hour, errors.New("not to be asked"), 1},
	} {
		gives, frees := 0, 0
		d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			if text == d.texts.give {
				gives++
				return nil, test.give
			}
			frees++
			return [][]sqldriver.Value{{nil}}, nil
		})
		c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute})
		c.holds(7, time.Minute)
		c.lease.alone = time.Now().Add(time.Minute - test.age) // so that a slow machine changes nothing
		err := c.Release(t.Context(), driver.End{})
		unknown := gives > 0 && test.give != nil
		if (err != nil) != unknown || unknown != (c.phase == leaving) || frees != test.want || (gives > 0) != (test.age == 0) {
			t.Errorf("%s: %v in phase %d, after %d plain statements and %d others", what, err, c.phase, gives, frees)
		}
	}
}

// A release looks a few times for a row that nobody changes meanwhile. Then it ends the lease whoever
// waits. One that lingers grants to nobody, so it need not look.
func TestReleaseBesideManyWrites(t *testing.T) {
	t.Parallel()
	for linger, want := range map[time.Duration][]string{
		0:           append(slices.Repeat([]string{"pass"}, mostPasses), "free"),
		time.Minute: {"free"},
	} {
		var sent []string
		d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			if text == d.texts.pass {
				sent = append(sent, "pass")
				return nil, nil
			}
			sent = append(sent, map[bool]string{true: "free", false: text}[text == d.texts.free])
			return [][]sqldriver.Value{{nil}}, nil
		})
		c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute})
		c.holds(7, time.Minute)
		if err := c.Release(t.Context(), driver.End{Linger: linger}); err != nil || !slices.Equal(sent, want) {
			t.Errorf("Release that lingers for %v: %v, by %q; want %q", linger, err, sent, want)
		}
	}
}
