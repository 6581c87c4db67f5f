package zklock_test

import (
	"cmp"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "3"); err != nil { // they mostly wait, on any number of processors
		panic(err)
	}
	locktest.Main(m, func(address string) (driver.Driver, error) {
		return zklock.New(strings.Split(address, ","), withTTLNodes)
	})
}

// withTTLNodes is for servers as ttlNodes starts them, which remove what is over at once.
var (
	withTTLNodes = &zklock.Options{TTLNodes: true}
	ttlNodes     = servers.ZooKeeperOptions{Java: []string{"-Dzookeeper.extendedTypesEnabled=true", "-Dznode.container.checkIntervalMs=100"}}
)

func addresses(all []*servers.ZooKeeper) []string {
	var addrs []string
	for _, z := range all {
		addrs = append(addrs, z.Addr())
	}
	return addrs
}

// harness is for leases of at least shortest: long enough for the servers on a busy machine.
func harness(t *testing.T, all []*servers.ZooKeeper, shortest time.Duration) locktest.Harness {
	addrs := addresses(all)
	return locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := zklock.New(addrs, withTTLNodes)
			if err != nil {
				t.Fatal(err)
			}
			return patient{d, shortest}
		},
		Address:  strings.Join(addrs, ","),
		FixedTTL: true,
		// Sessions are half as long again as the suite's leases, which have 1.2 s or more, and end
		// with a tick.
		Late:       max(shortest, 1200*time.Millisecond)/2 + 200*time.Millisecond,
		Pause:      func(testing.TB) (resume func()) { return servers.PauseAll(all) },
		FlushState: func(t testing.TB) { flush(t, all[0]) },
	}
}

// client is a connection as an operator has it.
func client(t testing.TB, addrs ...string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(addrs, 10*time.Second, zk.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// flush deletes all claims.
func flush(t testing.TB, z *servers.ZooKeeper) {
	t.Helper()
	conn := client(t, z.Addr())
	names, _, err := conn.Children(zklock.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := zklock.DefaultPrefix + "/" + name
		nodes, _, err := conn.Children(path)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if err := conn.Delete(path+"/"+n, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
				t.Fatal(err)
			}
		}
	}
}

func TestConformance(t *testing.T) { apart.Run(t, conformance) }

func conformance(t *testing.T) {
	z := servers.StartZooKeeper(t, ttlNodes)
	h := harness(t, []*servers.ZooKeeper{z}, time.Second)
	h.Restart = func(t testing.TB) {
		z.Kill()
		z.Start(t)
	}
	locktest.Run(t, h)
}

var soak = flag.Bool("soak", false, "run the whole suite on three servers, too")

// TestConformanceOfThree runs what disturbs no other case, or everything.
func TestConformanceOfThree(t *testing.T) {
	servers.Long(t, "the suite runs on one server")
	if !*soak {
		t.Parallel()
	}
	h := harness(t, servers.StartZooKeepers(t, 3, ttlNodes), 2*time.Second)
	if *soak {
		locktest.Run(t, h)
		return
	}
	cases := make(map[string]func(*testing.T))
	const lacks = locktest.NeedResumes | locktest.NeedRaises | locktest.NeedTTLChange | locktest.NeedBars | locktest.NeedBatchTrier
	for _, c := range locktest.Cases() {
		if !c.Alone && c.Needs&lacks == 0 {
			cases[c.Name] = func(t *testing.T) { c.Run(t, h) }
		}
	}
	atOnce(t, 5, cases)
}

// atOnce runs subtests, so many beside each other. They mostly wait, and t.Parallel would
// run no more of them than there are processors.
func atOnce(t *testing.T, width int, tests map[string]func(*testing.T)) {
	room := make(chan struct{}, width)
	var all sync.WaitGroup
	for name, test := range tests {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			t.Run(name, test)
		})
	}
	all.Wait()
}

// on is tests that share a server.
func on(z *servers.ZooKeeper, tests map[string]func(*testing.T, *servers.ZooKeeper)) map[string]func(*testing.T) {
	bound := make(map[string]func(*testing.T))
	for name, test := range tests {
		bound[name] = func(t *testing.T) { test(t, z) }
	}
	return bound
}

// driverOn is a driver of one session.
func driverOn(t testing.TB, opts *zklock.Options, addrs ...string) *zklock.Driver {
	t.Helper()
	o := zklock.Options{}
	if opts != nil {
		o = *opts
	}
	o.SessionTimeout = cmp.Or(o.SessionTimeout, zklock.DefaultSessionTimeout)
	d, err := zklock.New(addrs, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// lasting is a session whose leases outlast each test, however slow the machine is. The server must
// have longSessions in its Config.
const (
	lasting      = time.Hour
	longSessions = "maxSessionTimeout=3600000"
)

// lastingOn is driverOn with a lasting session, and with time to connect.
func lastingOn(t testing.TB, opts *zklock.Options, addrs ...string) *zklock.Driver {
	t.Helper()
	o := zklock.Options{}
	if opts != nil {
		o = *opts
	}
	o.SessionTimeout = lasting
	if o.Dial == nil {
		o.Dial = func(network, address string, _ time.Duration) (net.Conn, error) {
			return net.DialTimeout(network, address, time.Minute)
		}
	}
	return driverOn(t, &o, addrs...)
}

// granted is a Try that must be, and refused one that must not. They ask again while a busy server accepts no session.
func granted(t testing.TB, c driver.Claim) {
	t.Helper()
	if err := tried(t, c); err != nil {
		t.Fatalf("Try: %v; want a grant", err)
	}
}

func refused(t testing.TB, c driver.Claim) *driver.Busy {
	t.Helper()
	err := tried(t, c)
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok {
		t.Fatalf("Try: %v; want busy", err)
	}
	return busy
}

// tried returns the error of a Try. A busy machine may take the servers for away, and waiters ask again.
func tried(t testing.TB, c driver.Claim) error {
	for end := time.Now().Add(time.Minute); ; {
		_, err := c.Try(t.Context())
		away := errors.Is(err, zklock.ErrNoQuorum) || err != nil && strings.Contains(err.Error(), "the servers are away")
		if !away || time.Now().After(end) {
			return err
		}
	}
}

func lockerOn(t testing.TB, d driver.Driver, opts leasehold.Options) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
