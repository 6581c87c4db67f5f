package etcd

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

var all = flag.Bool("all", false, "run the whole suite on every version and size, not only on one")

// aloneEnv is set in the process of a test that runs alone.
const aloneEnv = "LEASEHOLD_TEST_ETCD_ALONE"

// basics are the cases that run on the old server by default: one of each kind of call.
const basics = "OneHolder|OneOfManyWins|ExpiresAfterItsTTL|TTLsAreRoundedUp|WakesOnRelease|OrderOfFirstTry|" +
	"ReleaseTwice|RenewKeepsTheGrant|Resume|LostIsCalledOnce|FenceGrowsAfterEviction|SmallestLimitCounts|" +
	"QueuedReadersFollowWriter|InspectShowsWaitersInOrder|LingerHoldsForOthers|NoteIsReplaced|ReplyLostOnTry"

// The suite counts the goroutines of its process and mostly waits. So each cluster has a
// process of its own, beside the other tests.
func TestConformance(t *testing.T) { alone(t, "TestSuite", servers.EtcdCurrent+" 3") }

func TestConformanceOnDebian(t *testing.T) {
	cases := "TestSuite$/^(" + basics + ")"
	if *all {
		cases = "TestSuite"
	}
	alone(t, cases, servers.EtcdDebian+" 1")
}

func TestConformanceOnTheRest(t *testing.T) {
	if !*all {
		t.Skip("needs -all")
	}
	for _, on := range []string{servers.EtcdDebian + " 3", servers.EtcdCurrent + " 1"} {
		t.Run(on, func(t *testing.T) { alone(t, "TestSuite", on) })
	}
}

// alone runs a test in a process of its own, with what it is to run on, beside the other
// tests. test is the inner part of a pattern of "go test -run".
func alone(t *testing.T, test, on string) {
	t.Helper()
	run := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.v", "-test.timeout", "5m")
	run.Env = append(os.Environ(), aloneEnv+"="+on)
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out strings.Builder
	run.Stdout, run.Stderr = &out, &out
	err := run.Start()
	t.Parallel() // from here on: it takes longer than the others, and begins first
	if err == nil {
		err = run.Wait()
	}
	for line := range strings.Lines(out.String()) {
		if err != nil || strings.Contains(line, "SKIP") {
			t.Log(strings.TrimRight(line, "\n"))
		}
	}
	if err != nil {
		t.Errorf("%s: %v", test, err)
	}
}

func TestSuite(t *testing.T) {
	var version string
	var members int
	if _, err := fmt.Sscan(os.Getenv(aloneEnv), &version, &members); err != nil {
		t.Skip("TestConformance runs it")
	}
	h := harness(servers.StartEtcdCluster(t, version, members)...)
	locktest.Run(t, h)
}

// A server that has lost its data tells nobody: holders hear of it from their next renewal.
func TestFlush(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	h := harness(e)
	h.NoLossNotice = true
	h.FlushState = func(t testing.TB) {
		e.Kill()
		e.Forget(t)
		e.Start(t)
	}
	for _, c := range locktest.Cases() {
		if c.Needs&locktest.NeedFlushState != 0 {
			t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
		}
	}
}
