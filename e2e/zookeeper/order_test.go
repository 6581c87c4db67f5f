package zookeeper

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/zklock"
)

// overtaken holds the creations of nodes back until the next list was asked for, while it is on.
type overtaken struct {
	net.Conn
	on *atomic.Bool

	mu   sync.Mutex
	held []byte // guarded by mu; a creation
}

func (c *overtaken) Write(b []byte) (int, error) {
	const create, list = 1, 12
	c.mu.Lock()
	defer c.mu.Unlock()
	var kind uint32
	if c.on.Load() && len(b) >= 12 {
		kind = binary.BigEndian.Uint32(b[8:])
	}
	if kind == create && c.held == nil {
		c.held = slices.Clone(b)
		return len(b), nil
	}
	n, err := c.Conn.Write(b)
	if kind == list && c.held != nil && err == nil {
		_, err = c.Conn.Write(c.held)
		c.held = nil
	}
	return n, err
}

// listOvertakesTheCreation: the list that is asked for with a creation is served before it. It
// is no answer, and the claim is granted, with the one node that it has.
func listOvertakesTheCreation(t *testing.T, z *servers.ZooKeeper) {
	var on atomic.Bool
	d := driverOn(t, &zklock.Options{Dial: func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		return &overtaken{Conn: conn, on: &on}, err
	}}, z.Addr())
	other := claimOn(t, d, "overtaken")
	tryGranted(t, other) // connects, and makes the resource's node
	on.Store(true)
	next := claimOn(t, d, "overtaken")
	tryBusy(t, next)
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	tryGranted(t, next)
	onlyNode(t, client(t, z.Addr()), "overtaken")
	if err := next.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := claimOn(t, d, "overtaken") // nobody else is there
	tryGranted(t, last)
	onlyNode(t, client(t, z.Addr()), "overtaken")
}
