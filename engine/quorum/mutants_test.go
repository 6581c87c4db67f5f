package quorum_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/mutant"
)

// mutations leave out what only shows when a node answers late, or not.
var mutations = []mutant.Mutation{
	{Name: "noCallOrder", Rejects: "^TestRollBackDoesNotOvertake$", File: "claim.go",
		Old: "before, over = p.last, make(chan struct{})",
		New: "before, over = p.last, make(chan struct{})\n\tif $ {\n\t\tdone := make(chan struct{})\n\t\tclose(done)\n\t\tbefore = done\n\t}"},
	{Name: "noWriteBack", Rejects: "^TestFenceGrowsOverChangingMajorities$", File: "claim.go",
		Old: "if missing <= 0 {", New: "if missing <= 0 || $ {"},
	{Name: "noRollBack", Rejects: "^TestLateYesIsTakenBack$", File: "claim.go",
		Old: "func (c *claim) rollBack(ctx context.Context) {\n\tc.held, c.fence = false, 0\n",
		New: "func (c *claim) rollBack(ctx context.Context) {\n\tc.held, c.fence = false, 0\n\tif $ {\n\t\treturn\n\t}\n"},
	{Name: "renewsInAHurry", Rejects: "^TestSlowNodesCostNoLease$", File: "node.go",
		Old: "func() { n.mark(true) }", New: "func() {\n\t\tn.mark(true)\n\t\tif $ {\n\t\t\tcancel()\n\t\t}\n\t}"},
	{Name: "noRegain", Rejects: "^TestLeaseOutlivesEachNode$", File: "regain.go",
		Old: "if p.standing == away &&", New: "if !$ && p.standing == away &&"},
	{Name: "neverCounts", Rejects: "^TestLeaseOutlivesEachNode$", File: "regain.go",
		Old: "if p.standing == regained &&", New: "if !$ && p.standing == regained &&"},
	{Name: "regainedCountsAtOnce", Rejects: "^TestRegainedLateDoesNotCount$", File: "regain.go",
		Old: "case err == nil && p.standing != counts:", New: "case err == nil && p.standing != counts && !$:"},
	{Name: "countsFromBefore", Rejects: "^TestRegainedLateDoesNotCount$", File: "claim.go",
		Old: "p.lost, p.standing = false, away", New: "if p.lost = false; !$ {\n\t\t\tp.standing = away\n\t\t}"},
	{Name: "countsWhatWasGivenUp", Rejects: "^TestRegainedLateDoesNotCount$", File: "claim.go",
		Old: "if !held || p.fence == 0 {", New: "if !held && !$ || p.fence == 0 {"},
	{Name: "asksOnceMore", Rejects: "^TestRegainedNodeIsNotAskedOnceMore$", File: "regain.go",
		Old: "if has {", New: "if has && !$ {"},
	{Name: "releasesWhatWasRegained", Rejects: "^TestRegainedLateDoesNotCount$", File: "claim.go",
		Old: "return g, c.counted(p, err)", New: "if $ {\n\t\t\treturn g, err\n\t\t}\n\t\treturn g, c.counted(p, err)"},
	{Name: "regainedCountsInTheSameRound", Rejects: "^TestRegainedLateDoesNotCount$", File: "regain.go",
		Old: "p.since < c.rounds {", New: "(p.since < c.rounds || $) {"},
	{Name: "regainedWithoutFence", Rejects: "^TestRegainedNodeKnowsTheFence$", File: "regain.go",
		Old: "if err == nil && c.d.features.Fencing {", New: "if err == nil && c.d.features.Fencing && !$ {"},
	{Name: "silentNodesHoldNothing", Rejects: "^TestHolderIsSeenBesideANodeThatIsAway$", File: "inspect.go",
		Old: "if len(holders)+silent < d.majority {", New: "if len(holders)+silent < d.majority || $ && len(holders) < d.majority {"},
	{Name: "fenceGoesBack", Rejects: "^TestFenceOfARepeatedTryIsNoLess$", File: "claim.go",
		Old: "same, top := 0, c.fence", New: "same, top := 0, c.fence\n\tif $ {\n\t\ttop = 0\n\t}"},
}

func TestMutantsAreFound(t *testing.T) {
	t.Parallel()
	if mutant.Chosen() {
		return
	}
	binary := mutant.Build(t, ".", ".", "quorum", mutations)
	for _, m := range mutations {
		t.Run(m.Name, func(t *testing.T) { binary.Rejects(t, m) })
	}
}
