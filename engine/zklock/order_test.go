package zklock_test

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// overtaken holds the creations of nodes back until the next list was asked for, while it is on, or
// for a moment: the driver sends both at once, and where its list went first no other follows.
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
		time.AfterFunc(2*time.Second, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			_ = c.letGo() // the connection's own calls tell that it has ended
		})
		return len(b), nil
	}
	n, err := c.Conn.Write(b)
	if kind == list && err == nil {
		err = c.letGo()
	}
	return n, err
}

// letGo requires c.mu.
func (c *overtaken) letGo() error {
	if c.held == nil {
		return nil
	}
	_, err := c.Conn.Write(c.held)
	c.held = nil
	return err
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
	claimtest.Granted(t, other) // connects, and makes the resource's node
	on.Store(true)
	next := claimOn(t, d, "overtaken")
	claimtest.Refused(t, next)
	claimtest.Released(t, other)
	claimtest.Granted(t, next)
	onlyNode(t, client(t, z.Addr()), "overtaken")
	claimtest.Released(t, next)
	last := claimOn(t, d, "overtaken") // nobody else is there
	claimtest.Granted(t, last)
	onlyNode(t, client(t, z.Addr()), "overtaken")
}
