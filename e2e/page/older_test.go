package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	web "github.com/leasehold-go/leasehold/serve"
)

// A search that is cut short before it finds anything does not say that nothing happened, and goes on where it stopped.
func TestASearchThatIsCutShort(t *testing.T) {
	t.Parallel()
	old := hourAgo(time.Now())
	old.stops = 5
	s := embeddedWith(t, &web.Options{History: web.HistoryOptions{File: old}}, passed)
	p := open(t, s.url+"/#/lock/deploy%2Fproduction?range=1h")
	p.reads("section:has(> h2#history-title) .empty", "older entries have not been searched yet")
	if drawn := eval[string](p, `[...document.querySelectorAll('.timeline .unseen')].map((r) => r.getAttribute('x') + ' ' + (r.getAttribute('width') === r.ownerSVGElement.getAttribute('width'))).join()`); drawn != "0 true" {
		t.Errorf("drawn as not seen: %q, want all of the period", drawn)
	}
	p.click("section:has(> h2#history-title) .empty a")
	p.reads("#events", "deploy/production queued gitlab 88101")
	eval[string](p, fmt.Sprintf(`location.hash = '#/events?until=%s'`, time.Now().Add(-50*time.Minute).UTC().Format(time.RFC3339)))
	p.reads(".known .empty", "older entries have not been searched yet")
	if text := p.text("#reach"); text != "" {
		t.Errorf("it says how far it has seen: %q", text)
	}
	p.click("#older")
	p.reads("#events li", "deploy/production queued gitlab 88102")
	p.reads("#live", "up to")
	p.reads("#reach", "Since")
}
