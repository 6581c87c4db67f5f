package httplock_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// What a Locker keeps over the service it takes again without a call, and gives back when another process wants it.
func TestKeepOverTheService(t *testing.T) {
	t.Parallel()
	service := instances(t, memory.NewServer(), 1, nil)
	locker := func(keep time.Duration) *leasehold.Locker {
		d := open(t, service)
		l, err := leasehold.New(d, &leasehold.Options{TTL: 10 * time.Minute, Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(); d.Close() })
		return l
	}
	keeps, other := locker(2*time.Minute), locker(0)
	var tokens []uint64
	cycle := func() {
		t.Helper()
		le, err := keeps.Acquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, le.Token())
		if err := le.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		cycle()
	}
	for i, token := range tokens[1:] {
		if token != tokens[i]+1 {
			t.Fatalf("token %d after %d: it was not kept", token, tokens[i])
		}
	}
	for range 10 {
		cycle()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		le, err := other.Acquire(ctx, "n")
		cancel()
		if err != nil {
			t.Fatalf("what is kept is not given back: %v", err)
		}
		if err := le.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A candidate of higher preference leads at once, over the service too.
func TestPreferredLeaderOverTheService(t *testing.T) {
	t.Parallel()
	service := instances(t, memory.NewServer(), 1, nil)
	leads := make(chan string, 8)
	campaign := func(who string, n int) {
		d := open(t, service)
		l, err := leasehold.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Lead(ctx, "leader", func(ctx context.Context) error { // it ends with the test
				leads <- who
				<-ctx.Done()
				return nil
			}, leasehold.Preference(n))
		}()
		t.Cleanup(func() { cancel(); <-done; l.Close(); d.Close() })
	}
	campaign("old", 1)
	if who := <-leads; who != "old" {
		t.Fatal(who)
	}
	campaign("new", 2)
	select {
	case who := <-leads:
		if who != "new" {
			t.Errorf("%s leads", who)
		}
	case <-time.After(20 * time.Second):
		t.Error("the candidate of higher preference does not lead")
	}
}
