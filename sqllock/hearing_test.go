package sqllock

import (
	"testing"
	"time"
)

// A Listener is believed while its last token has come back in time, and asked less and
// less, but never more than once a second.
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
