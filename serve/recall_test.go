package serve_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

const wantedHolder = `{"name":"%s","owner":"holder","ttl_ms":60000,"wanted":true}`

// queues takes a place for an owner, which lasts some seconds.
func (s *service) queues(name, owner string) {
	s.t.Helper()
	s.post(wire.Acquire, `{"name":%q,"owner":%q,"ttl_ms":60000,"queue":true}`, name, owner).want(s.t, 409, wire.CodeBusy)
}

// wanted reads events until others wait for the holder's lease.
func (s *service) wanted(next func() (string, wire.Event), name string) wire.Event {
	s.t.Helper()
	for {
		kind, e := next()
		if kind != wire.EventWanted {
			s.t.Fatalf("told %s %+v, want only that it is wanted", kind, e)
		}
		if e.Name == name && e.Handle == wire.Handle("holder") {
			return e
		}
	}
}

// A holder that asks is notified of each place at once, and by its renewals. Nobody else is
// notified.
func TestAHolderIsWanted(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	next, _ := s.hearAs("", "prefix=n&kind=wanted")
	all, _ := s.hear("n")
	grant := s.post(wire.Acquire, wantedHolder, "n").want(t, 200, "").grant
	if grant.Wanted {
		t.Error("wanted, and nobody waits")
	}
	s.post(wire.Acquire, `{"name":"n","owner":"passes","ttl_ms":60000}`).want(t, 409, "busy")
	if s.post(wire.Renew, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "").grant.Wanted {
		t.Error("wanted by one that has no place")
	}
	for _, owner := range []string{"first", "second"} {
		s.queues("n", owner)
		if e := s.wanted(next, "n"); e.Token != grant.Token || e.Note != "" || strings.Contains(fmt.Sprint(e), "holder") && e.Owner != driver.ShortOwner("holder") {
			t.Errorf("told %+v", e)
		}
	}
	if !s.post(wire.Renew, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "").grant.Wanted {
		t.Error("a renewal does not tell that others wait")
	}
	for _, owner := range []string{"first", "second"} {
		s.post(wire.Release, `{"name":"n","owner":%q}`, owner).want(t, 200, "")
	}
	if s.post(wire.Renew, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "").grant.Wanted {
		t.Error("a renewal tells of those who have left")
	}
	s.post(wire.Release, `{"name":"n","owner":"holder"}`).want(t, 200, "")
	for _, want := range []string{wire.EventGranted, wire.EventReleased} {
		if kind, e := all(); kind != want {
			t.Errorf("who has not asked is told %s %+v, want %s", kind, e, want)
		}
	}
	if text := s.get("/metrics"); !strings.Contains(text, "leasehold_service_recalls_total 1\n") {
		t.Errorf("recalls are not counted: %s", text)
	}
}

// Without a holder that asks, the driver's claim asks for no notices.
func TestWhoDoesNotAskIsNotTold(t *testing.T) {
	t.Parallel()
	s := start(t, memory.NewServer(), nil)
	s.post(wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	s.queues("n", "first")
	if s.post(wire.Renew, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "").grant.Wanted {
		t.Error("told without a wish")
	}
	if !s.post(wire.Renew, `{"name":"n","owner":"holder","ttl_ms":60000,"wanted":true}`).want(t, 200, "").grant.Wanted {
		t.Error("a renewal that asks is not told")
	}
}

// A stream that opens late, and one at another instance, report recalls as well, from looks at the
// store.
func TestTheWantedAreSeen(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	a.post(wire.Acquire, wantedHolder, "n").want(t, 200, "")
	a.queues("n", "first")
	for _, s := range []*service{a, b} {
		next, _ := s.hearAs("", "kind=ended,wanted")
		s.wanted(next, "n")
		a.queues("n", "first") // keeps its place
		a.queues("n", "later-"+s.url[len(s.url)-5:])
		s.wanted(next, "n")
	}
	if !b.post(wire.Renew, `{"name":"n","owner":"holder","ttl_ms":60000,"wanted":true}`).want(t, 200, "").grant.Wanted {
		t.Error("a renewal at another instance does not tell")
	}
}

// A client that may not view a lock gets no events about it. Its holder learns of waiters from its
// own calls.
func TestRightsToBeWanted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access")
	accessFile(t, path, "secret")
	access, err := serve.ReadAccess(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, memory.NewServer(), &serve.Options{Client: access.Client})
	next, _ := s.hearAs("secret", "kind=wanted")
	for _, name := range []string{"ci/secret", "ci/public/n"} {
		s.as("secret", http.MethodPost, wire.Acquire, fmt.Sprintf(wantedHolder, name)).want(t, 200, "")
		s.as("secret", http.MethodPost, wire.Acquire, fmt.Sprintf(`{"name":%q,"owner":"w","ttl_ms":60000,"queue":true}`, name)).want(t, 409, "busy")
		if !s.as("secret", http.MethodPost, wire.Renew, fmt.Sprintf(wantedHolder, name)).want(t, 200, "").grant.Wanted {
			t.Errorf("the holder of %s is not told by its renewal", name)
		}
	}
	if kind, e := next(); kind != wire.EventWanted || e.Name != "ci/public/n" {
		t.Errorf("told %s %+v", kind, e)
	}
}

// A tellingless engine notifies no holder.
type tellingless struct{ *memory.Driver }

func (d tellingless) Features() driver.Features {
	f := d.Driver.Features()
	f.Tells, f.Recalls, f.Keeps = false, false, false
	return f
}

func TestWhatCannotTellSaysSo(t *testing.T) {
	t.Parallel()
	s := startOn(t, tellingless{memory.New()}, nil)
	s.post(wire.Acquire, wantedHolder, "n").want(t, 501, wire.CodeUnsupported)
	s.post(wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Renew, wantedHolder, "n").want(t, 200, "") // a renewal that is refused costs the lease
	if got := s.as("", http.MethodGet, wire.Events+"?kind=wanted,gone", ""); got.status != 400 || got.Code != wire.CodeInvalid {
		t.Errorf("an unknown kind: %d %s", got.status, got.text)
	}
}

// The driver may report waiters while the grant's answer is in flight. The answer or a later event
// passes that on.
func TestARecallBeforeTheGrantIsKnown(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	s := start(t, engine, nil)
	s.post(wire.Acquire, `{"name":"n","owner":"former","ttl_ms":60000}`).want(t, 200, "")
	told := make(chan answer, 1)
	go func() {
		got, _ := post(s.url+wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000,"wait_ms":20000,"wanted":true}`)
		told <- got
	}()
	eventually(t, "it waits", func() bool { return len(s.state("n").Waiters) == 1 })
	s.queues("n", "behind")
	s.post(wire.Release, `{"name":"n","owner":"former"}`).want(t, 200, "")
	select {
	case got := <-told:
		if !got.want(t, 200, "").grant.Wanted {
			t.Errorf("granted while another waits: %s", got.text)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("not granted")
	}
}
