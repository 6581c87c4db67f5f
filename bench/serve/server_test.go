package serve_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// serverEnv names the store of a process that serves it, and an empty POST beside it.
const serverEnv = "LEASEHOLD_BENCH_STORE"

// empty is the path of a call that does nothing.
const empty = "/empty"

// A counted driver counts the wake-ups of its claims.
type counted struct {
	*memory.Driver
	wakes *atomic.Int64
}

type countedClaim struct {
	driver.Claim
	wakes *atomic.Int64
	wake  <-chan struct{} // of the last refusal
}

func (d counted) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return &countedClaim{Claim: c, wakes: d.wakes}, err
}

// Try counts those that a wake-up brought, and not those that keep a place.
func (c *countedClaim) Try(ctx context.Context) (driver.Grant, error) {
	select {
	case <-c.wake:
		c.wakes.Add(1)
	default:
	}
	g, err := c.Claim.Try(ctx)
	if c.wake = nil; err != nil {
		if busy, ok := errors.AsType[*driver.Busy](err); ok {
			c.wake = busy.Wake
		}
	}
	return g, err
}

func openStore(url string, wakes *atomic.Int64) (driver.Driver, error) {
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "redis":
		return redislock.OpenURL(context.Background(), url)
	case "etcd":
		return etcdlock.OpenURL(context.Background(), url)
	}
	return counted{memory.New(), wakes}, nil
}

// usage is what a server has of the machine.
type usage struct {
	Bytes int64 // heap and stacks in use, after a garbage collection
	Wakes int64
}

// serveStore is the process that serves: the same server that "leasehold serve" runs. It says where, and
// then its usage for each line that it reads.
func serveStore(url string) error {
	var wakes atomic.Int64
	d, err := openStore(url, &wakes)
	if err != nil {
		return err
	}
	s, err := serve.New(d, nil)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", s)
	mux.HandleFunc("POST "+empty, func(http.ResponseWriter, *http.Request) {})
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 10_000}}
	go func() { _ = server.Serve(l) }() // until the end of the process
	fmt.Println("http://" + l.Addr().String())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		runtime.GC()
		runtime.GC() // what the first one has queued for the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if err := json.NewEncoder(os.Stdout).Encode(usage{int64(m.HeapAlloc + m.StackInuse), wakes.Load()}); err != nil {
			return err
		}
	}
	return nil
}

// A server is that process.
type server struct {
	b   *testing.B
	url string
	cmd *exec.Cmd
	ask func() usage
}

func start(b *testing.B, store string) *server {
	b.Helper()
	cmd, in, out := contest.Again(b, serverEnv+"="+store)
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // its input is its life
	})
	url, err := out.ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	ask := func() (u usage) {
		if _, err := fmt.Fprintln(in); err != nil {
			b.Fatal(err)
		}
		line, err := out.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &u)
		}
		if err != nil {
			b.Fatal(err)
		}
		return u
	}
	return &server{b, strings.TrimSpace(url), cmd, ask}
}
