package sqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A silence is a Listener that reports that it listens each time the test lets it begin.
type silence struct{ begin chan struct{} }

func (s silence) Listen(ctx context.Context, _ string, hear func(string)) error {
	for {
		select {
		case <-s.begin:
			hear("")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// listening is scripted with a Listener that receives what the test sends.
func listening(t *testing.T, answer func(d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error)) (*Driver, silence) {
	t.Helper()
	s := silence{make(chan struct{})}
	d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		return answer(d, text, args)
	})
	d.watch.listener = s
	return d, s
}

// comes returns the message that owner has queued for resource.
func comes(resource, owner string) string {
	d := Driver{watch: &watcher{listenState: listenState{listener: silence{}}}}
	of := d.recallOf(&driver.Request{Resource: resource, Owner: owner, Wanted: func() {}})
	return wantedMessage + of.name + " " + of.self
}

func TestMessagesRecallWhoHolds(t *testing.T) {
	t.Parallel()
	granting := func(*claim) {}
	refuses := false
	var c *claim
	d, _ := listening(t, func(d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		granting(c)
		switch {
		case refuses && text == d.texts.grant:
			return nil, nil
		case refuses:
			return rowOf("x", one("other", exclusive, record.Holding, 1_001_000)), nil
		}
		return [][]sqldriver.Value{{int64(7)}}, nil
	})
	calls := 0
	wants := func(want int, why string) {
		t.Helper()
		if calls != want {
			t.Errorf("Wanted was called %d times; want %d: %s", calls, want, why)
		}
		calls = 0
	}
	try := func() { c.Try(t.Context()) }
	c = claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute, Wanted: func() { calls++ }})

	d.watch.hear(comes("x", "other"))
	wants(0, "nothing is tried yet")
	granting = func(*claim) { d.watch.hear(comes("x", "me")); d.watch.hear(comes("y", "other")) }
	refuses = true
	try()
	wants(0, "it is refused")
	granting = func(*claim) { d.watch.hear(comes("x", "other")) }
	try()
	wants(0, "it is refused while another comes")
	granting, refuses = func(*claim) { d.watch.hear(comes("x", "me")); d.watch.hear(comes("y", "other")) }, false
	try()
	wants(0, "it comes itself, and somebody elsewhere")
	d.watch.hear(comes("x", "me"))
	wants(0, "it came itself, which is heard late")
	d.watch.hear(comes("x", "other"))
	d.watch.hear(comes("x", "other"))
	wants(2, "others come")
	granting = func(*claim) { d.watch.hear(comes("x", "other")) }
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	d.watch.hear(comes("x", "other"))
	wants(0, "it is released")
	granting = func(*claim) { d.watch.hear(comes("x", "other")) }
	try()
	wants(1, "another comes while the grant is under way")
	granting = func(*claim) {}
	c.recall.ends = boottime.Now() - 1
	d.watch.hear(comes("x", "other"))
	wants(0, "its lease has ended")
}

