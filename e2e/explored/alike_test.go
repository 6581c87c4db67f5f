package explored

import (
	"flag"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/queue"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// granted are claims that have held, where that follows from their order and from an operator's limit: a lower limit ends
// no lease.
type granted map[string]bool

// holding is how many of the claims hold, which are in order and have those names. It is asked after each change.
func (g granted) holding(names []string, claims []queue.Claim, limit int) int {
	var ahead queue.Ahead
	for i, c := range claims {
		decided := c
		decided.Limit = queue.Smaller(c.Limit, limit)
		if !g[names[i]] && !ahead.Admits(decided) {
			return i
		}
		g[names[i]] = true
		ahead.Add(c)
	}
	return len(claims)
}

// alike compares what came of the same calls on a real server and on its stand-in.
func alike(t *testing.T, server string, theirs, ours []string) {
	t.Helper()
	for i := range max(len(ours), len(theirs)) {
		if i >= len(ours) || i >= len(theirs) || ours[i] != theirs[i] {
			t.Fatalf("line %d differs\n%s: %q\nstand-in: %q", i, server, theirs[min(i, len(theirs)):], ours[min(i, len(ours)):])
		}
	}
	t.Logf("%d answers and events are the same", len(ours))
}

// hasTime reports whether there is more time than in make test.
func hasTime() bool { return flag.Lookup("explore.for").Value.String() != "0s" }

// exploreStandIn explores a stand-in: where time is short, these scenarios alone and at random.
func exploreStandIn(t *testing.T, h explore.Harness, briefly ...string) {
	h.For = time.Second / 2
	if !hasTime() {
		h.Scenarios, h.Changes, h.For = briefly, -1, 2*time.Second
	}
	explore.Run(t, h)
}
