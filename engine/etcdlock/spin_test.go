package etcdlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// spinShare is how much of a core 50 waiters may use while they have no cluster: they use 1.2 % of an
// idle machine and 2.2 % of a busy one; one that spins uses all of it.
const spinShare = 0.05

// While the cluster is down, or has no quorum, fifty that wait cost next to nothing; when
// it is back, all are served without help.
func TestWaitersDoNotSpinWhileTheClusterIsDown(t *testing.T) {
	t.Parallel()
	for what, left := range map[string]int{"all down": 0, "no quorum": 1} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const waiters, down = 50, 5 * time.Second
			members := servers.StartEtcdCluster(t, servers.EtcdCurrent, 3)
			holder := lockerOn(t, driverOn(t, clientOf(t, members...), nil), leasehold.Options{TTL: time.Minute})
			var held []*leasehold.Lease
			for i := range waiters { // names of their own, so that each asks the cluster
				lease, err := holder.Acquire(t.Context(), crowd.OwnName(i))
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, lease)
			}
			var hosts []string
			for _, m := range members {
				hosts = append(hosts, m.Addr())
			}
			order := crowd.Order{URL: "etcd://" + strings.Join(hosts, ","), How: crowd.Own}
			all := crowd.StartFleet(t, crowd.Build(t, "./testdata/waiters"), order, 1, waiters)
			all.Begin()
			all.Queued(time.Minute)
			for _, m := range members[left:] {
				m.Kill()
			}
			if share := all.Members[0].Share(down, spinShare); share > spinShare {
				t.Errorf("%d waiters used %.1f %% of a core while the cluster was down; want at most %.0f %%", waiters, 100*share, 100*spinShare)
			}
			for _, m := range members[left:] {
				m.Begin()
			}
			for _, m := range members {
				m.Ready()
			}
			for _, lease := range held {
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
			turns, err := all.Turns(waiters, time.Minute)
			if err != nil {
				t.Error(err)
			}
			for _, turn := range turns {
				if turn.Err != "" {
					t.Errorf("waiter %d: %s", turn.Waiter, turn.Err)
				}
			}
		})
	}
}