// If no claim asks for recalls, the statements are the plain ones, and nothing listens.
func TestWhoDoesNotAskListensToNobody(t *testing.T) {
	t.Parallel()
	for _, asks := range []bool{false, true} {
		var texts []string
		d, _ := listening(t, func(d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			texts = append(texts, text)
			if text == d.texts.renewAll || text == d.texts.asking.renewAll {
				return [][]sqldriver.Value{{"x", "me", int64(7)}}, nil
			}
			return [][]sqldriver.Value{{int64(7)}}, nil
		})
		req := driver.Request{Resource: "x", Owner: "me", TTL: time.Minute}
		if asks {
			req.Wanted = func() {}
		}
		c := claimed(t, d, req)
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Renew(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if d.watch.listening != asks || len(d.watch.recalls) > 0 != asks {
			t.Errorf("asks %v: listens %v, %d recalls", asks, d.watch.listening, len(d.watch.recalls))
		}
		plain := len(texts) == 2 && texts[0] == d.texts.grant && texts[1] == d.texts.renewAll
		if plain == asks {
			t.Errorf("asks %v, but ran %q", asks, texts)
		}
	}
}

// soon returns what arrives on c within a minute.
func soon(t *testing.T, c <-chan string) string {
	t.Helper()
	select {
	case got := <-c:
		return got
	case <-time.After(time.Minute):
		t.Fatal("nothing comes within a minute")
		return ""
	}
}

// A waiter that came while no messages were received is found by one look once they are.
func TestLooksForWhoCameUnheard(t *testing.T) {
	t.Parallel()
	looked := make(chan string, 10)
	d, s := listening(t, func(d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		if text != d.texts.state {
			return [][]sqldriver.Value{{int64(7)}}, nil
		}
		looked <- args[0].Value.(string)
		all := rowOf("x", one("me", exclusive, record.Holding, 1_001_000), one("other", exclusive, record.Waiting, 1_001_000))
		return append(all, rowOf("y", one("me", exclusive, record.Holding, 1_001_000), one("me too", exclusive, record.Waiting, 1_001_000))...), nil
	})
	told := make(chan string, 10)
	for _, who := range []struct{ resource, owner string }{{"x", "me"}, {"y", "me too"}} {
		c := claimed(t, d, driver.Request{Resource: who.resource, Owner: who.owner, TTL: time.Minute, Wanted: func() { told <- who.resource }})
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		s.begin <- struct{}{}
		if names := soon(t, looked); !strings.Contains(names, `"x"`) || !strings.Contains(names, `"y"`) {
			t.Errorf("looked at %s", names)
		}
		if got := soon(t, told); got != "x" {
			t.Errorf("told of %s; want x", got)
		}
	}
	d.watch.hear(lookMessage)         // this message is for waiters
	time.Sleep(50 * time.Millisecond) // for a look that must not come
	d.Close()
	if len(looked)+len(told) > 0 {
		t.Errorf("%d more looks, %d more calls", len(looked), len(told))
	}
}

// A grant that a message delivers says whether others wait. Later waiters recall its holder.
func TestGrantsThatAreToldSayWhoWaits(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]int{" 9 3": 0, " 9 3 wanted": 1, " 9 3 of a later version": 0} {
		calls := 0
		d, _ := listening(t, func(*Driver, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			return nil, errors.New("not to be asked")
		})
		d.watch.sent[3] = boottime.Now()
		c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute, Queue: true, Wanted: func() { calls++ }})
		d.watch.try(c.recall)
		turn := d.watch.arm(&c.req, c.recall, boottime.Now())
		d.watch.hear(comes("x", "other"))
		_ = c.waits(turn, true, &driver.Busy{Wake: turn.wake}, 7)
		d.watch.tried(c.recall, true)
		d.watch.hear(comes("x", "other"))
		if calls != 0 {
			t.Errorf("Wanted was called %d times of a claim that waits", calls)
		}
		d.watch.hear(givenMessage + givenTo(&c.req) + message)
		if calls != want {
			t.Errorf("%q: Wanted was called %d times; want %d", message, calls, want)
		}
		d.watch.hear(comes("x", "other"))
		if calls != want+1 {
			t.Errorf("%q: Wanted was called %d times, the last one after the grant; want %d", message, calls, want+1)
		}
		if c.collect(); c.phase != held {
			t.Errorf("%q: in phase %d", message, c.phase)
		}
		d.watch.disarm(&c.req)
	}
}

// A waiting claim that is forgotten does not listen any more.
func TestForgottenClaimsListenToNobody(t *testing.T) {
	t.Parallel()
	d, _ := listening(t, func(d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		if text == d.texts.grant {
			return nil, nil
		}
		return rowOf("x", one("other", exclusive, record.Holding, 60_001_000)), nil
	})
	c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute, Queue: true, Wanted: func() {}})
	if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) || c.phase != queued {
		t.Fatalf("Try: %v, in phase %d; want a place", err, c.phase)
	}
	c.Forget()
	if n := len(d.watch.recalls); n > 0 {
		t.Errorf("%d recalls are left", n)
	}
}

