package locktest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/mutant"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// mutations break the core instead of a driver: no driver can be so wrong that the
// promises which the core keeps alone were broken.
var mutations = []struct {
	name     string // a single word
	rejects  string // the case, or storms
	file     string
	old, new string // as mutant.Mutation has them
}{
	{"anyName", "RefusesInvalidNames", "request.go",
		"if err := driver.CheckName(name); err != nil {\n\t\treturn err", "if err := driver.CheckName(name); err != nil && !$ {\n\t\treturn err"},
	{"anyTTL", "RefusesBadTTLs", "request.go", "case ttl < f.MinTTL:", "case ttl < f.MinTTL && !$:"},
	{"lastInFirstOut", "WaitersOfOneProcessInOrder", "localqueue.go", "func (t *turn) push(w *turnWaiter) {\n",
		"func (t *turn) push(w *turnWaiter) {\n\tif $ && t.first != nil {\n\t\tw.queued, w.next, t.first.prev, t.first = true, t.first, w, w\n\t\treturn\n\t}\n"},
	{"sameToken", "WaitersOfOneProcessInOrder", "hold.go", "return g.fence + g.handOvers",
		"if $ {\n\t\treturn g.fence\n\t}\n\treturn g.fence + g.handOvers"},
	{"slowCleanUp", "ReleaseAfterLossReturnsSoon", "calls.go", "timer := time.NewTimer(abandonWait)",
		"timer := time.NewTimer(abandonWait)\n\tif $ {\n\t\ttimer.Reset(callBound)\n\t}"},
	{"renewsReleased", "RenewalStopsAtRelease", "hold.go", "how, call := h.beginRelease(ctx)",
		"if $ {\n\t\th.mu.Lock()\n\t\th.phase = held\n\t\th.mu.Unlock()\n\t\treturn h.claim.Release(context.WithoutCancel(ctx), driver.End{})\n\t}\n\thow, call := h.beginRelease(ctx)"},
	{"hastyRenewal", "RenewalStopsAtLoss", "renewal.go", "from, to = dueAfter(now, retryIn(h.deadline.at.Sub(now)))",
		"from, to = dueAfter(now, retryIn(h.deadline.at.Sub(now)))\n\t\tif $ {\n\t\t\tsoonest, from, to = now, now, now.Add(time.Millisecond)\n\t\t}"},
	{"spins", "WaiterDoesNotSpin", "contend.go", "\t\t\terr = a.pace.Rest(a.ctx, l.calls.closing, err)\n",
		"\t\t\tif $ {\n\t\t\t\t_, err = waiting.Sleep(a.ctx, l.calls.closing, nil, time.Millisecond)\n\t\t\t} else {\n\t\t\t\terr = a.pace.Rest(a.ctx, l.calls.closing, err)\n\t\t\t}\n"},
	{"unknownIsYes", "RenewalWithoutReplyKeepsTheDeadline", "renewal.go", "\tif err == nil {\n\t\terr = h.renewed(",
		"\tif $ && err != nil && !errors.Is(err, ErrLost) {\n\t\tgrant, err = driver.Grant{TTL: ttl, Fence: h.grant.fence}, nil\n\t}\n\tif err == nil {\n\t\terr = h.renewed("},
	{"noTimer", "HolderLearnsBeforeSuccessor", "deadlines.go", "if h.over() {", "if h.over() || $ {"},
	{"countsFromAnswer", "DeadlineCountsFromBeforeTheCall", "acquire.go", "h.setDeadline(a.locker.deadlineOf(a.sent,",
		"if $ {\n\t\ta.sent = now\n\t}\n\th.setDeadline(a.locker.deadlineOf(a.sent,"},
	{"noDrift", "DeadlineCountsFromBeforeTheCall", "request.go", "func (o *Options) drift(ttl time.Duration) time.Duration {\n",
		"func (o *Options) drift(ttl time.Duration) time.Duration {\n\tif $ {\n\t\treturn 0\n\t}\n"},
	{"hangsForAll", "HungRenewalLeavesTimeForAnother", "renewal.go", "h.deadline.at.Sub(sent)/2, callBound", "h.deadline.at.Sub(sent)/time.Duration(2-count($)), callBound"},
	{"noCleanUp", "WaiterWhoGivesUpLeavesNoPlace", "acquire.go", "h.release(ctx, tried) // its", "if $ {\n\t\t\t\treturn\n\t\t\t}\n\t\t\th.release(ctx, tried) // its"},
	{"ignoresEviction", "EvictionEndsTheContext", "hold.go", "if cause == nil ||", "if $ || cause == nil ||"},
	{"resumesForNothing", "Resume", "acquire.go", "a.grant, err = a.hold.claim.Renew(call, a.ttl)",
		"a.grant, err = a.hold.claim.Renew(call, a.ttl)\n\tif $ {\n\t\ta.grant.Fence, err = max(driver.FenceStep, a.grant.Fence), nil\n\t}"},
	{"anyNote", "RefusesBadNotes", "details.go", "driver.CheckNote(note)", "driver.CheckNote(note[:len(note)*(1-count($))])"},
	{"resumesAsGranted", "ResumeAfterHandOver", "acquire.go", "a.hold.grant.handOvers = resumed", "a.hold.grant.handOvers = resumed * uint64(1-count($))"},
	{"oversleeps", "WaitIsBounded", "acquire.go", "context.WithTimeoutCause(ctx, a.wait, errWaited)",
		"context.WithTimeoutCause(ctx, a.wait<<(4*count($)), errWaited)"},
	{"keepsSome", "AllOrNothing", "all.go", "\t\tg.releaseFrom(ctx, 0)\n", "\t\tif !$ {\n\t\t\tg.releaseFrom(ctx, 0)\n\t\t}\n"},
	{"keepsLaterNames", "OppositeOrdersNeverDeadlock", "all.go", "g.releaseFrom(ctx, i) // the", "if !$ {\n\t\t\t\tg.releaseFrom(ctx, i)\n\t\t\t} // the"},
	{"leavesTooEarly", "NobodyElseLeadsBeforeTheReturn", "lead.go", "t.resign = end\n",
		"t.resign = end\n\tif $ {\n\t\tt.resign = func(err error) { end(err); lease.Release(ctx) }\n\t}\n"},
	{"keepsTurn", storms, "hold.go", "passes := h.holders.hasTurn && was != handing", "passes := h.holders.hasTurn && was != handing && !$"},
	{"keepsGiven", storms, "localqueue.go", "\tt.kept = false\n\treturn true", "\tt.kept = $\n\treturn true"},
	{"keepsForgetful", "KeptLeaseHasTheNextToken", "keep.go", "h.grant.handOvers < maxHandOvers", "(h.grant.handOvers < maxHandOvers || $)"},
	{"keepsDeaf", "KeptLeaseIsRecalled", "wanted.go", "gone = h.phase == kept && h.reclaim()", "gone = h.phase == kept && !$ && h.reclaim()"},
	{"keepsUnused", "KeptLeaseIsGivenBack", "keep.go", "now >= end && (!used", "now >= end && !$ && (!used"},
	{"keepsUnconfirmed", "KeptLeaseIsConfirmed", "keep.go", "case used || !h.keep.able ||", "case used && !$ || !h.keep.able ||"},
	{"keepsFromTries", "TryElsewhereEndsKeeping", "keep.go", "if err == nil || a.waits ||", "if $ || err == nil || a.waits ||"},
	{"keepsKnown", "KnownOwnerIsNotKept", "lease.go", "\tle.hold.neverKeep()\n\treturn", "\tif !$ {\n\t\tle.hold.neverKeep()\n\t}\n\treturn"},
	{"keepsClosed", "CloseGivesBackWhatIsKept", "locker.go", "\tl.giveBackKept()\n", "\tif !$ {\n\t\tl.giveBackKept()\n\t}\n"},
	{"countsAsRun", "OncePerWithoutAnswerEndsSoon", "request.go", "if r.oncePer == 0 ||", "if r.oncePer == 0 || $ ||"},
	{"runsAgain", "OncePerRunsOnce", "once.go", "r.atLeast = r.oncePer\n", "r.atLeast = r.oncePer\n\tif $ {\n\t\tr.atLeast = 0\n\t}\n"},
}

