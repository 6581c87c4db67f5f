package locktest_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/mutant"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// mutations break the core instead of a driver: no driver can be so wrong that the
// promises which the core keeps alone were broken.
var mutations = []struct {
	name     string // a single word
	rejects  string // the case
	file     string
	old, new string // as mutant.Mutation has them
}{
	{"anyName", "RefusesInvalidNames", "locker.go",
		"if err := driver.CheckName(name); err != nil {\n\t\treturn nil, err", "if err := driver.CheckName(name); err != nil && !$ {\n\t\treturn nil, err"},
	{"anyTTL", "RefusesBadTTLs", "locker.go", "case ttl < f.MinTTL:", "case ttl < f.MinTTL && !$:"},
	{"lastInFirstOut", "WaitersOfOneProcessInOrder", "localqueue.go", "func (t *turn) push(w *turnWaiter) {\n",
		"func (t *turn) push(w *turnWaiter) {\n\tif $ && t.first != nil {\n\t\tw.queued, w.next, t.first.prev, t.first = true, t.first, w, w\n\t\treturn\n\t}\n"},
	{"sameToken", "WaitersOfOneProcessInOrder", "hold.go", "return h.fence + h.handOvers",
		"if $ {\n\t\treturn h.fence\n\t}\n\treturn h.fence + h.handOvers"},
	{"slowCleanUp", "ReleaseAfterLossReturnsSoon", "acquire.go", "timer := time.NewTimer(abandonWait)",
		"timer := time.NewTimer(abandonWait)\n\tif $ {\n\t\ttimer.Reset(callBound)\n\t}"},
	{"renewsReleased", "RenewalStopsAtRelease", "hold.go", "h.locker.forget(h)\n\n\th.calling.Lock()",
		"if $ {\n\t\th.mu.Lock()\n\t\th.releasing = false\n\t\th.mu.Unlock()\n\t\treturn h.claim.Release(context.WithoutCancel(ctx))\n\t}\n\th.locker.forget(h)\n\n\th.calling.Lock()"},
	{"hastyRenewal", "RenewalStopsAtLoss", "renewal.go", "from, to = dueAfter(now, retryIn(h.deadline.Sub(now)))",
		"from, to = dueAfter(now, retryIn(h.deadline.Sub(now)))\n\t\tif $ {\n\t\t\tsoonest, from, to = now, now, now.Add(time.Millisecond)\n\t\t}"},
	{"spins", "WaiterDoesNotSpin", "acquire.go", "w.fails++", "w.fails++\n\tif $ {\n\t\td = time.Millisecond\n\t}"},
	{"unknownIsYes", "RenewalWithoutReplyKeepsTheDeadline", "renewal.go", "\t\th.lose(err)\n\t}\n\treturn err\n}",
		"\t\th.lose(err)\n\tcase $:\n\t\treturn h.renewed(sent, answered, ttl, driver.Grant{TTL: ttl, Fence: h.fence})\n\t}\n\treturn err\n}"},
	{"noTimer", "HolderLearnsBeforeSuccessor", "hold.go", "return time.Until(h.deadline) <= 0 }", "return time.Until(h.deadline) <= 0 && !$ }"},
	{"countsFromAnswer", "DeadlineCountsFromBeforeTheCall", "hold.go", "h.setDeadline(sent.Add(g.TTL",
		"if $ {\n\t\tsent = now\n\t}\n\th.setDeadline(sent.Add(g.TTL"},
	{"noDrift", "DeadlineCountsFromBeforeTheCall", "hold.go", "func (l *Locker) drift(ttl time.Duration) time.Duration {\n",
		"func (l *Locker) drift(ttl time.Duration) time.Duration {\n\tif $ {\n\t\treturn 0\n\t}\n"},
	{"hangsForAll", "HungRenewalLeavesTimeForAnother", "renewal.go", "h.deadline.Sub(sent)/2, callBound", "h.deadline.Sub(sent)/time.Duration(2-count($)), callBound"},
	{"noCleanUp", "WaiterWhoGivesUpLeavesNoPlace", "acquire.go", "h.giveUp(ctx) // its", "if $ {\n\t\t\treturn\n\t\t}\n\t\th.giveUp(ctx) // its"},
	{"ignoresEviction", "EvictionEndsTheContext", "hold.go", "h.releasing || !still() {", "h.releasing || !still() || $ {"},
	{"resumesForNothing", "Resume", "locker.go", "grant, err := h.claim.Renew(call, r.ttl)",
		"grant, err := h.claim.Renew(call, r.ttl)\n\tif $ {\n\t\tgrant.Fence, err = max(driver.FenceStep, grant.Fence), nil\n\t}"},
	{"anyNote", "RefusesBadNotes", "options.go", "err := driver.CheckNote(note); err != nil {", "err := driver.CheckNote(note); err != nil && !$ {"},
	{"resumesAsGranted", "ResumeAfterHandOver", "locker.go", "h.handOvers = resumed", "h.handOvers = resumed * uint64(1-count($))"},
	{"oversleeps", "WaitIsBounded", "acquire.go", "context.WithTimeoutCause(ctx, r.wait, errWaited)",
		"context.WithTimeoutCause(ctx, r.wait+time.Duration(count($))*time.Second, errWaited)"},
	{"keepsSome", "AllOrNothing", "all.go", "\t\tg.letGo(ctx, 0)\n", "\t\tif !$ {\n\t\t\tg.letGo(ctx, 0)\n\t\t}\n"},
	{"keepsLaterNames", "OppositeOrdersNeverDeadlock", "all.go", "g.letGo(ctx, i) // what", "if !$ {\n\t\t\t\tg.letGo(ctx, i)\n\t\t\t} // what"},
	{"leavesTooEarly", "NobodyElseLeadsBeforeTheReturn", "lead.go", "t.led, t.resign = true, end\n",
		"t.led, t.resign = true, end\n\tif $ {\n\t\tt.resign = func(err error) { end(err); lease.Release(ctx) }\n\t}\n"},
	{"runsAgain", "OncePerRunsOnce", "once.go", "r.atLeast = max(r.atLeast, r.oncePer)", "r.atLeast = max(r.atLeast, r.oncePer)\n\tif $ {\n\t\tr.atLeast = 0\n\t}"},
}

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
	var all []mutant.Mutation
	for _, m := range mutations {
		all = append(all, mutant.Mutation{Name: m.name, Rejects: "^TestMutant$/^" + m.rejects + "$", File: m.file, Old: m.old, New: m.new})
	}
	binary := mutant.Build(t, ".", "..", "leasehold", all)
	var runs []func()
	for i, m := range mutations {
		runs = append(runs, func() {
			t.Run(m.name+"/"+m.rejects, func(t *testing.T) { binary.Rejects(t, all[i]) })
		})
	}
	concurrently(8, runs)
}
