package nats

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

const ttl = time.Minute // longer than an election takes on a busy machine

func lockerOn(t testing.TB, url string) *leasehold.Locker {
	t.Helper()
	d := open(t, url)
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); d.Close() })
	return l
}

// leader is the server that leads the bucket.
func leader(t testing.TB, all []*servers.NATS) *servers.NATS {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, s := range all {
			if s.Leads("locks") {
				return s
			}
		}
	}
	t.Fatal("nobody leads the bucket")
	return nil
}

// electing repeats a call, whose outcome is unknown while nobody leads, until it comes to want.
func electing(t testing.TB, what string, want error, call func() error) {
	t.Helper()
	for end := time.Now().Add(ttl); ; time.Sleep(100 * time.Millisecond) {
		err := call()
		switch {
		case errors.Is(err, want):
			return
		case !errors.Is(err, natslock.ErrUnreachable) || time.Now().After(end):
			t.Fatalf("%s: %v; want %v", what, err, want)
		}
	}
}

// A lease outlives a leader that is killed and one that stands still, and the next is granted with a
// larger token.
func TestLeaderDiesOrStands(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	url := urlOf(all)
	first, next := lockerOn(t, url), lockerOn(t, url)
	lease, err := first.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for what, fail := range map[string]func(s *servers.NATS) (again func()){
		"stood": func(s *servers.NATS) func() { return s.Pause() },
		"died":  func(s *servers.NATS) func() { s.Kill(); return func() { s.Begin(); s.Ready() } },
	} {
		again := fail(leader(t, all))
		electing(t, "Extend after the leader "+what, nil, func() error { return lease.Extend(t.Context(), ttl) })
		electing(t, "TryAcquire after the leader "+what, leasehold.ErrBusy, func() error {
			_, err := next.TryAcquire(t.Context(), "a")
			return err
		})
		again()
	}
	before := lease.Token()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	lease, err = next.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if lease.Token() <= before {
		t.Errorf("token %d after %d", lease.Token(), before)
	}
}

// A store that was rolled back gives no fence again that this process has seen, and whoever held learns
// at the next renewal.
func TestRolledBackStore(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	l := lockerOn(t, urlOf([]*servers.NATS{s}))
	do := func() uint64 {
		t.Helper()
		lease, err := l.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		return lease.Token()
	}
	do()
	s.Stop()
	old := t.TempDir()
	if err := os.CopyFS(old, os.DirFS(s.Data())); err != nil {
		t.Fatal(err)
	}
	s.Begin()
	s.Ready()
	var last uint64
	for range 5 {
		last = do()
	}
	held, err := l.Acquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s.Forget()
	if err := os.CopyFS(s.Data(), os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	s.Begin()
	s.Ready()
	if err := held.Extend(t.Context(), ttl); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Extend of a lease that the store has forgotten: %v; want ErrLost", err)
	}
	if again := do(); again <= last {
		t.Errorf("token %d after %d", again, last)
	}
}
