package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A second signal ends the program at once, so it first says how to end what may be reserved.
func TestReservationThatFailsIsToldBeforeItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.NewFaulty(memory.NewServer().Connect())
		r := reservation{name: "deploy", length: span(reservedFor)}
		locks, err := leasehold.New(store, r.options(&app{}))
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		var told bytes.Buffer
		before := ""
		store.Always(locktest.OpRenew, locktest.LoseReply)
		store.Always(locktest.OpRelease, func(context.Context, func() error) error {
			before = told.String()
			return locktest.ErrInjected
		})
		if err := r.hold(t.Context(), &app{stderr: &told}, locks); err == nil || told.String() != before || !strings.Contains(before, "To end it: ") {
			t.Errorf("%v: it says %q, before the release %q", err, &told, before)
		}
	})
}

// A reservation that fails keeps NAME for no longer than a script's lease, even if the store granted
// it, because nobody knows its owner. If it may keep NAME for longer, it says how to end it.
func TestReservationThatFailsKeepsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		fault  func(store *locktest.Faulty)
		within time.Duration // until it has ended by itself; 0: it is released
	}{
		"grant lost, then the store is away": {func(store *locktest.Faulty) {
			store.Next(locktest.OpTry, locktest.LoseReply)
			store.Always(locktest.OpRelease, locktest.LoseRequest)
		}, scriptTTL},
		"extension lost": {func(store *locktest.Faulty) {
			store.Always(locktest.OpRenew, locktest.LoseReply)
		}, 0},
		"extension lost, then the store is away": {func(store *locktest.Faulty) {
			store.Always(locktest.OpRenew, locktest.LoseReply)
			store.Always(locktest.OpRelease, locktest.LoseRequest)
		}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := memory.NewServer()
			store := locktest.NewFaulty(server.Connect())
			c.fault(store)
			r := reservation{name: "deploy", length: span(reservedFor)}
			locks, err := leasehold.New(store, r.options(&app{}))
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			var out, told bytes.Buffer
			if err := r.hold(t.Context(), &app{stdout: &out, stderr: &told}, locks); err == nil || out.Len() > 0 {
				t.Errorf("%s: %v, %q", name, err, &out)
			}
			time.Sleep(c.within)
			next, err := leasehold.New(server.Connect(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer next.Close()
			if _, owner, ends := strings.Cut(strings.TrimSpace(told.String()), "\nTo end it: leasehold release deploy "); ends {
				lease, err := next.Resume(t.Context(), "deploy", owner)
				if err == nil {
					err = lease.Release(t.Context())
				}
				if err != nil && !errors.Is(err, leasehold.ErrLost) { // the message must precede the release
					t.Errorf("%s: %v: %s", name, err, &told)
				}
			}
			lease, err := next.TryAcquire(t.Context(), "deploy")
			if err != nil {
				t.Fatalf("%s: after %v: %v: it says %q", name, c.within, err, &told)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
