package page

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// How much of a limit is used, by whom, and an operator's limit, which is set here.
func TestLimitsAndWeights(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	share := func(owner string, weight int) {
		t.Helper()
		status := s.post("acquire", map[string]any{"name": "gpu", "owner": owner, "ttl_ms": 10 * time.Minute.Milliseconds(), "mode": "shared", "limit": 8,
			"weight": weight, "details": map[string]any{"program": owner}})
		if status != http.StatusOK {
			t.Fatalf("acquire of %s: %d", owner, status)
		}
	}
	share("training", 3)
	share("serving", 2)
	waiting := t.Context()
	go func() {
		for waiting.Err() == nil {
			_, _ = s.try("acquire", map[string]any{"name": "gpu", "owner": "tuning", "ttl_ms": 60_000, "mode": "shared", "limit": 8,
				"weight": 4, "wait_ms": 25_000, "details": map[string]any{"program": "tuning"}})
		}
	}()
	p := open(t, s.url+"/#/locks")
	p.reads(".row .c-mode", "5 of 8")
	eval[string](p, `location.hash = '#/lock/gpu'`)
	p.reads("#holders-title", "5 of 8 used")
	p.reads("#holders .facts", "Weight")
	p.reads("#waiters thead", "Weight")
	if text := p.text("#operators-limit"); text != "" {
		t.Errorf("no operator has set a limit, and it reads %q", text)
	}
	p.click("#limit")
	p.reads("dialog", "nobody loses a lease")
	if !eval[bool](p, `document.querySelector('dialog .yes').disabled`) {
		t.Error("no limit may be set")
	}
	p.write("dialog input[name=limit]", "4")
	p.click("dialog .yes")
	p.reads("#operators-limit", "An operator has set a limit of 4.")
	p.reads("#holders-title", "5 of 4 used")
	p.until("the dialog is gone", func() bool { return eval[bool](p, `document.querySelector('dialog') === null`) }, "")
	p.click("#language")
	p.reads("#holders-title", "已用 5 / 4")
	if text := p.text(".sum"); !strings.Contains(text, "5 / 4") {
		t.Errorf("the summary reads %q", text)
	}
}