// If another claim of the same owner takes over a place, as after a service has replaced it, a grant
// recalls that one.
func TestGrantRecallsTheClaimThatWaits(t *testing.T) {
	t.Parallel()
	d, _ := listening(t, func(*Driver, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) { return rowOf("x"), nil })
	var recalled []string
	var me *waiter
	for _, name := range []string{"former", "present"} {
		req := driver.Request{Resource: "x", Owner: "me", TTL: time.Minute, Queue: true, Wanted: func() { recalled = append(recalled, name) }}
		me = d.watch.arm(&req, d.recallOf(&req), boottime.Now())
	}
	d.watch.refused(me, true, 7, &driver.Busy{})
	d.watch.mu.Lock()
	d.watch.give(me, brought{number: 8, ends: boottime.Now().Add(time.Minute), wanted: true})
	d.watch.mu.Unlock()
	d.watch.tell()
	if len(recalled) != 1 || recalled[0] != "present" {
		t.Errorf("recalled %q", recalled)
	}
}

// If the claim that takes over a place has a longer TTL, the place asks for that too. Otherwise the
// waiter would count on more than a release grants it.
func TestPlacesAskForWhatTheirClaimsDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		d, _ := listening(t, func(d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			switch text {
			case d.texts.grant:
				return nil, nil
			case d.texts.join:
				asked = append(asked, time.Duration(args[5].Value.(int64))*time.Microsecond)
			}
			all := rowOf("x", one("other", exclusive, record.Holding, 60_001_000))
			if len(asked) > 0 {
				all[0][13] = `[[1, "me", 0, 0, 1000000, "", 8001000]]`
			}
			return all, nil
		})
		for _, ttl := range []time.Duration{time.Second, time.Minute, time.Second} {
			c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: ttl, Queue: true})
			if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) || c.phase != queued {
				t.Fatalf("Try: %v, in phase %d; want a place", err, c.phase)
			}
		}
		if want := []time.Duration{time.Second, time.Minute}; !slices.Equal(asked, want) {
			t.Errorf("places were taken that ask for %v; want %v", asked, want)
		}
	})
}

// Claims whose leases end without another call are not kept forever.
func TestRecallsAreBounded(t *testing.T) {
	t.Parallel()
	silent := false
	d, _ := listening(t, func(*Driver, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		if silent {
			return nil, errors.New("no answer")
		}
		return [][]sqldriver.Value{{int64(7)}}, nil
	})
	const keep = 100
	for i := range 10 * keep {
		c := claimed(t, d, driver.Request{Resource: fmt.Sprint(i), Owner: "me", TTL: time.Minute, Wanted: func() {}})
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		silent = true
		if _, err := claimed(t, d, driver.Request{Resource: fmt.Sprint("no answer/", i), Owner: "me", TTL: time.Minute, Wanted: func() {}}).Try(t.Context()); err == nil {
			t.Fatal("no error")
		}
		if silent = false; i >= keep {
			d.watch.mu.Lock()
			c.recall.ends = boottime.Now() - 1
			d.watch.mu.Unlock()
		}
	}
	if n := len(d.watch.recalls); n > 3*keep {
		t.Errorf("%d recalls of %d leases", n, keep)
	}
}

// A heartbeat that finds a grant before its message arrives looks for waiters behind it.
func TestLooksWhoWaitsBehindAGrantThatABeatFinds(t *testing.T) {
	t.Parallel()
	d, _ := listening(t, func(d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		if text != d.texts.state {
			return nil, errors.New("not to be asked")
		}
		return rowOf("x", one("me", exclusive, record.Holding, 1_001_000), one("other", exclusive, record.Waiting, 1_001_000)), nil
	})
	told := make(chan string, 10)
	c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute, Queue: true, Wanted: func() { told <- "x" }, WantedOnce: true})
	d.watch.try(c.recall)
	turn := d.watch.arm(&c.req, c.recall, boottime.Now())
	_ = c.waits(turn, true, &driver.Busy{Wake: turn.wake}, 7)
	d.watch.tried(c.recall, true)
	d.watch.applyPlaces([]placed{{Name: "x", Owner: "me", over: true, fence: 9, left: time.Minute}}, boottime.Now())
	soon(t, told)
	d.watch.disarm(&c.req)
	d.Close()
}
