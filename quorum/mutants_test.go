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
		Old: "func (c *claim) rollBack(ctx context.Context) {\n\tc.fence = 0\n",
		New: "func (c *claim) rollBack(ctx context.Context) {\n\tc.fence = 0\n\tif $ {\n\t\treturn\n\t}\n"},
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
