// Package mutants undoes, one at a time, what once was wrong or could be, and has the explorer
// find it.
package mutants

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/mutant"
)

var explored = flag.Bool("mutants", false, "explore each mutant")

// within is how long the explorer may take for each.
const within = time.Minute

// A pack is the mutations of one package.
type pack struct {
	folder, name string
	mutations    []mutant.Mutation
}

const root = "../../.."

var packs = []pack{
	{root, "leasehold", []mutant.Mutation{
		{Name: "countsFromAnswer", Rejects: "TestMemory/three", File: "hold.go",
			Old: "h.setDeadline(sent.Add(g.TTL-", New: "if $ {\n\t\tsent = now\n\t}\n\th.setDeadline(sent.Add(g.TTL-"},
		{Name: "renewalCountsFromAnswer", Rejects: "TestMemory/three", File: "renewal.go",
			Old: "h.setDeadline(sent.Add(grant.TTL-", New: "if $ {\n\t\tsent = answered\n\t}\n\th.setDeadline(sent.Add(grant.TTL-"},
		{Name: "shorterKeepsDeadline", Rejects: "TestMemory/extend", File: "renewal.go",
			Old: "d.Before(h.deadline) {", New: "d.Before(h.deadline) && !$ {"},
		{Name: "unknownIsYes", Rejects: "TestMemory/three", File: "renewal.go",
			Old: "\t\th.lose(err)\n\t}\n\treturn err\n}",
			New: "\t\th.lose(err)\n\tcase $:\n\t\treturn h.renewed(sent, answered, ttl, driver.Grant{TTL: ttl, Fence: h.fence})\n\t}\n\treturn err\n}"},
		{Name: "lateGrantCounts", Rejects: "TestMemory/two", File: "acquire.go",
			Old: "return time.Since(sent) < g.TTL-h.locker.drift(g.TTL)", New: "return time.Since(sent) < g.TTL-h.locker.drift(g.TTL) || $"},
		{Name: "lateResumeCounts", Rejects: "TestMemory/resume", File: "locker.go",
			Old: "!h.useful(sent, grant):", New: "!h.useful(sent, grant) && !$:"},
		{Name: "noTimer", Rejects: "TestMemory/three", File: "hold.go",
			Old: "return time.Until(h.deadline) <= 0 }", New: "return time.Until(h.deadline) <= 0 && !$ }"},
		{Name: "sameToken", Rejects: "TestMemory/handover", File: "hold.go",
			Old: "return h.fence + h.handOvers", New: "return h.fence + h.handOvers*uint64(1-count($))"},
		{Name: "resumesAsGranted", Rejects: "TestMemory/inherit", File: "locker.go",
			Old: "h.handOvers = resumed", New: "h.handOvers = resumed * uint64(1-count($))"},
		{Name: "lostIsReleased", Rejects: "TestMemory/three", File: "lease.go",
			Old: "h.locker.abandon(ctx, h, func() {})\n\t\t}\n", New: "h.locker.abandon(ctx, h, func() {})\n\t\t}\n\t\tif $ {\n\t\t\treturn nil\n\t\t}\n"},
		{Name: "lostKeepsTurn", Rejects: "TestMemory/handover", File: "hold.go",
			Old: "passes := h.hasTurn && !h.inTransit", New: "passes := h.hasTurn && !h.inTransit && !$"},
	}},
	{root + "/memory", "memory", []mutant.Mutation{
		{Name: "forgetsFences", Rejects: "TestMemory/two", File: "memory.go",
			Old: "return max(s.fence+1, uint64(time.Now().UnixMicro()))", New: "return max(s.fence+1, uint64(time.Now().UnixMicro())*uint64(1-count($)))"},
		{Name: "keepsPlaces", Rejects: "TestMemory/three", File: "resource.go",
			Old: "return placeTTL", New: "return placeTTL + time.Duration(count($))*time.Hour"},
	}},
	{root + "/internal/record", "record", []mutant.Mutation{
		{Name: "neverOver", Rejects: "TestMemory/three", File: "record.go", Old: "return left <= 0 ||", New: "return left <= 0 && !$ ||"},
		{Name: "endsEarly", Rejects: "TestMemory/three", File: "record.go",
			Old: "c.Ends = int64(n) + Micros(c.TTL)", New: "c.Ends = int64(n) + Micros(c.TTL)/int64(1+count($))"},
		{Name: "passesQueue", Rejects: "TestMemory/shared", File: "record.go",
			Old: "if c.Status == Evicted || c.Status == Gone {\n\t\t\tcontinue\n\t\t}\n\t\tahead.Add(queue.Claim{Mode: c.Mode, Limit: c.Limit, Ends",
			New: "if c.Status == Evicted || c.Status == Gone || $ && c.Status == Waiting {\n\t\t\tcontinue\n\t\t}\n\t\tahead.Add(queue.Claim{Mode: c.Mode, Limit: c.Limit, Ends"},
		{Name: "releasesNothing", Rejects: "TestMemory/three", File: "record.go",
			Old: "mine := r.index(owner)\n\tif mine < 0 {\n", New: "mine := r.index(owner)\n\tif mine < 0 && $ {\n\t\treturn nil\n\t}\n\tif mine < 0 {\n"},
		{Name: "noFloor", Rejects: "TestRecord/two", File: "record.go",
			Old: "return max(r.Fence+1, r.Raised+1, floor)", New: "return max(r.Fence+1, r.Raised+1, floor*uint64(1-count($)))"},
	}},
	{root + "/internal/queue", "queue", []mutant.Mutation{
		{Name: "oneMore", Rejects: "TestMemory/shared", File: "queue.go",
			Old: "limit > 0 && a.shared >= limit", New: "limit > 0 && a.shared >= limit+count($)"},
		{Name: "writesBesideReaders", Rejects: "TestMemory/readers", File: "queue.go",
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
			t.Run(m.Name, func(t *testing.T) {
				start := time.Now()
				binary.Rejects(t, m, "-explore.for=20s")
				took := time.Since(start)
				t.Logf("found in %.1f s", took.Seconds())
				if took > within {
					t.Errorf("found after %v, want within %v", took, within)
				}
			})
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
