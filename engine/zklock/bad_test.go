package zklock_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

const canary = "s3cr3t-canary"

// TestBadInput shares one server among tests of what it refuses.
func TestBadInput(t *testing.T) {
	t.Parallel()
	// Containers that are empty go within a second.
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{
		Config: []string{"minSessionTimeout=4000"}, Java: []string{"-Dznode.container.checkIntervalMs=500"},
	})
	atOnce(t, 16, on(z, map[string]func(*testing.T, *servers.ZooKeeper){
		"OtherTTL":               otherTTL,
		"OtherSession":           otherSession,
		"NoTTLNodes":             noTTLNodes,
		"NoChroot":               noChroot,
		"Chroot":                 chroot,
		"NoRights":               noRights,
		"User":                   user,
		"AlienNodes":             alienNodes,
		"NothingIsLeft":          nothingIsLeft,
		"Unreachable":            unreachable,
		"NobodyAnswers":          nobodyAnswers,
		"RefusedOptions":         refusedOptions,
		"NinthTTL":               ninthTTL,
		"EvictsForeigners":       evictsForeigners,
		"ListsBesideOthers":      listsBesideOthers,
		"InspectsByAGoodSession": inspectsByAGoodSession,
	}))
}

// refusedFor checks that no call believes in a lease, soon, and that no error tells a password.
func refusedFor(t *testing.T, d driver.Driver, want error) {
	t.Helper()
	l := lockerOn(t, d, leasehold.Options{})
	for _, opts := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		for begun := time.Now(); ; {
			start := time.Now()
			lease, err := l.TryAcquire(t.Context(), "bad", opts...)
			if took := time.Since(start); took > 5*time.Second+locktest.Margin {
				t.Errorf("TryAcquire took %v", took)
			}
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("the error tells the password: %v", err)
			}
			// On a busy machine the servers may take longer to answer than it waits for them.
			if lease == nil && !errors.Is(err, want) && errors.Is(err, zklock.ErrNoQuorum) && time.Since(begun) < soon {
				continue
			}
			if lease != nil || !errors.Is(err, want) {
				t.Errorf("TryAcquire: lease %v, %v; want %v", lease != nil, err, want)
			}
			break
		}
	}
}

// otherTTL: nothing but two thirds of the session's timeout is served.
func otherTTL(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, &zklock.Options{SessionTimeout: 7500 * time.Millisecond}, z.Addr())
	if f := d.Features(); f.SessionTTL != 5*time.Second {
		t.Errorf("SessionTTL is %v", f.SessionTTL)
	}
	for _, ttl := range []time.Duration{time.Second, 5*time.Second - 1, 5*time.Second + 1, 7500 * time.Millisecond, time.Minute} {
		if _, err := leasehold.New(d, &leasehold.Options{TTL: ttl}); !errors.Is(err, leasehold.ErrUnsupported) {
			t.Errorf("New with TTL %v: %v; want ErrUnsupported", ttl, err)
		}
		if _, err := d.Claim(driver.Request{Resource: "ttl", Owner: "o", TTL: ttl}); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("Claim with TTL %v: %v; want ErrUnsupported", ttl, err)
		}
	}
	l := lockerOn(t, d, leasehold.Options{})
	if _, err := l.TryAcquire(t.Context(), "ttl", leasehold.TTL(time.Second)); !errors.Is(err, leasehold.ErrUnsupported) {
		t.Errorf("TryAcquire with another TTL: %v; want ErrUnsupported", err)
	}
	asked := time.Now()
	lease := mustAcquire(t, l, "ttl") // which needs to know nothing of sessions
	if left := time.Until(lease.Deadline()); left > 5*time.Second || lease.Deadline().Before(asked.Add(3*time.Second)) {
		t.Errorf("the deadline is in %v, %v after the call", left, lease.Deadline().Sub(asked))
	}
	if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, leasehold.ErrUnsupported) {
		t.Errorf("Extend to another TTL: %v; want ErrUnsupported", err)
	}
	if err := lease.Extend(t.Context(), 5*time.Second); err != nil {
		t.Errorf("Extend: %v", err)
	}
}

