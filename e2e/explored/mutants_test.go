package explored

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/mutant"
)

var explored = flag.Bool("mutants", false, "explore each mutant")

// A change is a mutation and what it must find once.
type change struct {
	mutant.Mutation
	file, from string
}

// mutants undo what was mended in redislock once, or would break a promise.
var mutants = []change{
	inScript("release.lua", "lateReleaseCounts", "a release that comes late frees no later grant", "TestRedis$/two",
		"local late = ARGV[3] ~= 'all' and found[3] and tonumber(found[3]) >= tonumber(ARGV[5])", "local late = false",
		"the core asks for nothing more with an owner that it has given up"),
	inScript("acquire.lua", "lateAttemptCounts", "an attempt that comes when its claim was given up grants nothing", "TestRedis$/three",
		"if found[3] and tonumber(found[3]) >= tonumber(ARGV[10]) then return {3, tonumber(found[3])} end", "", ""),
	inScript("take.lua", "lateTakeCounts", "nor does one of the plain case", "TestRedis$/try",
		"if redis.call('EXISTS', KEYS[3], KEYS[4]) > 0", "if redis.call('EXISTS', KEYS[3]) > 0", ""),
	inScript("give.lua", "givesAnyones", "a plain release frees its own lease alone", "TestRedis$/three",
		" or redis.pcall('GET', KEYS[1]) ~= ARGV[1]", "", ""),
	inScript("history.lua", "fencesByClock", "fences grow though the server's clock went back", "TestRedis$/two",
		"local n = math.max(last + 1, us)", "local n = us", ""),
	inScript("acquire.lua", "noQueue", "nobody passes who waits", "TestRedis$/readers",
		"(not first or first == owner) and fits", "fits", ""),
	inScript("prelude.lua", "waitsForTheDead", "places of the dead end", "TestRedis$/three",
		"if found[1] and found[2] >= ms then return", "if found[1] then return", ""),
	inScript("release.lua", "leavesPlace", "a waiter who gives up leaves no place", "TestRedis$/three",
		"if given == 0 and leave(owner)", "if given == 0 and false", ""),
	inScript("release.lua", "grantsForLonger", "what the next one is told of its lease is not more than it has", "TestRedis$/two",
		"number, n, ms - asked + span, span)", "number, n, ms - asked + ttl, ttl)",
		"it takes two changes, and a little longer"),
	inGo(mutant.Mutation{Name: "marksNoLateAttempt", Undoes: "a release marks the attempt that may still come", Rejects: "TestRedis$/three", File: "claim.go",
		Old: "case was.mayBeServed():\n\t\tl.late =", New: "case was.mayBeServed() && !$:\n\t\tl.late =",
		Unseen: "an attempt is served late only if its connection has ended, and what it leaves then may stay for its TTL; TestLostAnswerOfOneOfSeveral of redislock finds it"}),
	inGo(mutant.Mutation{Name: "takesAnyNumber", Undoes: "a grant that is told for another attempt only wakes", Rejects: "TestRedis$/two", File: "subscriber.go",
		Old: "sent, ok := l.armed, number == l.number", New: "sent, ok := l.armed, number == l.number || $"}),
	inGo(mutant.Mutation{Name: "takesOldGrants", Undoes: "a message that comes late replaces no newer grant", Rejects: "TestRedis$/two", File: "claim.go",
		Old: "if ok = fence > now.floor; ok {", New: "if ok = fence > now.floor || $; ok {",
		Unseen: "the number of the attempt, which is told too, refuses it first"}),
	inScript("prelude.lua", "keepsTheDead", "a beat keeps places no longer than a Try", "TestRedis$/crowd",
		"return beat and beat + PLACE >= ms and beat", "return beat and ms", "what other drivers send each second forgets old beats"),
	inScript("beat.lua", "keepsWhatIsLeft", "a place whose release was lost ends though its driver keeps others", "TestRedis$/crowd",
		"if ok and channel == mine and expires < ms then leave(ARGV[i]) end", "",
		"a release is repeated until it has an answer; TestUntriedPlaceGoes of redislock finds it"),
	inGo(mutant.Mutation{Name: "missesNothing", Undoes: "who has lost its place queues anew", Rejects: "TestRedis$/crowd", File: "crowd.go",
		Old: "w.queued = !isMissing[int64(i+1)]", New: "w.queued = !isMissing[int64(i+1)] || $"}),
	inGo(mutant.Mutation{Name: "takesAnyBeat", Undoes: "a grant by a beat whose answer has not come only wakes", Rejects: "TestRedis$/crowd", File: "subscriber.go",
		Unseen: "the beat's answer and the grant must both be late; TestGrantByABeat of redislock finds it",
		Old:    "sent, ok = k.sentAt(-number)", New: "if sent, ok = k.sentAt(-number); !ok && $ {\n\t\t\tsent, ok = e.clock.Now(), true\n\t\t}"}),
	inGo(mutant.Mutation{Name: "countsFromTheBeat", Undoes: "a grant counts from the last Try, also of one that asked nothing", Rejects: "TestRedis$/crowd", File: "subscriber.go",
		Old: "(ttl - l.tried.Sub(sent)).Truncate(step)", New: "(ttl - l.tried.Sub(sent)*time.Duration(1-count($))).Truncate(step)"}),
	inScript("renew.lua", "shortensAnyEnd", "a shorter renewal that comes late, or again, shortens nothing that was renewed since", "TestRedis$/extend",
		"if known > 0 and redis.call('PEXPIRETIME', lock) == known then", "if known > 0 then", ""),
	inScript("acquire.lua", "recallsNobody", "a holder is notified of those who queue", "TestRedis$/recall",
		"    tell_holders()\n", "", ""),
	inScript("renewall.lua", "renewalTellsNobody", "a renewal notifies of them again", "TestRedis$/recall",
		"then replies[which] = 2 end", "then replies[which] = 1 end", ""),
	inGo(mutant.Mutation{Name: "recallsAfterRelease", Undoes: "no call after Release has begun", Rejects: "TestRedis$/recall", File: "claim.go",
		Old: "\t}\n\tc.d.subscriber.forget(c)\n\tif was", New: "\t}\n\tif !$ {\n\t\tc.d.subscriber.forget(c)\n\t}\n\tif was"}),
	inScript("prelude.lua", "countsHeads", "a heavy claim uses its weight", "TestRedis$/weights",
		"return least == 0 or count + extra() + weight_of(mode) <= least", "return least == 0 or count + 1 <= least", ""),
	inScript("prelude.lua", "ignoresOperator", "an operator's limit counts", "TestRedis$/weights",
		"return smaller(limit, tonumber(redis.pcall('GET', most)) or 0)", "return limit", ""),
	inScript("acquire.lua", "lightPassHeavy", "light claims do not pass a heavy one", "TestRedis$/weights",
		"(not first or first == owner) and fits", "(not first or first == owner or mode == 's') and fits", ""),
}

