package zklock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A server whose data is that of before has the sessions of then, and what was held in them. A process
// that was away for longer than its session does not go on with it: nobody would end what it has released.
func TestReleasedBeforeTheDataWentBack(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	opts := &zklock.Options{SessionTimeout: timeout}
	d := driverOn(t, opts, z.Addr())
	c := claimOn(t, d, "a")
	var before string
	claimtest.Eventually(t, "a lease that lasts, on a busy machine, until it is released", func() bool {
		if _, err := c.Try(t.Context()); err != nil {
			return false
		}
		before = servers.Copied(t, z.Data())
		return c.Release(t.Context(), driver.End{}) == nil
	})
	z.Kill()
	servers.PutBack(t, z.Data(), before)
	time.Sleep(timeout)
	z.Start(t)
	conn := client(t, z.Addr())
	for i := range 50 { // whom the server has told of later changes it refuses until there were as many
		if _, err := conn.Create(fmt.Sprint("/", i), nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	for what, d := range map[string]driver.Driver{"another": driverOn(t, opts, z.Addr()), "its": d} {
		next := claimOn(t, d, "a")
		end := time.Now().Add(time.Minute)
		_, err := next.Try(t.Context())
		for ; err != nil && time.Now().Before(end); _, err = next.Try(t.Context()) {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			t.Fatalf("Try in %s driver: %v; want a grant", what, err)
		}
		claimtest.Released(t, next)
	}
}
