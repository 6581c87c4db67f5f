package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestCreationThatComesLate: a claim is released while its creation is on its way: proposed by
// the leader, and to be seen nowhere yet, because of four servers two are stopped. The driver,
// which has changed to another server meanwhile, does not believe in what it sees there. When the
// others go on the node comes, and goes.
func TestCreationThatComesLate(t *testing.T) {
	t.Parallel()
	all := servers.StartZooKeepers(t, 4, servers.ZooKeeperOptions{Config: []string{"syncLimit=100"}})
	leader := servers.Leader(t, all)
	followers := slices.DeleteFunc(slices.Clone(all), func(z *servers.ZooKeeper) bool { return z == leader })
	near, next, other := followers[0], followers[1], followers[2]
	p := servers.StartProxy(t, near.Addr())
	var addr atomic.Pointer[string]
	use := func(a string) { addr.Store(&a) }
	use(p.Addr())
	const session = 30 * time.Second
	d := driverOn(t, &zklock.Options{SessionTimeout: session, Dial: func(network, _ string, timeout time.Duration) (net.Conn, error) {
		return net.DialTimeout(network, *addr.Load(), timeout)
	}}, p.Addr())
	c := claimOn(t, d, "late")
	claimtest.Granted(t, c) // connects, and makes the resource's node
	claimtest.Released(t, c)
	proposed := number(t, leader, "mntr", "zk_proposal_count\t")

	defer other.Pause()()
	leads := leader.Pause()
	defer leads()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if g, err := c.Try(ctx); err == nil || errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try without a leader: %+v, %v", g, err)
	}
	follows := near.Pause()
	defer follows()
	leads()
	claimtest.Eventually(t, "the proposal", func() bool { return number(t, leader, "mntr", "zk_proposal_count\t") > proposed })
	use(next.Addr())
	p.Reset()
	claimtest.Eventually(t, "the driver's session at the next", func() bool {
		answer, err := next.Ask("cons")
		return err == nil && strings.Contains(answer, fmt.Sprintf("to=%d,", session.Milliseconds()))
	})

	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := c.Release(ctx, driver.End{}); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Release says %v of a node that is yet to come", err)
	}
	follows()
	conn := client(t, near.Addr())
	claimtest.Eventually(t, "the node comes and goes", func() bool {
		_, stat, err := conn.Exists(zklock.DefaultPrefix + "/late")
		if err != nil && !errors.Is(err, zk.ErrConnectionClosed) {
			t.Fatal(err)
		}
		const changes = 4 // of the children: two came and went
		return err == nil && stat.Cversion == changes && stat.NumChildren == 0
	})
}

// number is what a server says behind that key in its answer to a word.
func number(t testing.TB, z *servers.ZooKeeper, word, key string) (n int) {
	t.Helper()
	answer, err := z.Ask(word)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := bytes.Cut([]byte(answer), []byte(key))
	if _, err := fmt.Sscan(string(after), &n); err != nil {
		t.Fatalf("%s has no %q: %v in %s", word, key, err, answer)
	}
	return n
}
