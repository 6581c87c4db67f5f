package engines

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/table"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

const (
	page   = "../../docs/walk.md"
	module = "github.com/leasehold-go/leasehold"
)

// TestWalks compares docs/walk.md, which lists the functions between the public API and the wire,
// with the stacks of calls to real servers.
func TestWalks(t *testing.T) {
	for _, engine := range []struct {
		name string
		most int // functions of ours that a call passes
		open func(*testing.T, *tracks) driver.Driver
	}{{"memory", 4, openMemory}, {"PostgreSQL", 14, openPostgres}, {"Redis", 12, openRedis}, {"etcd", 13, openEtcd}} {
		t.Run(engine.name, func(t *testing.T) {
			if walked := walk(t, engine.most, engine.open); !t.Failed() {
				table.Check(t, page, "walk: "+engine.name, walked, *update)
			}
		})
	}
}

// walk makes an acquire, a renewal and a release, and tells how each came to the wire.
func walk(t *testing.T, most int, open func(*testing.T, *tracks) driver.Driver) string {
	seen := &tracks{}
	d := open(t, seen)
	renewed := make(chan bool, 1)
	locks, err := leasehold.New(d, &leasehold.Options{HandOver: -1, Trace: locktest.On(leasehold.StepRenewed, func(leasehold.Event) {
		select {
		case renewed <- true:
		default:
		}
	})})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	ttl := max(2*time.Second, d.Features().MinTTL)
	var b strings.Builder
	for round := range 2 { // what is made once is made in the first
		seen.forget()
		lease, err := locks.Acquire(t.Context(), "walk", leasehold.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		acquire := seen.of("leasehold.(*Locker).Acquire")
		seen.forget()
		<-renewed
		renewal := seen.of("leasehold.(*keeper).renew")
		seen.forget()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		release := seen.of("leasehold.(*Lease).Release")
		if round == 0 {
			continue
		}
		b.WriteString("| acquire | renewal | release |\n|---|---|---|\n")
		for i := range max(len(acquire), len(renewal), len(release)) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", at(acquire, i), at(renewal, i), at(release, i))
		}
		for what, steps := range map[string][]string{"acquire": acquire, "renewal": renewal, "release": release} {
			if len(steps) == 0 || len(steps) > most {
				t.Errorf("%s passes %d functions of ours, want 1 to %d: %q", what, len(steps), most, steps)
			}
		}
	}
	return b.String()
}

func at(steps []string, i int) string {
	if i >= len(steps) {
		return ""
	}
	return steps[i]
}

// tracks are the ways on which calls came to the wire.
type tracks struct {
	mu  sync.Mutex
	all [][]runtime.Frame // ours, the outermost first
}

// mark notes the way of the caller.
func (s *tracks) mark() {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var ours []runtime.Frame
	for {
		frame, more := frames.Next()
		if strings.HasPrefix(frame.Function, module) && !strings.HasPrefix(frame.Function, module+"/e2e") {
			ours = append(ours, frame)
		}
		if !more {
			break
		}
	}
	slices.Reverse(ours)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, ours)
}

func (s *tracks) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = nil
}

// of is the first way that passes a function whose name begins with through.
func (s *tracks) of(through string) (steps []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	root, _ := filepath.Abs("../..")
	for _, way := range s.all {
		if !slices.ContainsFunc(way, func(f runtime.Frame) bool { return strings.HasPrefix(short(f), through) }) {
			continue
		}
		for _, f := range way {
			file, _ := filepath.Rel(root, f.File)
			steps = append(steps, fmt.Sprintf("`%s` [%s](../%s)", strings.TrimPrefix(short(f), "leasehold."), filepath.Base(file), filepath.ToSlash(file)))
		}
		return steps
	}
	return nil
}

func short(f runtime.Frame) string {
	return f.Function[strings.LastIndex(f.Function, "/")+1:]
}

// A wire is a connection that notes who writes to it.
type wire struct {
	net.Conn
	seen *tracks
}

func (w wire) Write(b []byte) (int, error) {
	w.seen.mark()
	return w.Conn.Write(b)
}

func (s *tracks) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return wire{conn, s}, nil
}

// A marked claim is one in memory: its calls are the wire.
type marked struct {
	driver.Claim
	seen *tracks
}

type markedDriver struct {
	driver.Driver
	seen *tracks
}

func (d markedDriver) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return marked{c, d.seen}, err
}

func (m marked) Try(ctx context.Context) (driver.Grant, error) {
	m.seen.mark()
	return m.Claim.Try(ctx)
}

func (m marked) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	m.seen.mark()
	return m.Claim.Renew(ctx, ttl)
}

func (m marked) Release(ctx context.Context, how driver.End) error {
	m.seen.mark()
	return m.Claim.Release(ctx, how)
}

func openMemory(_ *testing.T, seen *tracks) driver.Driver { return markedDriver{memory.New(), seen} }

func openPostgres(t *testing.T, seen *tracks) driver.Driver {
	config, err := pgx.ParseConfig(servers.StartPostgres(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = seen.dial
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { db.Close() })
	d, err := sqllock.NewPostgres(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func openRedis(t *testing.T, seen *tracks) driver.Driver {
	d, err := redislock.Open(&redis.Options{Addr: servers.StartRedis(t).Addr(), Dialer: seen.dial}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func openEtcd(t *testing.T, seen *tracks) driver.Driver {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{servers.StartEtcd(t, servers.EtcdDebian).Addr()},
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				seen.mark()
				return call(ctx, method, req, reply, cc, opts...)
			}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	d, err := etcdlock.New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