// noTTLNodes: what lingers needs TTL nodes, and both sides must have them.
func noTTLNodes(t *testing.T, z *servers.ZooKeeper) {
	l := lockerOn(t, driverOn(t, nil, z.Addr()), leasehold.Options{})
	if _, err := l.TryAcquire(t.Context(), "linger", leasehold.AtLeast(time.Second)); !errors.Is(err, leasehold.ErrUnsupported) {
		t.Errorf("AtLeast: %v; want ErrUnsupported", err)
	}
	l = lockerOn(t, driverOn(t, &zklock.Options{TTLNodes: true}, z.Addr()), leasehold.Options{})
	lease, err := l.TryAcquire(t.Context(), "linger", leasehold.AtLeast(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); !errors.Is(err, leasehold.ErrUnsupported) {
		t.Errorf("Release of what is to linger, on servers without TTL nodes: %v; want ErrUnsupported", err)
	}
}

// otherSession: the ensemble changes the timeout that was asked for.
func otherSession(t *testing.T, z *servers.ZooKeeper) {
	for _, timeout := range []time.Duration{3 * time.Second, 2 * time.Minute} {
		refusedFor(t, driverOn(t, &zklock.Options{SessionTimeout: timeout}, z.Addr()), zklock.ErrSessionTimeout)
	}
	refusedFor(t, driverOn(t, &zklock.Options{SessionTimeout: 2 * time.Minute}, z.Addr()), leasehold.ErrUnsupported)
}

func noChroot(t *testing.T, z *servers.ZooKeeper) {
	refusedFor(t, driverOn(t, &zklock.Options{Chroot: "/missing/chroot"}, z.Addr()), zklock.ErrNoChroot)
	refusedFor(t, driverOn(t, &zklock.Options{Chroot: "missing", Prefix: "/"}, z.Addr()), zklock.ErrNoChroot)
	if exists, _, err := client(t, z.Addr()).Exists("/missing"); exists || err != nil {
		t.Errorf("the chroot was created: %v, %v", exists, err)
	}
}

func chroot(t *testing.T, z *servers.ZooKeeper) {
	conn := client(t, z.Addr())
	if _, err := conn.Create("/app", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]string{"": "/app/leasehold/a%2Fb", "/": "/app/a%2Fb", "x//y/": "/app/x/y/a%2Fb"} {
		l := lockerOn(t, driverOn(t, &zklock.Options{Chroot: "app/", Prefix: prefix}, z.Addr()), leasehold.Options{})
		lease := mustAcquire(t, l, "a/b")
		if nodes, _, err := conn.Children(want); err != nil || len(nodes) != 1 {
			t.Errorf("%s has %q, %v", want, nodes, err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func noRights(t *testing.T, z *servers.ZooKeeper) {
	conn := client(t, z.Addr())
	if _, err := conn.Create("/guarded", nil, 0, zk.DigestACL(zk.PermAll, "owner", canary)); err != nil {
		t.Fatal(err)
	}
	refusedFor(t, driverOn(t, &zklock.Options{Prefix: "/guarded"}, z.Addr()), zklock.ErrAuth)
	refusedFor(t, driverOn(t, &zklock.Options{Prefix: "/guarded", User: "other", Password: canary}, z.Addr()), zklock.ErrAuth)
	refusedFor(t, driverOn(t, &zklock.Options{Prefix: "/guarded/deeper", User: "owner", Password: "wrong"}, z.Addr()), zklock.ErrAuth)
	d := driverOn(t, &zklock.Options{Prefix: "/guarded", User: "owner", Password: canary}, z.Addr())
	if err := mustAcquire(t, lockerOn(t, d, leasehold.Options{}), "mine").Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// user: what a user creates is that user's alone, also over a lost connection.
func user(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	opts := zklock.Options{Prefix: "/users", User: "me", Password: canary, SessionTimeout: 30 * time.Second}
	l := lockerOn(t, driverOn(t, &opts, p.Addr()), leasehold.Options{})
	lease := mustAcquire(t, l, "mine")
	conn := client(t, z.Addr())
	if _, _, err := conn.Children("/users/mine"); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("somebody else sees the claims: %v", err)
	}
	opts.Password = "wrong"
	refusedIn(t, driverOn(t, &opts, z.Addr()), "mine", zklock.ErrAuth)
	p.Reset()
	claimtest.Eventually(t, "a renewal on a new connection", func() bool { return lease.Extend(t.Context(), 20*time.Second) == nil }) // what the session gives
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func refusedIn(t *testing.T, d driver.Driver, name string, want error) {
	t.Helper()
	lease, err := lockerOn(t, d, leasehold.Options{}).TryAcquire(t.Context(), name)
	if lease != nil || !errors.Is(err, want) {
		t.Errorf("TryAcquire: lease %v, %v; want %v", lease != nil, err, want)
	}
}

// alienNodes: below a resource's node stands what is no claim. Nothing of it is touched.
func alienNodes(t *testing.T, z *servers.ZooKeeper) {
	conn := client(t, z.Addr())
	for _, path := range []string{"/alien", "/alien/bad", "/alien/bad/config"} {
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	d := driverOn(t, &zklock.Options{Prefix: "/alien"}, z.Addr())
	refusedFor(t, d, zklock.ErrAlien)
	refusedFor(t, d, driver.ErrCorrupt)
	if all, _, err := d.List(t.Context(), "", "", 100); err != nil || len(all) > 0 {
		t.Errorf("List: %+v, %v", all, err)
	}
	if nodes, _, err := conn.Children("/alien/bad"); err != nil || len(nodes) != 1 || nodes[0] != "config" {
		t.Errorf("the alien nodes became %q, %v", nodes, err)
	}
}

// nothingIsLeft: the resource's node goes too, some time after the last claim.
func nothingIsLeft(t *testing.T, z *servers.ZooKeeper) {
	l := lockerOn(t, driverOn(t, &zklock.Options{Prefix: "/left"}, z.Addr()), leasehold.Options{})
	if err := mustAcquire(t, l, "a").Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn := client(t, z.Addr())
	claimtest.Eventually(t, "the container goes", func() bool {
		names, _, err := conn.Children("/left")
		return err == nil && len(names) == 0
	})
	if err := mustAcquire(t, l, "a").Release(t.Context()); err != nil {
		t.Errorf("after its container had gone: %v", err)
	}
}

func unreachable(t *testing.T, _ *servers.ZooKeeper) {
	refusedFor(t, driverOn(t, nil, "127.0.0.1:1"), zklock.ErrUnreachable)
}

// nobodyAnswers: a server accepts connections and is silent.
func nobodyAnswers(t *testing.T, z *servers.ZooKeeper) {
	p := servers.StartProxy(t, z.Addr())
	p.Dark()
	refusedFor(t, driverOn(t, &zklock.Options{SessionTimeout: 6 * time.Second, User: "u", Password: canary}, p.Addr()), zklock.ErrNoQuorum)
}

func refusedOptions(t *testing.T, z *servers.ZooKeeper) {
	for what, opts := range map[string]zklock.Options{
		"timeout":  {SessionTimeout: time.Second + 1},
		"long":     {SessionTimeout: 30 * 24 * time.Hour},
		"negative": {SessionTimeout: -time.Second},
		"prefix":   {Prefix: "/a/../b"},
		"chroot":   {Chroot: "/a\x00"},
		"password": {Password: canary},
		"user":     {User: "a:b", Password: canary},
	} {
		d, err := zklock.New([]string{z.Addr()}, &opts)
		if d != nil || err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v, %v", what, d, err)
		}
	}
	if _, err := zklock.New(nil, nil); err == nil {
		t.Error("no servers are accepted")
	}
}

// listsBesideOthers: a node that we may not read is no reason to list nothing.
func listsBesideOthers(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, &zklock.Options{Prefix: "/beside"}, z.Addr())
	claimtest.Granted(t, claimOn(t, d, "ours"))
	if _, err := client(t, z.Addr()).Create("/beside/theirs", nil, 0, zk.DigestACL(zk.PermAll, "a", "b")); err != nil {
		t.Fatal(err)
	}
	if all, _, err := d.List(t.Context(), "", "", 100); err != nil || len(all) != 1 || all[0].Resource != "ours" {
		t.Errorf("List: %+v, %v", all, err)
	}
	if all, _, err := d.List(t.Context(), "theirs", "", 100); !errors.Is(err, zklock.ErrAuth) {
		t.Errorf("List of theirs alone: %+v, %v, want ErrAuth", all, err)
	}
	if _, err := d.Inspect(t.Context(), "theirs"); !errors.Is(err, zklock.ErrAuth) {
		t.Errorf("Inspect of theirs: %v, want ErrAuth", err)
	}
}

// inspectsByAGoodSession: a TTL whose session the ensemble refuses does not keep an operator
// from looking, whether there is a better one or not.
func inspectsByAGoodSession(t *testing.T, z *servers.ZooKeeper) {
	d, err := zklock.New([]string{z.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for _, ttl := range []time.Duration{time.Hour, 30 * 24 * time.Hour} { // the protocol has no session for the second
		c, err := d.Claim(driver.Request{Resource: "hour", Owner: "o", TTL: ttl})
		if err == nil {
			_, err = c.Try(ctx)
		}
		if !errors.Is(err, zklock.ErrSessionTimeout) {
			t.Errorf("a TTL of %v: %v; want ErrSessionTimeout", ttl, err)
		}
	}
	for range 30 {
		if _, err := d.Inspect(ctx, "hour"); err != nil {
			t.Fatalf("Inspect: %v", err)
		}
	}
}

func ninthTTL(t *testing.T, z *servers.ZooKeeper) {
	d, err := zklock.New([]string{z.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for i := range 9 {
		_, err := d.Claim(driver.Request{Resource: "r", Owner: "o", TTL: time.Duration(i+1) * time.Second})
		if (i == 8) != errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("TTL %d: %v", i, err)
		}
	}
}

// evictsForeigners: an operator ends the lock of another client, which Inspect shows by the
// name of its node.
func evictsForeigners(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, nil, z.Addr())
	foreign := zk.NewLock(client(t, z.Addr()), "/leasehold/foreign", zk.WorldACL(zk.PermAll))
	if err := foreign.Lock(); err != nil {
		t.Fatal(err)
	}
	st, err := d.Inspect(t.Context(), "foreign")
	if err != nil || len(st.Holders) != 1 {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := d.Evict(t.Context(), "foreign", st.Holders[0].Owner.Reveal(), "test"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lease, err := lockerOn(t, d, leasehold.Options{}).Acquire(ctx, "foreign")
	if err != nil || lease.Token() <= st.Holders[0].Fence {
		t.Errorf("after the eviction: %v", err)
	}
}

// TestNotZooKeeper: each attempt at a server of another protocol costs little, and calls say what is
// wrong. The test is alone, because it counts what the process allocates.
func TestNotZooKeeper(t *testing.T) {
	const most, attempts = 16 << 20, 3
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	accepted := make(chan struct{}, 1000)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 1<<10)) // otherwise the end of the connection may overtake the answer
			io.WriteString(conn, "SSH-2.0-x\r\n")
			conn.Close()
			accepted <- struct{}{}
		}
	}()
	d := driverOn(t, nil, l.Addr().String())
	c, err := d.Claim(driver.Request{Resource: "a", Owner: "o", TTL: d.Features().SessionTTL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := c.Try(ctx); !errors.Is(err, zklock.ErrNoQuorum) || !strings.Contains(err.Error(), "protocol") {
		t.Errorf("Try: %v; want an error that names the protocol", err)
	}
	for range attempts {
		<-accepted
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > most {
		t.Errorf("%d bytes allocated, want at most %d", grown, most)
	}
}
