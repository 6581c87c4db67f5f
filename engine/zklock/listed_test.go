package zklock_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// failingLists is a connection on which the children of one node cannot be read.
type failingLists struct {
	net.Conn
	path string
	ids  *sync.Map    // the requests for them
	rest bytes.Buffer // of an answer
}

func (c *failingLists) Write(b []byte) (int, error) {
	const kind = 12
	if len(b) > 16 && binary.BigEndian.Uint32(b[8:]) == kind && string(b[16:16+binary.BigEndian.Uint32(b[12:])]) == c.path {
		c.ids.Store(binary.BigEndian.Uint32(b[4:]), true)
	}
	return c.Conn.Write(b)
}

func (c *failingLists) Read(b []byte) (int, error) {
	if c.rest.Len() == 0 {
		var length [4]byte
		if _, err := io.ReadFull(c.Conn, length[:]); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(c.Conn, body); err != nil {
			return 0, err
		}
		if _, ok := c.ids.LoadAndDelete(binary.BigEndian.Uint32(body)); ok {
			const timedOut = -7
			binary.BigEndian.PutUint32(body[12:], 1<<32+timedOut)
		}
		c.rest.Write(length[:])
		c.rest.Write(body)
	}
	return c.rest.Read(b)
}

// listFailsBesideDamage: the first lock is damaged, which hides no other. The second cannot be looked at, so that the list
// must fail: else a lock that is held is left out of it.
func listFailsBesideDamage(t *testing.T, z *servers.ZooKeeper) {
	const prefix = "/beside-damage"
	d := lastingOn(t, &zklock.Options{Prefix: prefix}, z.Addr())
	setLimit(t, d, "damaged", 1)
	if _, err := client(t, z.Addr()).Set(prefix+"/%limits/damaged", []byte("many"), -1); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"damaged", "held"} {
		claimtest.Granted(t, claimOn(t, d, name))
	}
	var ids sync.Map
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, time.Minute)
		return &failingLists{Conn: conn, path: prefix + "/held", ids: &ids}, err
	}
	sound, failing := lastingOn(t, &zklock.Options{Prefix: prefix}, z.Addr()), lastingOn(t, &zklock.Options{Prefix: prefix, Dial: dial}, z.Addr())
	if states, _, err := sound.List(t.Context(), "", "", 10); !errors.Is(err, driver.ErrCorrupt) || len(states) != 2 || !strings.Contains(err.Error(), `"damaged"`) {
		t.Errorf("List: %+v, %v; want both, and ErrCorrupt with the name of the damaged one", states, err)
	}
	if states, _, err := failing.List(t.Context(), "", "", 10); err == nil || errors.Is(err, driver.ErrCorrupt) || len(states) > 0 {
		t.Errorf("List that cannot look at one of two: %+v, %v; want an error that is not ErrCorrupt", states, err)
	}
}

// givingUp is a connection on which a caller gives up as soon as it has asked for the children of one node.
type givingUp struct {
	net.Conn
	path     string
	giveUp   func()
	asked    atomic.Bool
	answered func() // called when the client has read an answer since
}

func (c *givingUp) Write(b []byte) (int, error) {
	const kind = 12
	if binary.BigEndian.Uint32(b[8:]) == kind && bytes.Contains(b, []byte(c.path)) {
		c.giveUp()
		c.asked.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *givingUp) Read(b []byte) (int, error) {
	if c.asked.Load() {
		c.answered()
	}
	return c.Conn.Read(b)
}

// givenUpListChangesNothing: a list that was given up goes on, and no more touches what its caller was given. The race
// detector sees it.
func givenUpListChangesNothing(t *testing.T, z *servers.ZooKeeper) {
	const prefix = "/given-up-list"
	others := driverOn(t, &zklock.Options{Prefix: prefix}, z.Addr())
	for _, name := range []string{"a", "b"} {
		granted(t, claimOn(t, others, name))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, answered := context.WithCancel(t.Context())
	defer answered()
	d := driverOn(t, &zklock.Options{Prefix: prefix, Dial: func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, time.Minute)
		return &givingUp{Conn: conn, path: prefix, giveUp: cancel, answered: answered}, err
	}}, z.Addr())
	if states, next, err := d.List(ctx, "", "", 1); !errors.Is(err, context.Canceled) || len(states) > 0 || next != "" {
		t.Errorf("List: %+v, %q, %v; want that it was given up", states, next, err)
	}
	<-done.Done()
}
