package redislock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// behindLinks runs test with drivers that have connections of their own, which go through a
// proxy, with TLS and without.
func behindLinks(t *testing.T, test func(t *testing.T, p *servers.Proxy, server *redis.Options)) {
	t.Run("TCP", func(t *testing.T) {
		t.Parallel()
		p := servers.StartProxy(t, servers.StartRedis(t).Addr())
		test(t, p, &redis.Options{Addr: p.Addr()})
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		addr, trust := startTLS(t, servers.StartRedis(t).Addr())
		p := servers.StartProxy(t, addr)
		test(t, p, &redis.Options{Addr: p.Addr(), TLSConfig: trust})
	})
}

// startTLS takes TLS connections and passes what they carry on to addr.
func startTLS(t *testing.T, target string) (addr string, trust *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer out.Close()
				go func() {
					_, _ = io.Copy(out, in) // ends with either
					out.Close()
				}()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return listener.Addr().String(), &tls.Config{RootCAs: roots}
}

func opened(t *testing.T, p *servers.Proxy, server *redis.Options) *redislock.Driver {
	t.Helper()
	d, err := redislock.Open(server, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Pass()
		d.Close()
	})
	return d
}

// tryWithin is a Try that must end with its context, of which it gets the error.
func tryWithin(t *testing.T, d driver.Driver, name string, limit time.Duration) {
	t.Helper()
	c := lateClaim(t, d, name, "a", time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	start := time.Now()
	_, err := c.Try(ctx)
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > limit+2*time.Second {
		t.Errorf("Try of a dark server: %v, after %v", err, took)
	}
}

// reset breaks all links. What a call sends before the driver hears of it is lost with them.
func reset(t *testing.T, p *servers.Proxy, d *redislock.Driver) {
	t.Helper()
	p.Dark() // nobody connects anew
	p.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.Inspect(ctx, "reset"); err == nil {
		t.Error("a server answers on no link")
	}
	p.Pass()
}

// Calls to a server that does not answer end with their contexts, keep nothing, and the
// driver goes on by itself when the server is back.
func TestRedisCallsEndWithTheirContext(t *testing.T) {
	server := servers.StartRedis(t)
	p := servers.StartProxy(t, server.Addr())
	d := opened(t, p, &redis.Options{Addr: p.Addr()})
	first := lateClaim(t, d, "first", "a", time.Minute)
	mustTry(t, first)
	goroutines := runtime.NumGoroutine()
	p.Dark()
	var calls sync.WaitGroup
	for i := range 200 {
		calls.Go(func() {
			for range 3 {
				tryWithin(t, d, fmt.Sprint("dark ", i), 100*time.Millisecond)
			}
		})
	}
	calls.Wait()
	// Those that went together end by the client's timeouts: as many as may hang at once.
	if n := runtime.NumGoroutine(); n > goroutines+100 {
		t.Errorf("%d goroutines, and %d before", n, goroutines)
	}
	p.Pass()
	c := lateClaim(t, d, "first", "b", time.Minute)
	if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("Try of another when the server is back: %v", err)
	}
	if err := first.Release(t.Context(), driver.End{}); err != nil {
		t.Errorf("Release when the server is back: %v", err)
	}
	mustTry(t, c)
}

// The link goes dark while connections are made, comes back so that they are, and goes
// dark again: no call hangs on a connection that nobody counts on any more.
func TestRedisCallsAfterLateConnections(t *testing.T) {
	t.Parallel()
	behindLinks(t, func(t *testing.T, p *servers.Proxy, server *redis.Options) {
		server.ReadTimeout = 10 * time.Second // nothing else would end them
		d := opened(t, p, server)
		mustTry(t, lateClaim(t, d, "first", "a", time.Minute))
		reset(t, p, d)
		p.Dark()
		for i := range 6 {
			tryWithin(t, d, fmt.Sprint("late ", i), 100*time.Millisecond)
		}
		p.Pass()
		time.Sleep(time.Second) // for handshakes that had begun
		p.Dark()
		for i := range 6 {
			tryWithin(t, d, fmt.Sprint("late ", i), 100*time.Millisecond)
		}
	})
}

// Calls are given up at any instant, on connections that others use before and after.
// Nobody gets an answer that was another's: the fences of a name rise, and its lock is
// free when its claim was released. No call fails because another was given up.
func TestRedisCallsGivenUpMidway(t *testing.T) {
	t.Parallel()
	behindLinks(t, func(t *testing.T, p *servers.Proxy, server *redis.Options) {
		d := opened(t, p, server)
		p.Delay(200 * time.Microsecond)
		end := time.Now().Add(3 * time.Second)
		var workers sync.WaitGroup
		for i := range 24 {
			workers.Go(func() {
				var last uint64
				var granted, cut int
				for n := 0; time.Now().Before(end) || granted == 0 || cut == 0; n++ {
					c := lateClaim(t, d, fmt.Sprint("midway ", i), fmt.Sprint("owner-", i, "-", n), time.Minute)
					ctx, cancel := context.WithTimeout(t.Context(), mathrand.N(5*time.Millisecond<<(n%8)))
					g, err := c.Try(ctx)
					cancel()
					switch {
					case err == nil && g.Fence <= last:
						t.Errorf("%d: fence %d after %d", i, g.Fence, last)
					case err == nil:
						last = g.Fence
						granted++
					case errors.Is(err, context.DeadlineExceeded):
						cut++
					default:
						t.Errorf("%d: %v", i, err)
						return
					}
					if err := c.Release(t.Context(), driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
						t.Errorf("%d: Release: %v", i, err)
						return
					}
				}
			})
		}
		workers.Wait()
	})
}

// Code of the caller's that go-redis calls in the middle of a call holds no call up.
func TestRedisCallsWithSlowCredentials(t *testing.T) {
	t.Parallel()
	p := servers.StartProxy(t, servers.StartRedis(t).Addr())
	var isSlow atomic.Bool
	slow := make(chan struct{})
	d := opened(t, p, &redis.Options{Addr: p.Addr(), CredentialsProviderContext: func(context.Context) (string, string, error) {
		if isSlow.Load() {
			<-slow
		}
		return "", "", nil
	}})
	mustTry(t, lateClaim(t, d, "first", "a", time.Minute)) // the server's version is known from here on
	isSlow.Store(true)
	reset(t, p, d)
	time.AfterFunc(10*time.Second, func() { close(slow) })
	tryWithin(t, d, "slow", 100*time.Millisecond)
	isSlow.Store(false)
	mustTry(t, lateClaim(t, d, "slow", "b", time.Minute))
}

// Close ends the calls on their way, which then tell of it.
func TestRedisCloseEndsCalls(t *testing.T) {
	t.Parallel()
	behindLinks(t, func(t *testing.T, p *servers.Proxy, server *redis.Options) {
		server.ReadTimeout = time.Minute // nothing else would end them
		d := opened(t, p, server)
		mustTry(t, lateClaim(t, d, "first", "a", time.Minute))
		p.Dark()
		ended := make(chan error, 12)
		for i := range cap(ended) {
			go func() {
				_, err := lateClaim(t, d, fmt.Sprint("closed ", i), "a", time.Minute).Try(t.Context())
				ended <- err
			}()
		}
		time.Sleep(300 * time.Millisecond) // some carry, some wait, one more was let go
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		timeout := time.After(15 * time.Second)
		for range cap(ended) {
			select {
			case err := <-ended:
				if !errors.Is(err, driver.ErrClosed) {
					t.Errorf("a call when the driver was closed: %v", err)
				}
			case <-timeout:
				t.Fatal("calls go on after Close")
			}
		}
	})
}