// zookeeperMutants are those of zklock.
var zookeeperMutants = []change{
	inGo(mutant.Mutation{Name: "looksForNoNode", Undoes: "a creation without an answer may have made the node", Rejects: "TestZooKeeper/two", File: "try.go",
		Old: "c.uncertain = true\n\tc.mu.Lock()", New: "c.uncertain = !$\n\tc.mu.Lock()"}),
	inGo(mutant.Mutation{Name: "leavesNode", Undoes: "a release looks for the node of a creation without an answer", Rejects: "TestZooKeeper/two", File: "try.go",
		Old: "if c.uncertain {\n\t\tif err := c.find(client); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\tswitch {",
		New: "if c.uncertain && !$ {\n\t\tif err := c.find(client); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\tswitch {"}),
	inGo(mutant.Mutation{Name: "grantsBesideTheLast", Undoes: "a claim holds when all before it are gone", Rejects: "TestZooKeeper/three", File: "try.go",
		Old: "me < holding(nodes, op.Limit) {", New: "me < holding(nodes, op.Limit)+count($) {"}),
	inGo(mutant.Mutation{Name: "recallsNobody", Undoes: "a holder is notified of those who queue", Rejects: "TestZooKeeper/recall", File: "recall.go",
		Old: "\tl.alarm = nil\n\tif len(l.holders) > 0 {", New: "\tl.alarm = nil\n\tif len(l.holders) > 0 && !$ {"}),
	inGo(mutant.Mutation{Name: "looksBeforeItWatches", Undoes: "also if they queue while it lists", Rejects: "TestZooKeeper/recall", File: "recall.go",
		Old: "l.looking, l.latest, l.next = false,", New: "if $ {\n\t\tl.alarm = a\n\t}\n\tl.looking, l.latest, l.next = false,",
		Unseen: "a change comes before the answer to the list has been applied only where sharers' limits are read in between; SharersAreWanted of the suite and TestRecalls of zklock find it"}),
	inGo(mutant.Mutation{Name: "renewalTellsNobody", Undoes: "a renewal notifies of them again", Rejects: "TestZooKeeper/recall", File: "recall.go",
		Old: "return l.upToDate() && l.wants(c)", New: "return l.upToDate() && l.wants(c) && !$",
		Unseen: "the list notified the holder already; TestRecalls of zklock finds it"}),
	inGo(mutant.Mutation{Name: "countsHeads", Undoes: "a heavy claim uses its weight", Rejects: "TestZooKeeper/weights", File: "next.go",
		Old: "Weight: n.weight}", New: "Weight: n.weight * (1 - count($))}"}),
	inGo(mutant.Mutation{Name: "ignoresOperator", Undoes: "an operator's limit counts", Rejects: "TestZooKeeper/weights", File: "next.go",
		Old: "queue.Smaller(n.limit, limit)", New: "queue.Smaller(n.limit, limit*(1-count($)))"}),
	inGo(mutant.Mutation{Name: "heedsNoLimit", Undoes: "who waits hears of a lower limit before those ahead go", Rejects: "TestZooKeeper/weights", File: "limit.go",
		Old: "armed := l.s.watches.add(k.key, a)", New: "armed := $ || l.s.watches.add(k.key, a)"}),
}

