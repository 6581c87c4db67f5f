package zklock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// spinShare is how much of a core 50 waiters may use while they have no ensemble: they use 1.8 %,
// and more of a busy machine; one that spins uses all of it.
const spinShare = 0.05

// TestNoQuorum: two of three servers are gone. Calls fail within their bounds and say why,
// 50 waiters of another process do not spin, and all goes on without help when the servers
// are back.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	const session, lasts, many = 6 * time.Second, 5 * time.Second, 50
	all := servers.StartZooKeepers(t, 3, quick)
	d := driverOn(t, &zklock.Options{SessionTimeout: session}, addresses(all)...)
	first := mustAcquire(t, lockerOn(t, d, leasehold.Options{}), crowd.Name)
	order := crowd.Order{URL: "zookeeper://" + strings.Join(addresses(all), ","), TTL: session * 2 / 3} // so that their sessions end too
	waiters := crowd.StartFleet(t, crowd.Build(t, "./testdata/waiters"), order, 1, many)
	waiters.Begin()
	waiters.Queued(time.Minute)
	for _, z := range all[1:] {
		z.Kill()
	}
	<-first.Context().Done()
	claimtest.Eventually(t, "an error that tells of the quorum", func() bool {
		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := d.Inspect(short, crowd.Name)
		return errors.Is(err, zklock.ErrNoQuorum) || errors.Is(err, zklock.ErrUnreachable)
	})
	if share := waiters.Members[0].Share(lasts, spinShare); share > spinShare {
		t.Errorf("%.1f %% of a core for %d waiters without an ensemble", 100*share, many)
	}
	for _, z := range all[1:] {
		z.Start(t)
	}
	turns, err := waiters.Turns(many, time.Minute)
	if faults := crowd.Faults(turns, false); err != nil || len(faults) > 0 {
		t.Errorf("%v, %q", err, faults)
	}
	if err := first.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of a lease whose session has ended: %v; want ErrLost", err)
	}
}
