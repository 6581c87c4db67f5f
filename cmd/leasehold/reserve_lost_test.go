package main

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A reservation that fails keeps NAME for no longer than a script's lease, even if the store granted
// it, because nobody knows its owner.
func TestReservationThatFailsKeepsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		fault  func(store *locktest.Faulty)
		within time.Duration
	}{
		"grant lost, then the store is away": {func(store *locktest.Faulty) {
			store.Next(locktest.OpTry, locktest.LoseReply)
			store.Always(locktest.OpRelease, locktest.LoseRequest)
		}, scriptTTL},
		"extension lost": {func(store *locktest.Faulty) {
			store.Always(locktest.OpRenew, locktest.LoseReply)
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
			var out bytes.Buffer
			if err := r.hold(t.Context(), &app{stdout: &out}, locks); err == nil || out.Len() > 0 {
				t.Errorf("%s: %v, %q", name, err, &out)
			}
			time.Sleep(c.within)
			next, err := leasehold.New(server.Connect(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer next.Close()
			lease, err := next.TryAcquire(t.Context(), "deploy")
			if err != nil {
				t.Fatalf("%s: after %v: %v", name, c.within, err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
