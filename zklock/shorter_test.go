package zklock_test

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/zklock"
)

// atMost has the server grant no longer sessions than most, as if its maxSessionTimeout were
// that.
type atMost struct {
	net.Conn
	most  *atomic.Int64
	asked bool
}

func (c *atMost) Write(b []byte) (int, error) {
	if !c.asked { // the first frame asks for the session
		c.asked = true
		b = slices.Clone(b)
		timeout := b[16:20]
		binary.BigEndian.PutUint32(timeout, min(binary.BigEndian.Uint32(timeout), uint32(time.Duration(c.most.Load()).Milliseconds())))
	}
	return c.Conn.Write(b)
}

// shorterSessionForAWhile: the ensemble grants the session less time than before, and later
// as much again. Holders are told at once, for it may end before their leases. The driver
// serves again by itself.
func shorterSessionForAWhile(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	var most atomic.Int64
	most.Store(int64(time.Minute))
	d := driverOn(t, &zklock.Options{Dial: func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		return &atMost{Conn: conn, most: &most}, err
	}}, p.Addr())
	ttl, lost := d.Features().SessionTTL, make(chan error, 1)
	c, err := d.Claim(driver.Request{Resource: "shorter", Owner: "holder", TTL: ttl, Lost: func(cause error) { lost <- cause }})
	if err != nil {
		t.Fatal(err)
	}
	claimtest.Granted(t, c)
	most.Store(int64(8 * time.Second))
	p.Reset()
	select {
	case err := <-lost:
		if !errors.Is(err, driver.ErrLost) || !errors.Is(err, zklock.ErrSessionTimeout) {
			t.Errorf("told %v, want ErrLost and ErrSessionTimeout", err)
		}
	case <-time.After(soon):
		t.Error("its holder was told nothing")
	}
	again := claimOn(t, d, "shorter")
	if _, err := again.Try(t.Context()); !errors.Is(err, zklock.ErrSessionTimeout) {
		t.Errorf("Try: %v, want ErrSessionTimeout", err)
	}
	most.Store(int64(time.Minute))
	waitFor(t, "a grant", func() bool { _, err := again.Try(t.Context()); return err == nil })
}
