package sqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A Listener is trusted while its last token came back in time. It is tested less and less often,
// and at most once a second.
func TestHearingMustBeProved(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var h hearing
	if h.next(now) != "" {
		t.Error("a token before it listens")
	}
	h.on = true
	var pauses []time.Duration
	for last := now; len(pauses) < 9; now = now.Add(proveFirst) {
		if token := h.next(now); token != "" {
			pauses = append(pauses, now.Sub(last))
			last = now
			if h.next(now) != "" || h.heard("") || h.heard("somebody") || !h.heard(token) || h.heard(token) || !h.hears {
				t.Fatalf("it takes something else for the token: %+v", h)
			}
		}
	}
	if want := proveLast / proveFirst * proveFirst; pauses[1] != proveFirst || pauses[8] < want || pauses[8] > want+proveFirst {
		t.Errorf("tokens after %v", pauses)
	}
	for h.next(now) == "" {
		now = now.Add(proveFirst)
	}
	now = now.Add(proveFirst)
	if h.next(now) == "" || h.hears {
		t.Errorf("a token that did not come back: %+v; want the next, and no belief", h)
	}
	h.heard(h.token)
	if h.ended(); h.hears || h.on {
		t.Errorf("it has ended: %+v", h)
	}
}

// A listener receives all messages, unless it is deaf.
type listener struct {
	mu    sync.Mutex
	hears func(message string) // guarded by mu; nil: it is deaf
	calls chan struct{}
}

func (l *listener) Listen(ctx context.Context, _ string, hear func(message string)) error {
	l.calls <- struct{}{}
	hear("")
	l.set(hear)
	<-ctx.Done()
	return ctx.Err()
}

func (l *listener) set(hear func(message string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hears = hear
}

// A listening connection may stay with a server that no longer has the locks.
func TestListensAnewWhenItHearsNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &listener{calls: make(chan struct{}, 10)}
		d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			if text != d.texts.wake {
				return rowOf("x", one("", exclusive, record.Lingering, 1_001_000)), nil
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			var all []string
			if err := json.Unmarshal([]byte(args[0].Value.(string)), &all); err != nil {
				t.Error(err)
			}
			for _, message := range all {
				if l.hears != nil {
					l.hears(message)
				}
			}
			return nil, nil
		})
		d.watch.listener = l
		ctx, stop := context.WithCancel(t.Context())
		defer func() { stop(); time.Sleep(keepPlace) }()
		go func() {
			for ctx.Err() == nil { // a waiter that does not try again would be dropped
				d.watch.arm(&driver.Request{Resource: "x", Owner: "waiter"}, nil, boottime.Now())
				time.Sleep(keepPlace)
			}
		}()
		<-l.calls
		for !d.watch.hearsAll() {
			time.Sleep(time.Millisecond)
		}
		l.set(nil)
		select {
		case <-l.calls:
		case <-time.After(3 * proveLast):
			t.Fatal("it does not listen again")
		}
		for !d.watch.hearsAll() {
			time.Sleep(time.Millisecond)
		}
	})
}
