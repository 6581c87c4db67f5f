package zklock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
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
	c := claimtest.New(t, d, driver.Request{Resource: "shorter", Owner: "holder", TTL: ttl, Lost: func(cause error) { lost <- cause }})
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
	claimtest.Eventually(t, "a grant", func() bool { _, err := again.Try(t.Context()); return err == nil })
}

// A claim that is over leaves no node behind, also when the ensemble goes on granting another session than was asked for: the
// session lives for as long as the driver is connected.
func TestRefusedSessionKeepsNoNodes(t *testing.T) {
	t.Parallel()
	const session, less = 9 * time.Second, 7 * time.Second
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	p := servers.StartProxy(t, z.Addr())
	var most atomic.Int64
	most.Store(int64(time.Minute))
	d := driverOn(t, &zklock.Options{SessionTimeout: session, Dial: func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		return &atMost{Conn: conn, most: &most}, err
	}}, p.Addr())
	lost := make(chan error, 1)
	claim := func(name string, lost func(error)) driver.Claim {
		c := claimtest.New(t, d, driver.Request{Resource: name, Owner: "holder", TTL: d.Features().SessionTTL, Lost: lost})
		claimtest.Granted(t, c)
		return c
	}
	claim("left", func(cause error) { lost <- cause })
	released, uncertain := claim("released", nil), claim("uncertain", nil)
	claimtest.Released(t, uncertain)
	most.Store(int64(less)) // from the next connection on
	p.DropReplies()
	tried := make(chan error, 1)
	go func() { _, err := uncertain.Try(t.Context()); tried <- err }()
	conn := client(t, z.Addr())
	claimtest.Eventually(t, "the node, whose creation was applied", func() bool {
		nodes, _, err := conn.Children(zklock.DefaultPrefix + "/uncertain")
		return err == nil && len(nodes) == 1
	})
	p.Pass()
	if err := <-tried; !errors.Is(err, zklock.ErrSessionTimeout) {
		t.Errorf("Try, whose answer was lost: %v", err)
	}
	select {
	case cause := <-lost:
		if !errors.Is(cause, zklock.ErrSessionTimeout) {
			t.Errorf("told %v", cause)
		}
	case <-time.After(soon):
		t.Error("its holder was told nothing")
	}
	ctx, cancel := context.WithTimeout(t.Context(), session)
	defer cancel()
	if err := released.Release(ctx, driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	for _, name := range []string{"released", "left", "uncertain"} {
		other := claimOn(t, driverOn(t, nil, z.Addr()), name)
		for end := time.Now().Add(3 * session); ; time.Sleep(100 * time.Millisecond) {
			_, err := other.Try(t.Context())
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v, %v after the lease was lost", name, err, 3*session)
			}
		}
	}
}