// etcdMutants are those of etcdlock.
var etcdMutants = []change{
	inGo(mutant.Mutation{Name: "noTombstone", Undoes: "a put that comes when its claim was given up leaves nothing", Rejects: "TestEtcd$/again", File: "put.go",
		Old: "created(p.d.tombstone(p.key, s.id), 0)", New: "created(p.d.tombstone(p.key, s.id+clientv3.LeaseID(count($))), 0)"}),
	inGo(mutant.Mutation{Name: "forgetsOpenPut", Undoes: "a put without an answer may still be served", Rejects: "TestEtcd$/again", File: "batch.go",
		Old: "if err != nil && !refused(err) {\n\t\tw.unsure", New: "if err != nil && !refused(err) && !$ {\n\t\tw.unsure"}),
	inGo(mutant.Mutation{Name: "releasesAnyKey", Undoes: "a release deletes the key of its own claim alone", Rejects: "TestEtcd$/two", File: "change.go",
		Old: "\"=\", p.in.id)}", New: "\"=\", p.in.id)}[count($):]"}),
	inGo(mutant.Mutation{Name: "hearsOldNews", Undoes: "a key that was deleted before it was read is another's", Rejects: "TestEtcd$/two", File: "line.go",
		Old: "if gone.rev <= l.rev {", New: "if gone.rev <= l.rev && !$ {"}),
	inGo(mutant.Mutation{Name: "grantsBesideTheFirst", Undoes: "a claim holds when all before it are gone", Rejects: "TestEtcd$/three", File: "claim.go",
		Old: "free := c.holdsBehind(before, limit, rev)", New: "free := c.holdsBehind(before[min(count($), len(before)):], limit, rev)"}),
	inGo(mutant.Mutation{Name: "passesTheLine", Undoes: "nor by what a driver knows of them", Rejects: "TestEtcd$/crowd", File: "wait.go",
		Old: "ahead >= len(p.line.holders())", New: "ahead >= len(p.line.holders())+count($)"}),
	inGo(mutant.Mutation{Name: "takesItsTurnLate", Undoes: "who takes its turn unread has a session that lasts for its TTL", Rejects: "TestEtcd$/two", File: "wait.go",
		Old: "p.fits(ttl) && p.in.covers(started) &&", New: "p.fits(ttl) && (p.in.covers(started) || $) &&"}),
	inGo(mutant.Mutation{Name: "nextWithoutBound", Undoes: "nor has its TTL passed since its key was found", Rejects: "TestLateEtcd/two", File: "wait.go",
		Unseen: "within half a second a new leader, a keep-alive by another claim and the release of who is ahead must follow the end of its lease, and its process must have been away in the midst of a Try for just less than a TTL; TestNextHoldsUnreadOnlyWhileThatIsSure of etcdlock finds it",
		Old:    "started < p.line.from.Add(p.in.ttl)", New: "(started < p.line.from.Add(p.in.ttl) || $)"}),
	inGo(mutant.Mutation{Name: "holdsUnread", Undoes: "nor is its key in another session than the one that is kept alive", Rejects: "TestEtcd$/two", File: "put.go",
		Unseen: "one owner must try in two processes at once, as over two instances of the service, and each process of the explorer has owners of its own; TestNextHoldsUnreadOnlyWhileThatIsSure of etcdlock finds it",
		Old:    "if p.in != nil && p.in.id != queue[own].lease {", New: "if p.in != nil && p.in.id != queue[own].lease && !$ {"}),
	inGo(mutant.Mutation{Name: "trustsTheLine", Undoes: "nor was it when the line was read", Rejects: "TestEtcd$/two", File: "wait.go",
		Unseen: "one owner must try in two processes at once; TestNextHoldsUnreadOnlyWhileThatIsSure of etcdlock finds it",
		Old:    "e.lease == p.in.id && len(", New: "(e.lease == p.in.id || $) && len("}),
	inGo(mutant.Mutation{Name: "trustsAnotherWatch", Undoes: "nor has the watch begun anew since", Rejects: "TestEtcd$/two", File: "wait.go",
		Unseen: "within a second its key must be deleted by force, while its Try waits for a read, the watch end and begin anew before the answer, and who is ahead go; TestNextHoldsUnreadOnlyWhileThatIsSure of etcdlock finds it",
		Old:    "return w.live && since == w.begun", New: "return w.live && (since == w.begun || $)"}),
	inGo(mutant.Mutation{Name: "countsFromAnswer", Undoes: "a keep-alive counts from when it was sent", Rejects: "TestEtcd$/two", File: "keepalive.go",
		Old: "k.session.sent = k.sent", New: "if k.session.sent = k.sent; $ {\n\t\t\tk.session.sent = d.clock.Now()\n\t\t}"}),
	inGo(mutant.Mutation{Name: "forgetsMove", Undoes: "a move without an answer may have moved the key", Rejects: "TestEtcd$/left", File: "phase.go",
		Unseen: "not in every minute: a move without an answer must be followed, within a second, by the end of the session that the key came from",
		Old:    "return len(u.puts) > 0 || len(u.moves) > 0", New: "return len(u.puts) > 0 || len(u.moves) > 0 && !$"}),
	inGo(mutant.Mutation{Name: "movesAtOnce", Undoes: "what holds is moved to a session that was kept alive before", Rejects: "TestEtcd$/extend", File: "change.go",
		Old: "if holds {", New: "if holds && !$ {"}),
	inGo(mutant.Mutation{Name: "keepsUnwanted", Undoes: "a key that nobody renews goes though its session lives", Rejects: "TestEtcd$/left", File: "sweep.go",
		Old: "} else if p.calls == 0 { // else", New: "} else if p.calls == 0 && !$ { // else"}),
	inGo(mutant.Mutation{Name: "clearsWhatWasResumed", Undoes: "nor one that another process has resumed", Rejects: "TestEtcd$/resume", File: "change.go",
		Old: "p.deleteIf(ctx, false, p.knows)", New: "p.deleteIf(ctx, false, func(e *entry) bool { return $ || p.knows(e) })"}),
	inGo(mutant.Mutation{Name: "renewsUnread", Undoes: "a renewal reads that the key is there", Rejects: "TestEtcd$/evict", File: "read.go",
		Old: "return d.holdTrue(ctx, cmps, all[0].key, asking...)", New: "are, err := d.holdTrue(ctx, cmps, all[0].key, asking...)\n\treturn err == nil && (are || $), err"}),
	inGo(mutant.Mutation{Name: "countsHeads", Undoes: "a heavy claim uses its weight", Rejects: "TestEtcd$/weights", File: "keys.go",
		Old: "Weight: e.weight}", New: "Weight: e.weight * (1 - count($))}"}),
	inGo(mutant.Mutation{Name: "ignoresOperator", Undoes: "an operator's limit counts", Rejects: "TestEtcd$/weights", File: "limit.go",
		Old: "c.Limit = queue.Smaller(c.Limit, l.Most)", New: "c.Limit = queue.Smaller(c.Limit, l.Most*(1-count($)))"}),
	inGo(mutant.Mutation{Name: "heedsNoLimit", Undoes: "who waits hears of a lower limit before those ahead go", Rejects: "TestEtcd$/weights", File: "watch.go",
		Old: "ok && d.of[dir] != nil {", New: "ok && d.of[dir] != nil && !$ {"}),
}

