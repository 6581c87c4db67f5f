package leasehold_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/memory"
)

// What a leader is told, what observers see and what Inspect shows is one number.
func TestOneToken(t *testing.T) {
	server := memory.NewServer()
	locks, other := newLocker(t, server.Connect(), nil), newLocker(t, server.Connect(), nil)
	lease := acquire(t, locks, "a")
	state, err := other.Inspect(t.Context(), "a")
	if err != nil || state.Token != lease.Token() || len(state.Holders) != 1 || state.Holders[0].Token != lease.Token() {
		t.Errorf("token %d is shown as %+v, %v", lease.Token(), state, err)
	}
	for leader := range other.Observe(t.Context(), "a", time.Second) {
		if leader.Token != lease.Token() || leader.Owner.Reveal() != lease.Owner() {
			t.Errorf("token %d is observed as %+v", lease.Token(), leader)
		}
		break
	}
}

func TestOwnersArePrintedShort(t *testing.T) {
	server := memory.NewServer()
	locks := newLocker(t, server.Connect(), nil)
	lease := acquire(t, locks, "a")
	waiter := claimtest.New(t, server.Connect(), driver.Request{Resource: "a", Owner: "A-WAITER-WITH-A-LONG-NAME", TTL: time.Minute, Queue: true})
	if _, err := waiter.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Fatal(err)
	}
	state, err := locks.Inspect(t.Context(), "a")
	if err != nil || len(state.Waiters) != 1 {
		t.Fatalf("%+v, %v", state, err)
	}
	whole := []string{lease.Owner(), state.Waiters[0].Owner.Reveal()}
	var text bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%t", "%30v"} {
		for _, what := range []any{state, &state, state.Holders[0], state.Waiters[0], state.Holders, state.Holders[0].Owner} {
			fmt.Fprintf(&text, verb+"\n", what)
		}
	}
	slog.New(slog.NewTextHandler(&text, nil)).Info("state", "state", state, "holder", state.Holders[0], "owner", state.Waiters[0].Owner)
	slog.New(slog.NewJSONHandler(&text, nil)).Info("state", "state", state, "holder", state.Holders[0], "owner", state.Waiters[0].Owner)
	asJSON, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	text.Write(asJSON)
	for _, owner := range whole {
		for _, form := range []string{owner, fmt.Sprintf("%x", owner), fmt.Sprintf("%X", owner), fmt.Sprint([]byte(owner))} {
			if strings.Contains(text.String(), form) {
				t.Errorf("%s is printed whole", owner[:8])
			}
		}
		if !strings.Contains(text.String(), owner[:8]) || !strings.Contains(string(asJSON), `"`+owner[:8]+`"`) {
			t.Errorf("%s is not printed at all: %s", owner[:8], asJSON)
		}
	}
}
