package zklock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// failingDelete is a connection that ends in place of the first deletion.
type failingDelete struct {
	net.Conn
	failed *atomic.Bool
}

func (c *failingDelete) Write(b []byte) (int, error) {
	const kind = 2
	if len(b) > 12 && binary.BigEndian.Uint32(b[8:]) == kind && c.failed.CompareAndSwap(false, true) {
		c.Conn.Close()
	}
	return c.Conn.Write(b)
}

// lingersAtTheSecondAttempt: a lease has left its node behind, and the link fails before its own is deleted. Release, repeated,
// succeeds: it has not found the lease lost.
func lingersAtTheSecondAttempt(t *testing.T, z *servers.ZooKeeper) {
	var failed atomic.Bool
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute, TTLNodes: true, Dial: func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		return &failingDelete{conn, &failed}, err
	}}, z.Addr())
	c := claimOn(t, d, "second-attempt")
	granted(t, c)
	release := func() error { return c.Release(t.Context(), driver.End{Linger: time.Minute}) }
	err := release()
	if err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Release over a link that fails: %v; want an unknown outcome", err)
	}
	claimtest.Eventually(t, "a known outcome", func() bool {
		err = release()
		return err == nil || errors.Is(err, driver.ErrLost)
	})
	if err != nil {
		t.Errorf("Release again: %v", err)
	}
	if st, err := d.Inspect(t.Context(), "second-attempt"); err != nil || len(st.Holders) != 1 || len(st.Waiters) > 0 {
		t.Errorf("then it is held by %+v, %v; want what lingers alone", st, err)
	}
	if err := release(); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of what was released: %v; want ErrLost", err)
	}
}

// evictedMeanwhile is a connection on which something happens before the first node with a TTL is asked for.
type evictedMeanwhile struct {
	net.Conn
	first func()
}

func (c *evictedMeanwhile) Write(b []byte) (int, error) {
	const kind = 21
	if len(b) > 12 && binary.BigEndian.Uint32(b[8:]) == kind {
		c.first()
	}
	return c.Conn.Write(b)
}

// lingersAfterItsEviction: a lease is evicted while its Release is about to leave a node behind. Release tells so.
func lingersAfterItsEviction(t *testing.T, z *servers.ZooKeeper) {
	const name = "evicted-meanwhile"
	operator := driverOn(t, &zklock.Options{TTLNodes: true}, z.Addr())
	evict := sync.OnceFunc(func() {
		if err := operator.Evict(context.Background(), name, "me", "why"); err != nil {
			t.Errorf("Evict: %v", err)
		}
	})
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute, TTLNodes: true, Dial: func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		return &evictedMeanwhile{conn, evict}, err
	}}, z.Addr())
	c := claimtest.New(t, d, driver.Request{Resource: name, Owner: "me", TTL: d.Features().SessionTTL})
	granted(t, c)
	if err := c.Release(t.Context(), driver.End{Linger: time.Minute}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of what was evicted: %v; want ErrLost", err)
	}
	if st, err := operator.Inspect(t.Context(), name); err != nil || len(st.Holders) > 0 {
		t.Errorf("then it is held by %+v, %v; want nobody", st.Holders, err)
	}
}

// unansweredTTL is a connection that ends when the first node with a TTL has been asked for, before its answer is read.
type unansweredTTL struct {
	net.Conn
	asked *atomic.Bool
	ended atomic.Bool
}

func (c *unansweredTTL) Write(b []byte) (int, error) {
	const kind = 21
	if len(b) > 12 && binary.BigEndian.Uint32(b[8:]) == kind && c.asked.CompareAndSwap(false, true) {
		c.ended.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *unansweredTTL) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.ended.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// evictedBetweenReleases: a lease has left its node behind, which had no answer, and is evicted before its Release is repeated.
// Release tells so, and nothing keeps the name.
func evictedBetweenReleases(t *testing.T, z *servers.ZooKeeper) {
	const name = "evicted-between"
	operator, direct := driverOn(t, &zklock.Options{TTLNodes: true}, z.Addr()), client(t, z.Addr())
	var asked atomic.Bool
	d := driverOn(t, &zklock.Options{SessionTimeout: time.Minute, TTLNodes: true, Dial: func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, timeout)
		return &unansweredTTL{Conn: conn, asked: &asked}, err
	}}, z.Addr())
	lost := make(chan struct{})
	c := claimtest.New(t, d, driver.Request{Resource: name, Owner: "me", TTL: d.Features().SessionTTL, Lost: func(error) { close(lost) }})
	granted(t, c)
	if err := c.Release(t.Context(), driver.End{Linger: time.Minute}); err == nil || errors.Is(err, driver.ErrLost) {
		t.Fatalf("Release without an answer: %v; want an unknown outcome", err)
	}
	claimtest.Eventually(t, "a node is left behind", func() bool {
		nodes, _, err := direct.Children(zklock.DefaultPrefix + "/" + name)
		return err == nil && len(nodes) == 2
	})
	if err := operator.Evict(t.Context(), name, "me", "why"); err != nil {
		t.Fatal(err)
	}
	<-lost
	if err := c.Release(t.Context(), driver.End{Linger: time.Minute}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of what was evicted: %v; want ErrLost", err)
	}
	if st, err := operator.Inspect(t.Context(), name); err != nil || len(st.Holders) > 0 {
		t.Errorf("then it is held by %+v, %v; want nobody", st.Holders, err)
	}
}
