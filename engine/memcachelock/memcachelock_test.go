package memcachelock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

func TestAddressesAreNormal(t *testing.T) {
	t.Parallel()
	got, err := normal([]string{"Host", "10.0.0.1:1", "[::1]", "[::2]:3"})
	want := []string{"host:11211", "10.0.0.1:1", "[::1]:11211", "[::2]:3"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		addresses []string
		opts      Options
		says      string
	}{
		"no server":        {nil, Options{}, "no server"},
		"an empty address": {[]string{""}, Options{}, "HOST"},
		"a name twice":     {[]string{"a", "b", "A:11211"}, Options{}, "1 and 3"},
		"no port":          {[]string{"a:"}, Options{}, "port"},
		"port 0":           {[]string{"a:0"}, Options{}, "port"},
		"a large port":     {[]string{"a:65536"}, Options{}, "port"},
		"a bare IPv6":      {[]string{"::1:x"}, Options{}, "HOST"},
		"a user":           {[]string{"u@a"}, Options{}, "HOST"},
		"a path":           {[]string{"/run/m.sock"}, Options{}, "HOST"},
		"both prefixes":    {[]string{"a"}, Options{Prefix: "x", NoPrefix: true}, "exclude"},
		"a blank":          {[]string{"a"}, Options{Prefix: "a b"}, "blank"},
		"a control":        {[]string{"a"}, Options{Prefix: "a\x7f"}, "control"},
		"a long prefix":    {[]string{"a"}, Options{Prefix: strings.Repeat("x", maxPrefix+1)}, "bytes"},
	} {
		if d, err := New(c.addresses, &c.opts); d != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", what, err, c.says)
		}
	}
}

func TestClaimRefusesWhatMemcachedHasNot(t *testing.T) {
	t.Parallel()
	d, err := New([]string{"a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f := d.Features(); f.Fencing || f.Shared || f.Fair || f.Wakes || f.MinTTL != 2*time.Second || f.Step != time.Second {
		t.Errorf("declares %+v", f)
	}
	good := driver.Request{Resource: "r", Owner: "o", TTL: 30*24*time.Hour - 2*time.Second}
	if _, err := d.Claim(good); err != nil {
		t.Errorf("the longest TTL: %v", err)
	}
	for what, change := range map[string]func(*driver.Request){
		"shared":      func(r *driver.Request) { r.Mode = driver.Shared },
		"no owner":    func(r *driver.Request) { r.Owner = "" },
		"no UTF-8":    func(r *driver.Request) { r.Owner = "a\xff" },
		"above 30 d":  func(r *driver.Request) { r.TTL++ },
		"far above":   func(r *driver.Request) { r.TTL = 1 << 62 },
		"all of them": func(r *driver.Request) { *r = driver.Request{Mode: driver.Shared, TTL: 1 << 62} },
	} {
		req := good
		change(&req)
		if c, err := d.Claim(req); c != nil || !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", what, err)
		}
	}
}

// Whatever the second of memcached's clock, an item outlives its lease; and no TTL becomes
// an instant by the wall clock, or none at all.
func TestExpirationOutlivesTheLease(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]int64{
		minTTL: 4, minTTL + 1: 5, 2500 * time.Millisecond: 5, 10 * time.Second: 12, maxTTL: 30 * 24 * 60 * 60,
	} {
		if got := seconds(granted(ttl) + early); got != want {
			t.Errorf("a TTL of %v is sent as %d, want %d", ttl, got, want)
		}
		if g := granted(ttl); g < ttl || g >= ttl+step || g%step != 0 {
			t.Errorf("a TTL of %v is granted for %v", ttl, g)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		"SERVER_ERROR out of memory storing object": ErrOutOfMemory,
		"SERVER_ERROR object too large for cache":   ErrTooLarge,
		"CLIENT_ERROR unauthenticated":              ErrAuth,
		"something else":                            nil,
	} {
		got := explain(fmt.Errorf("call: %w", answerError(text)))
		if want != nil && !errors.Is(got, want) || !strings.Contains(got.Error(), text) {
			t.Errorf("%s: %v", text, got)
		}
	}
	if explain(nil) != nil {
		t.Error("nil became an error")
	}
}

// The pace of a waiter, with the core's first tries, keeps to its budget.
func TestPaceOfWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // time.Since does not grow meanwhile
		for held, mean := range map[time.Duration]time.Duration{0: 80, 700 * time.Millisecond: 87, 2 * time.Second: 250, time.Hour: 250} {
			mean *= time.Millisecond
			c := &claim{other: sight{since: time.Now().Add(-held)}}
			least, most := time.Hour, time.Duration(0)
			for range 1000 {
				d := c.busy().Retry
				least, most = min(least, d), max(most, d)
			}
			if least < mean*3/4 || most > mean*5/4+time.Millisecond || most-least < mean*2/5 {
				t.Errorf("held for %v: tries every %v to %v, want %v and a quarter more or less", held, least, most, mean)
			}
		}
	})
}

// A connection whose call was given up is reset: what the kernel still had to send of it
// would arrive when the name's bar is over.
func TestGivenUpCallIsNotSentLater(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := New([]string{l.Addr().String()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := d.Claim(driver.Request{Resource: "r", Owner: "o", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tried := make(chan error, 1)
	go func() {
		_, err := c.Try(ctx)
		tried <- err
	}()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	command := make([]byte, 4096)
	if _, err := server.Read(command); err != nil {
		t.Fatal(err)
	}
	cancel() // there will be no answer
	if err := <-tried; err == nil {
		t.Error("granted without an answer")
	}
	if _, err := server.Read(command); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v; want a reset", err)
	}
}