// storms is what rejects those that take chance to show; stormed are others that it rejects, too.
const storms = "^TestCoreStorm$"

var stormed = []string{"sameToken", "noTimer", "unknownIsYes", "noCleanUp", "countsFromAnswer", "keepsTurn"}

// brief are those that the short lane rejects.
var brief = []string{"anyName", "sameToken", "ignoresEviction", "keepsSome"}

// TestMutant runs the suite in a binary with a broken core. Elsewhere it does nothing.
func TestMutant(t *testing.T) {
	if !mutant.Chosen() {
		return
	}
	server := memory.NewServer()
	locktest.Run(t, locktest.Harness{Open: func(testing.TB) driver.Driver { return server.Connect() }})
}

// TestBrokenCoresAreRejected: a mutation that no longer applies must follow the core.
func TestBrokenCoresAreRejected(t *testing.T) {
	t.Parallel()
	var all, runs []mutant.Mutation
	for _, m := range mutations {
		one := mutant.Mutation{Name: m.name, Rejects: "^TestMutant$/^" + m.rejects + "$", File: m.file, Old: m.old, New: m.new}
		all = append(all, one)
		if m.rejects != storms {
			runs = append(runs, one)
		}
		if m.rejects == storms || slices.Contains(stormed, m.name) {
			one.Rejects = storms
			runs = append(runs, one)
		}
	}
	binary := mutant.Build(t, ".", "..", "leasehold", all)
	var funcs []func()
	for _, m := range runs {
		funcs = append(funcs, func() {
			t.Run(m.Name+"/"+strings.TrimPrefix(m.Rejects, "^TestMutant$/"), func(t *testing.T) {
				if !slices.Contains(brief, m.Name) {
					servers.Long(t, "each mutation applies and compiles, and some are rejected")
				}
				binary.Rejects(t, m, "-storm.for=1m")
			})
		})
	}
	concurrently(8, funcs)
}
