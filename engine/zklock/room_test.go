package zklock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// An ensemble that enforces a quota says that there is no room, serves the leases that there are, and grants again when
// there is room.
func TestQuotaOfNodes(t *testing.T) {
	t.Parallel()
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{Java: []string{"-Dzookeeper.enforceQuota=true"}})
	d := driverOn(t, nil, z.Addr())
	held := claimOn(t, d, "held")
	claimtest.Granted(t, held)
	client, _, err := zk.Connect([]string{z.Addr()}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	limits := "/zookeeper/quota" + zklock.DefaultPrefix
	set := func(most string) {
		t.Helper()
		text := []byte("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=" + most)
		for _, path := range []string{limits, limits + "/zookeeper_limits", limits + "/zookeeper_stats"} {
			if _, err := client.Create(path, text, 0, zk.WorldACL(zk.PermAll)); errors.Is(err, zk.ErrNodeExists) {
				_, err = client.Set(path, text, -1)
				if err != nil {
					t.Fatal(err)
				}
			} else if err != nil {
				t.Fatalf("create %s: %v", path, err)
			}
		}
	}
	set("1")
	c := claimOn(t, d, "more")
	if _, err := c.Try(t.Context()); !errors.Is(err, zklock.ErrFull) || !errors.Is(err, driver.ErrFull) {
		t.Errorf("Try without room: %v; want ErrFull", err)
	}
	if _, err := held.Renew(t.Context(), d.Features().SessionTTL); err != nil {
		t.Errorf("Renew without room: %v", err)
	}
	set("-1")
	claimtest.Granted(t, c)
}
