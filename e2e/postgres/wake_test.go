package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Whatever ends a hold tells the one whose turn has come, by what of its owner may be told, or
// what it was given, and nobody where nobody waits. A release gives where all others in the record wait.
func TestPostgresTellsWhoIsNext(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d := opened(t, p.URL(), "")
	l, err := pglisten.New(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	messages, ended := make(chan string, 100), make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Listen(ctx, "leasehold_wake", func(m string) { messages <- m })
	}()
	defer func() { cancel(); <-ended }()
	hears := func(want string) {
		t.Helper()
		select {
		case got := <-messages:
			if i := strings.LastIndex(got, " "); i > 0 && strings.HasPrefix(want, "given ") { // the number of a beat follows
				if n, err := strconv.Atoi(got[i+1:]); err != nil || n == 0 {
					t.Errorf("heard %q, of no beat", got)
				}
				got = got[:i]
			}
			if got != want {
				t.Errorf("heard %q; want %q", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("heard nothing; want %q", want)
		}
	}
	hears("") // it listens
	try := func(owner string, mode driver.Mode) driver.Claim {
		t.Helper()
		c := claimtest.New(t, d, driver.Request{Resource: "x", Owner: owner, Mode: mode, TTL: time.Minute, Queue: true})
		_, _ = c.Try(t.Context()) // granted or refused, as the messages show
		return c
	}
	// given is what is told of the lease that owner was given.
	given := func(owner string) string {
		t.Helper()
		st, err := d.Inspect(t.Context(), "x")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Reveal() != owner {
			t.Fatalf("%+v, %v; want %s to hold", st, err, owner)
		}
		return fmt.Sprintf("given %x %d", sha256.Sum256([]byte("x\n"+owner)), driver.NumberOf(st.Fence))
	}
	// Of a short owner at most half; "" tells everybody.
	for owner, called := range map[string]string{"é": "", "abc": "a", "äöüäöüäöüäöüäöü": "äöüäöüä"} {
		try("the holder", driver.Exclusive)
		next := try(owner, driver.Shared)
		if err := d.Evict(t.Context(), "x", "the holder", "a test"); err != nil {
			t.Errorf("%s: %v", owner, err)
		}
		hears(called)
		if err := next.Release(t.Context(), driver.End{}); err != nil { // gives up its place
			t.Errorf("%s: %v", owner, err)
		}
	}
	// wins tries until it is granted: a waiter is answered from memory until its driver has heard or seen.
	wins := func(c driver.Claim) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err := c.Try(t.Context()); err == nil {
				return
			} else if time.Now().After(end) {
				t.Fatalf("the lease: %v", err)
			}
		}
	}
	p.Must(t, "DELETE FROM leasehold_locks") // with the marks of evictions
	const beside = "release beside the mark of an eviction"
	release := func(c driver.Claim) error { return c.Release(t.Context(), driver.End{}) }
	evict := func(driver.Claim) error { return d.Evict(t.Context(), "x", "the holder", "a test") }
	for _, tc := range []struct {
		name  string
		end   func(c driver.Claim) error
		gives bool // the lease, where it is exclusive
	}{
		{"release", release, true},
		{"evict", evict, false},
		{beside, release, false},
	} {
		name, end := tc.name, tc.end
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			if err := try("the holder", mode).Release(t.Context(), driver.End{}); err != nil { // tells nobody
				t.Errorf("%s, mode %d: %v", name, mode, err)
			}
			holder := try("the holder", mode)
			first, second := try("first-in-the-queue", driver.Exclusive), try("second-in-the-queue", driver.Exclusive)
			if err := end(holder); err != nil {
				t.Errorf("%s, mode %d: %v", name, mode, err)
			}
			if tc.gives && mode == driver.Exclusive {
				hears(given("first-in-the-queue"))
				wins(first)
				if err := first.Release(t.Context(), driver.End{}); err != nil {
					t.Errorf("the lease that was given: %v", err)
				}
				hears(given("second-in-the-queue"))
				if err := second.Release(t.Context(), driver.End{}); err != nil {
					t.Errorf("the lease that was given: %v", err)
				}
				continue
			}
			if name == beside && mode == driver.Exclusive {
				hears("look") // all are to
			} else {
				hears("first-in")
			}
			if err := first.Release(t.Context(), driver.End{}); err != nil { // gives up its place
				t.Errorf("%s, mode %d: %v", name, mode, err)
			}
			hears("look") // all are to
			wins(second)
			if err := second.Release(t.Context(), driver.End{}); err != nil {
				t.Errorf("%s, mode %d: %v", name, mode, err)
			}
		}
	}
	select {
	case m := <-messages:
		t.Errorf("heard %q, though nobody waits", m)
	default:
	}
}
