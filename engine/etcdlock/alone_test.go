package etcdlock_test

import (
	"flag"
	"testing"

	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

var all = flag.Bool("all", false, "run the whole suite on every version and size, not only on one")

// basics are the cases that run on the old server by default: one of each kind of call.
const basics = "OneHolder|OneOfManyWins|ExpiresAfterItsTTL|TTLsAreRoundedUp|WakesOnRelease|OrderOfFirstTry|" +
	"ReleaseTwice|RenewKeepsTheGrant|Resume|LostIsCalledOnce|FenceGrowsAfterEviction|SmallestLimitCounts|" +
	"QueuedReadersFollowWriter|HolderIsWanted|RenewalTellsOfOthers|InspectShowsWaitersInOrder|LingerHoldsForOthers|" +
	"NoteIsReplaced|ReplyLostOnTry|Barred|WeightsCount|LoweredLimitEndsNobody|InspectShowsTheLimit"

// Other tests of the short lane are on clusters, with members that fail.
func TestConformance(t *testing.T) { apart.Run(t, suiteOn(servers.EtcdCurrent, 1)) }

func TestConformanceOfACluster(t *testing.T) {
	servers.Long(t, "the suite runs on one member")
	apart.Run(t, suiteOn(servers.EtcdCurrent, 3))
}

func TestConformanceOnDebian(t *testing.T) {
	servers.Long(t, "the suite runs on the current release")
	cases := basics
	if *all {
		cases = ""
	}
	apart.RunSome(t, cases, suiteOn(servers.EtcdDebian, 1))
}

func TestConformanceOfAnOldCluster(t *testing.T) {
	if !*all {
		t.Skip("needs -all")
	}
	apart.Run(t, suiteOn(servers.EtcdDebian, 3))
}

func suiteOn(version string, members int) func(t *testing.T) {
	return func(t *testing.T) { locktest.Run(t, harness(servers.StartEtcdCluster(t, version, members)...)) }
}

// A server that has lost its data tells nobody: holders hear of it from their next renewal.
func TestFlush(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	h := harness(e)
	h.NoLossNotice = true
	h.FlushState = func(t testing.TB) {
		e.Kill()
		e.Forget()
		e.Start(t)
	}
	for _, c := range locktest.Cases() {
		if c.Needs&locktest.NeedFlushState != 0 {
			t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
		}
	}
}
