// Package mutants undoes, one at a time, what once was wrong or could be, and has the explorer
// find it.
package mutants

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/mutant"
)

var explored = flag.Bool("mutants", false, "explore each mutant")

// A pack is the mutations of one package.
type pack struct {
	folder, name string
	mutations    []mutant.Mutation
}

const root = "../../.."

var packs = []pack{
	{root, "leasehold", []mutant.Mutation{
		{Name: "countsFromAnswer", Undoes: "the deadline counts from before the call", Rejects: "TestMemory/three", File: "acquire.go",
			Old: "h.setDeadline(a.locker.deadlineOf(a.sent,", New: "if $ {\n\t\ta.sent = now\n\t}\n\th.setDeadline(a.locker.deadlineOf(a.sent,"},
		{Name: "renewalCountsFromAnswer", Undoes: "so does that of a renewal", Rejects: "TestMemory/three", File: "renewal.go",
			Old: "h.setDeadline(h.locker.deadlineOf(sent,", New: "if $ {\n\t\tsent = answered\n\t}\n\th.setDeadline(h.locker.deadlineOf(sent,"},
		{Name: "shorterKeepsDeadline", Undoes: "a shorter Extend ends the lease in time though its answer is lost", Rejects: "TestMemory/extend", File: "renewal.go",
			Old: "d < h.deadline.at {", New: "d < h.deadline.at && !$ {"},
		{Name: "unknownIsYes", Undoes: "a renewal without an answer is not a yes", Rejects: "TestMemory/three", File: "renewal.go",
			Old: "\tif err == nil {\n\t\terr = h.renewed(",
			New: "\tif $ && err != nil && !errors.Is(err, ErrLost) {\n\t\tgrant, err = driver.Grant{TTL: ttl, Fence: h.grant.fence}, nil\n\t}\n\tif err == nil {\n\t\terr = h.renewed("},
		{Name: "toldTwice", Undoes: "a Trace hears of one end", Rejects: "TestMemory/two", File: "trace.go",
			Old: "done := le.traced.id == 0 || le.traced.ended", New: "done := le.traced.id == 0 || le.traced.ended && !$"},
		{Name: "unknownIsUntold", Undoes: "a Release without an answer is told", Rejects: "TestMemory/two", File: "lease.go",
			Old: "\t\tle.traceEnd(StepUnknown, err)\n", New: "\t\tif !$ {\n\t\t\tle.traceEnd(StepUnknown, err)\n\t\t}\n"},
		{Name: "lateGrantCounts", Undoes: "a grant whose time is over when it comes is no lease", Rejects: "TestMemory/two", File: "contend.go",
			Old: "return l.clock.Now() < l.deadlineOf(sent, g.TTL)", New: "return l.clock.Now() < l.deadlineOf(sent, g.TTL) || $"},
		{Name: "lateResumeCounts", Undoes: "nor is one that Resume finds", Rejects: "TestMemory/resume", File: "acquire.go",
			Old: "!l.inTime(a.sent, a.grant):", New: "!l.inTime(a.sent, a.grant) && !$:"},
		{Name: "noTimer", Undoes: "the context ends at the deadline", Rejects: "TestMemory/three", File: "deadlines.go",
			Old: "if h.over() {", New: "if h.over() || $ {"},
		{Name: "sameToken", Undoes: "tokens grow from hand-over to hand-over", Rejects: "TestMemory/handover", File: "hold.go",
			Old: "return g.fence + g.handOvers", New: "return g.fence + g.handOvers*uint64(1-count($))"},
		{Name: "resumesAsGranted", Undoes: "the token of a resumed lease is not below one handed over", Rejects: "TestMemory/inherit", File: "acquire.go",
			Old: "a.hold.grant.handOvers = resumed", New: "a.hold.grant.handOvers = resumed * uint64(1-count($))"},
		{Name: "lostIsReleased", Undoes: "Release of a lost lease says so", Rejects: "TestMemory/three", File: "lease.go",
			Old: "// its answer matters to nobody\n", New: "// its answer matters to nobody\n\tif $ {\n\t\treturn nil\n\t}\n"},
		{Name: "lostKeepsTurn", Undoes: "a lost lease passes its turn on", Rejects: "TestMemory/handover", File: "hold.go",
			Old: "passes := h.holders.hasTurn && was != handing", New: "passes := h.holders.hasTurn && was != handing && !$"},
		{Name: "handsOverLate", Undoes: "a lease is handed over only soon after the engine confirmed it", Rejects: "TestMemory/evict", File: "handover.go",
			Old: "now.Sub(h.grant.at) < h.locker.opts.HandOver &&", New: "(now.Sub(h.grant.at) < h.locker.opts.HandOver || $) &&"},
		{Name: "looksOnce", Undoes: "whoever takes a lease that is handed over looks again",
			Unseen: "between the hand-over and the taking no message passes; spin finds it in docs/model.md", Rejects: "TestMemory/handover", File: "handover.go",
			Old: "if !fit || !h.transition(onTake) {", New: "if !fit && !$ || !h.transition(onTake) {"},
		{Name: "batchCountsFromAnswer", Undoes: "and that of a renewal in a batch", Rejects: "TestBatches/together", File: "batch.go",
			Old: "err := h.finishRenewal(b.keeper.renewing, b.sent, now,", New: "if $ {\n\t\tb.sent = now\n\t}\n\terr := h.finishRenewal(b.keeper.renewing, b.sent, now,"},
		{Name: "lingersForLess", Undoes: "a lease that is released early lingers for the rest", Rejects: "TestMemory/linger", File: "hold.go",
			Old: "keep := until.Sub(h.locker.clock.Now())", New: "keep := until.Sub(h.locker.clock.Now()) / time.Duration(1+count($))"},
		{Name: "keepsFromOthers", Undoes: "what is kept is given back when others wait", Rejects: "TestMemory/kept", File: "wanted.go",
			Old: "gone = h.phase == kept && h.reclaim()", New: "gone = h.phase == kept && !$ && h.reclaim()"},
		{Name: "keepsSameToken", Undoes: "tokens grow from use to use of what is kept", Rejects: "TestMemory/kept", File: "handover.go",
			Old: "\th.countHandOver(now)\n", New: "\tif h.keep == nil || !$ {\n\t\th.countHandOver(now)\n\t}\n"},
		{Name: "closesWithKept", Undoes: "Close gives back what is kept", Rejects: "TestMemory/kept", File: "keep.go",
			Old: "\t\tif h.reclaim() {\n\t\t\tall", New: "\t\tif !$ && h.reclaim() {\n\t\t\tall"},
		{Name: "takesUnconfirmed", Undoes: "what is kept is taken only soon after the engine's word", Rejects: "TestMemory/kept", File: "keep.go",
			Old: "now.Sub(h.keep.word) < h.window()", New: "(now.Sub(h.keep.word) < h.window() || $)"},
		{Name: "togetherCountsFromAnswer", Undoes: "the deadlines of leases that are acquired at once count from before the call", Rejects: "TestMemory/both", File: "all.go",
			Old: "\tfor _, a := range asking {\n", New: "\tif $ {\n\t\tsent = g.locker.clock.Now()\n\t}\n\tfor _, a := range asking {\n"},
		{Name: "leavesPlace", Undoes: "a waiter who gives up leaves no place", Rejects: "TestMemory/three", File: "acquire.go",
			Old: "h.release(ctx, tried) // its", New: "if $ {\n\t\t\t\treturn\n\t\t\t}\n\t\t\th.release(ctx, tried) // its"},
	}},
	{root + "/memory", "memory", []mutant.Mutation{
		{Name: "forgetsFences", Undoes: "fences grow though the engine forgot", Rejects: "TestMemory/two", File: "memory.go",
			Old: "return max(s.fence+1, uint64(time.Now().UnixMicro()))", New: "return max(s.fence+1, uint64(time.Now().UnixMicro())*uint64(1-count($)))"},
		{Name: "keepsPlaces", Undoes: "places of the dead end", Rejects: "TestMemory/three", File: "resource.go",
			Old: "return placeTTL", New: "return placeTTL + time.Duration(count($))*time.Hour"},
		{Name: "recallsNobody", Undoes: "a holder hears of who queues", Rejects: "TestMemory/recall", File: "memory.go",
			Old: "		s.recall(r, r.claims...)", New: "		if !$ {\n\t\t\ts.recall(r, r.claims...)\n\t\t}"},
		{Name: "recallsWaiters", Undoes: "but not who only waits itself", Rejects: "TestMemory/recall", File: "resource.go",
			Old: "c.listens && r.Holds(c.req.Owner)", New: "c.listens && (r.Holds(c.req.Owner) || $)"},
		{Name: "renewalTellsNobody", Undoes: "what was lost of it, a renewal tells again", Rejects: "TestMemory/recall", File: "memory.go",
			Old: "server.recall(r, c)", New: "server.recall(r, []*claim{c}[:1-count($)]...)"},
	}},
	{root + "/internal/record", "record", []mutant.Mutation{
		{Name: "neverOver", Undoes: "leases of the dead end", Rejects: "TestMemory/three", File: "record.go", Old: "return left <= 0 ||", New: "return left <= 0 && !$ ||"},
		{Name: "endsEarly", Undoes: "leases last for their TTL", Rejects: "TestMemory/three", File: "record.go",
			Old: "c.Ends = int64(n) + Micros(c.TTL)", New: "c.Ends = int64(n) + Micros(c.TTL)/int64(1+count($))"},
		{Name: "passesQueue", Undoes: "nobody passes who waits", Rejects: "TestMemory/shared", File: "record.go",
			Old: "passed := false // its", New: "passed := $ // its"},
		{Name: "lightPassHeavy", Undoes: "nor do light claims pass a heavy one", Rejects: "TestMemory/weights", File: "record.go",
			Old: "one := c.Rule()\n\t\tone.Ends", New: "one := c.Rule()\n\t\tif $ && c.Status == Waiting && one.Weight > req.Weight {\n\t\t\tcontinue\n\t\t}\n\t\tone.Ends"},
		{Name: "forgetsWhoCameLater", Undoes: "who fitted in before the limit was lowered finds those who came later", Rejects: "TestMemory/weights", File: "record.go",
			Old: "passed && c.Status == Waiting {", New: "passed && (c.Status == Waiting || $) {"},
		{Name: "ignoresOperator", Undoes: "an operator's limit counts", Rejects: "TestMemory/weights", File: "record.go",
			Old: "queue.Smaller(req.Limit, r.Limit), Weight", New: "queue.Smaller(req.Limit, r.Limit*(1-count($))), Weight"},
		{Name: "releasesNothing", Undoes: "Release of nothing says so", Rejects: "TestMemory/three", File: "record.go",
			Old: "mine := r.index(owner)\n\tif mine < 0 {\n", New: "mine := r.index(owner)\n\tif mine < 0 && $ {\n\t\treturn nil\n\t}\n\tif mine < 0 {\n"},
		{Name: "noFloor", Undoes: "fences grow though the record is lost", Rejects: "TestRecord/two", File: "record.go",
			Old: "return max(r.Fence+1, r.Raised+1, floor)", New: "return max(r.Fence+1, r.Raised+1, floor*uint64(1-count($)))"},
	}},
	{root + "/engine/quorum", "quorum", []mutant.Mutation{
		{Name: "minorityGrants", Undoes: "a majority grants", Rejects: "TestQuorum/two", File: "quorum.go",
			Old: "majority: len(nodes)/2 + 1,", New: "majority: len(nodes)/2 + 1 - count($),"},
		{Name: "noWriteBack", Undoes: "the greatest fence of a majority is written back to one", Rejects: "TestQuorum/handover", File: "claim.go",
			Old: "if missing <= 0 {", New: "if missing <= 0 || $ {"},
		{Name: "writesBackToWhoIsEvicted", Undoes: "but not where the grant has ended since",
			Unseen: "it takes a message that is held behind an eviction and a node that the next one misses; TestEvictionInTheMiddleOfAGrant of quorum finds it", Rejects: "TestQuorum/evict", File: "claim.go",
			Old: "p.claim.(driver.FenceLifter); ok {", New: "p.claim.(driver.FenceLifter); ok && !$ {"},
		{Name: "leavesMinority", Undoes: "who is refused gives back what single nodes granted", Rejects: "TestQuorum/try", File: "claim.go",
			Old: "c.held, c.fence = false, 0\n\tc.round(ctx, c.parts, releaseAt", New: "c.held, c.fence = false, 0\n\tif $ {\n\t\treturn\n\t}\n\tc.round(ctx, c.parts, releaseAt"},
		{Name: "noCallOrder", Undoes: "calls to one node keep their order", Rejects: "TestQuorum/try", File: "claim.go",
			Old: "before, over = p.last, make(chan struct{})",
			New: "before, over = p.last, make(chan struct{})\n\tif $ {\n\t\tdone := make(chan struct{})\n\t\tclose(done)\n\t\tbefore = done\n\t}"},
	}},
	{root + "/engine/caslock", "caslock", []mutant.Mutation{
		{Name: "forgetsOpenWrite", Undoes: "a write without an answer may still be served", Rejects: "TestCaslock/try", File: "change.go",
			Old: "*before = uncertain{true, v.version}", New: "*before = uncertain{!$, v.version}",
			Unseen: "a claim whose last Try failed writes at its release anyway, so that one claim must try twice, and stores that number their writes are not explored; TestLateWriteIsRefused of caslock finds it"},
		{Name: "countsFromWrite", Undoes: "what is seen of a lease counts from when it was seen", Rejects: "TestCaslock/three", File: "clock.go",
			Old: "of.TTL+drift(of.TTL)-c.now.Sub(seen.at))", New: "of.TTL/time.Duration(1+count($))+drift(of.TTL)-c.now.Sub(seen.at))"},
		{Name: "believesOldLine", Undoes: "a line that no watch tells of changes is made anew", Rejects: "TestCaslockPlaces/two", File: "places.go",
			Old: "l.loaded && l.session == d.watch.session()", New: "l.loaded && (l.session == d.watch.session() || $)"},
		{Name: "waitsForWatch", Undoes: "a watch that does not begin is given up", Rejects: "TestCaslockPlaces/two", File: "watch.go",
			Old: "time.AfterFunc(watchLate, over)", New: "time.AfterFunc(watchLate*time.Duration(1+1000*count($)), over)"},
		{Name: "watchTellsNobody", Undoes: "the watch tells a holder of who queues", Rejects: "TestCaslockPlaces/recall", File: "recall.go",
			Old: "if its != owner && v.Holds(its) {", New: "if its != owner && v.Holds(its) && !$ {"},
		{Name: "tellsNobody", Undoes: "a grant and a renewal tell of who waits", Rejects: "TestCaslock/recall", File: "recall.go",
			Old: "	if wanted {", New: "	if wanted && !$ {"},
		{Name: "checksNothing", Undoes: "a renewal looks for places of which the watch did not tell", Rejects: "TestCaslockPlaces/recall", File: "recall.go",
			Old: "	if beside || unheard {", New: "	if (beside || unheard) && !$ {"},
		{Name: "recallsAfterRelease", Undoes: "no call after Release has begun",
			Unseen: "it takes a place that comes within the two milliseconds of a release, at a random time; TestNoCallOnceReleaseHasBegun of caslock finds it", Rejects: "TestCaslockPlaces/recall", File: "claim.go",
			Old: "	s.ignore(c)\n	left, err", New: "	if !$ {\n\t\ts.ignore(c)\n\t}\n	left, err"},
	}},
	{root + "/internal/queue", "queue", []mutant.Mutation{
		{Name: "oneMore", Undoes: "limits hold", Rejects: "TestMemory/shared", File: "queue.go",
			Old: "a.weight+c.weight() > int64(limit)", New: "a.weight+c.weight() > int64(limit+count($))"},
		{Name: "countsHeads", Undoes: "a heavy claim uses its weight", Rejects: "TestMemory/weights", File: "queue.go",
			Old: "int64(c.Mode.Uses(c.Weight))", New: "int64(c.Mode.Uses(c.Weight * (1 - count($))))"},
		{Name: "writesBesideReaders", Undoes: "exclusive is alone", Rejects: "TestMemory/readers", File: "queue.go",
			Old: "return a.exclusive+a.shared == 0", New: "return a.exclusive+a.shared*(1-count($)) == 0"},
	}},
}

// TestMutantsAreFound explores each, if it is asked to. A mutation that no longer applies must
// follow what it changes, asked or not.
func TestMutantsAreFound(t *testing.T) {
	for _, p := range packs {
		if !*explored {
			p.fit(t)
			continue
		}
		binary := mutant.Build(t, "..", p.folder, p.name, p.mutations)
		for _, m := range p.mutations {
			t.Run(m.Name, func(t *testing.T) { binary.Find(t, p.name, m) })
		}
	}
}

// fit says which mutations no longer apply.
func (p *pack) fit(t *testing.T) {
	for _, m := range p.mutations {
		text, err := os.ReadFile(filepath.Join(p.folder, m.File))
		if n := strings.Count(string(text), m.Old); err != nil || n != 1 {
			t.Errorf("mutation %s: %q occurs %d times in %s, want once: %v", m.Name, m.Old, n, m.File, err)
		}
	}
}