func inGo(m mutant.Mutation) change { return change{m, m.File, m.Old} }

// inScript is a mutation of a script, as it is read.
func inScript(file, name, undoes, rejects, from, to, unseen string) change {
	const read = "\treturn string(b)\n}"
	changed := fmt.Sprintf("\tif $ && name == %q {\n\t\treturn strings.Replace(string(b), %q, %q, 1)\n\t}\n", file, from, to)
	return change{mutant.Mutation{
		Name: name, Undoes: undoes, Unseen: unseen, Rejects: rejects, File: "script.go", Old: read, New: changed + read,
	}, "scripts/" + file, from}
}

// TestMutantsAreFound explores each, if it is asked to. One that no longer applies must follow what
// it changes, asked or not.
func TestMutantsAreFound(t *testing.T) {
	if mutant.Chosen() {
		return
	}
	for name, those := range map[string][]change{"redislock": mutants, "zklock": zookeeperMutants, "etcdlock": etcdMutants} {
		t.Run(name, func(t *testing.T) { find(t, name, those) })
	}
}

// find has the explorer find mutations of a package.
func find(t *testing.T, name string, mutants []change) {
	folder := filepath.Join("../../engine", name)
	var all []mutant.Mutation
	for _, m := range mutants {
		all = append(all, m.Mutation)
		text, err := os.ReadFile(filepath.Join(folder, m.file))
		if n := strings.Count(string(text), m.from); err != nil || n != 1 {
			t.Errorf("mutation %s: %q occurs %d times in %s, want once: %v", m.Name, m.from, n, m.file, err)
		}
	}
	if !*explored || t.Failed() {
		return
	}
	binary := mutant.Build(t, ".", folder, name, all)
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) { binary.Find(t, name, m) })
	}
}
