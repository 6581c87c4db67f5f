package nats

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	locktest.Main(m, openURL)
}

func openURL(url string) (driver.Driver, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return natslock.CreateURL(ctx, url)
}

func urlOf(all []*servers.NATS) string {
	return fmt.Sprintf("nats://%s/locks?replicas=%d", servers.NATSAddrs(all), len(all))
}

func open(t testing.TB, url string) driver.Driver {
	t.Helper()
	d, err := openURL(url)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return d
}

// late: who comes when a lease is over watches it for a TTL of his own.
const late = 3 * time.Second

func harness(all []*servers.NATS) locktest.Harness {
	url := urlOf(all)
	return locktest.Harness{
		Open:    func(t testing.TB) driver.Driver { return open(t, url) },
		Address: url,
		Pause: func(testing.TB) (resume func()) {
			var resumes []func()
			for _, s := range all {
				resumes = append(resumes, s.Pause())
			}
			return func() {
				for _, resume := range resumes {
					resume()
				}
			}
		},
		Restart: func(testing.TB) {
			for _, s := range all {
				s.Kill()
			}
			for _, s := range all {
				s.Begin()
			}
			for _, s := range all {
				s.Ready()
			}
		},
		NoLossNotice: true, Late: late, CallGoroutines: 3,
	}
}

// basics are the cases that run on a cluster: one of each kind of call.
const basics = "OneHolder|OneOfManyWins|ExpiresAfterItsTTL|WakesOnRelease|OrderOfFirstTry|" +
	"ReleaseTwice|RenewKeepsTheGrant|Resume|FenceGrowsAfterEviction|SmallestLimitCounts|" +
	"QueuedReadersFollowWriter|InspectShowsWaitersInOrder|LingerHoldsForOthers|NoteIsReplaced|ReplyLostOnTry"

func TestConformance(t *testing.T) { apart.Run(t, suiteOn(1)) }
func TestConformanceOfACluster(t *testing.T) {
	servers.Long(t, "the suite runs on one server")
	apart.RunSome(t, basics, suiteOn(3))
}

func suiteOn(n int) func(t *testing.T) {
	return func(t *testing.T) { locktest.Run(t, harness(servers.StartNATS(t, n, ""))) }
}

func TestNATSIsLinearizable(t *testing.T) {
	t.Parallel()
	url := urlOf(servers.StartNATS(t, 3, ""))
	linear.Check(t, func(t testing.TB) driver.Driver { return open(t, url) })
}
