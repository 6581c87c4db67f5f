package memcachelock

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// swapping calls before with each swap that is about to be sent.
type swapping struct {
	net.Conn
	before func()
}

func (c swapping) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("cas")) {
		c.before()
	}
	return c.Conn.Write(b)
}

// What is to keep the name taken for a while does so although the server stood still for longer when it was told: whether its clock
// goes on before it serves that, or after, differs, so that several are tried.
func TestLingerOverAStandstill(t *testing.T) {
	for range 4 {
		t.Run("", lingerOverAStandstill)
	}
}

func lingerOverAStandstill(t *testing.T) {
	t.Parallel()
	const rest, standstill = 4 * time.Second, 6 * time.Second
	m := servers.StartMemcached(t)
	var armed atomic.Bool
	d, err := New([]string{m.Addr()}, &Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return swapping{c, func() {
			if armed.CompareAndSwap(true, false) {
				time.AfterFunc(standstill, m.Pause())
			}
		}}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	claim := func(owner string) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: "x", Owner: owner, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	holder, other := claim("holder"), claim("other")
	if _, err := holder.Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // so that the server has waited for a tick of its clock when it stops
	armed.Store(true)
	if err := holder.Release(t.Context(), driver.End{Linger: rest}); err != nil {
		t.Fatal(err)
	}
	told := time.Now()
	for {
		if _, err := other.Try(t.Context()); err == nil {
			break
		}
		if time.Since(told) > rest {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	if took := time.Since(told); took < rest-rest/10 {
		t.Errorf("granted to another after %v of %v", took, rest)
	}
}
