//go:build unix

package main

import (
	"context"
	"io"
	"testing"
	"testing/synctest"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/guardian"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A failed renewal explains the end of its own term, but not the end of a later one.
func TestTermIsNotExplainedByAnEarlierOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.NewFaulty(memory.New())
		l := &lead{child: newChild(&app{stderr: io.Discard}), lastTerm: lastTerm{leave: func() {}}}
		l.name, l.argv, l.ttl = "sched", []string{"./nosuch"}, leasehold.DefaultTTL
		locks, err := leasehold.New(store, l.options())
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		l.wait = l.app.watch(locks, l.name, l.who, shares{})
		store.Always(locktest.OpRenew, locktest.LoseRequest)
		terms := 0
		err = locks.Lead(t.Context(), l.name, func(term context.Context) error {
			if terms++; terms == 1 {
				<-term.Done()
				if l.unrenewed() == "" {
					t.Error("no renewal has failed")
				}
				store.Always(locktest.OpRenew, nil)
				return nil
			}
			return l.serve(term, t.Context())
		})
		if exitCode(err) != guardian.CodeNotFound || terms != 2 || l.unrenewed() != "" {
			t.Errorf("term %d: %v%s", terms, err, l.unrenewed())
		}
	})
}
