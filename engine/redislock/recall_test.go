package redislock_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// A holder is a claim that wants to know who waits.
type holder struct {
	driver.Claim
	told *atomic.Int64 // calls of Wanted
}

func holderOf(t *testing.T, d driver.Driver, name string, mode driver.Mode, ttl time.Duration) holder {
	t.Helper()
	h := holder{told: new(atomic.Int64)}
	c, err := d.Claim(driver.Request{Resource: name, Owner: "holder of " + name, TTL: ttl, Mode: mode, Wanted: func() { h.told.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	h.Claim = c
	return h
}

// isTold waits for a call of Wanted.
func (h holder) isTold(t *testing.T, why string) {
	t.Helper()
	within(t, locktest.Margin, "told that another waits: "+why, func() bool { return h.told.Swap(0) > 0 })
}

func (h holder) isNotTold(t *testing.T, why string) {
	t.Helper()
	if n := h.told.Load(); n > 0 {
		t.Errorf("told %d times that another waits: %s", n, why)
	}
}

func (h holder) renewed(t *testing.T) {
	t.Helper()
	if _, err := h.Renew(t.Context(), time.Minute); err != nil {
		t.Fatalf("Renew: %v", err)
	}
}

// waiterOn takes a place by a claim of its own.
func waiterOn(t *testing.T, d driver.Driver, name, owner string) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: name, Owner: owner, TTL: time.Minute, Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	mustWait(t, c)
	return c
}

// listens waits until as many drivers listen for recalls.
func listens(t *testing.T, r *servers.Redis, n int) {
	t.Helper()
	within(t, locktest.Margin, fmt.Sprint(n, " drivers listen"), func() bool {
		return strings.Count(r.Must(t, "PUBSUB", "CHANNELS", "leasehold:r:*"), "leasehold:r:") == n
	})
}

// A notice that nobody hears, because the subscription is cut, is made up for by each renewal; and by the next
// subscription without one.
func TestRecallIsLost(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	rules := func(rules string) { r.Must(t, strings.Fields("ACL SETUSER deaf on >pw ~* &* +@all "+rules)...) }
	rules("")
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "deaf", Password: "pw"})
	t.Cleanup(func() { client.Close() })
	d, other := redisDriverOf(t, client, nil), openOn(t, r)
	var holders []holder
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		h := holderOf(t, d, mode.String(), mode, time.Minute)
		mustTry(t, h)
		holders = append(holders, h)
	}
	listens(t, r, 1)
	rules("-subscribe")
	r.Must(t, "CLIENT", "KILL", "TYPE", "pubsub")
	listens(t, r, 0)
	var waiters []driver.Claim
	for _, name := range []string{driver.Exclusive.String(), driver.Shared.String()} {
		waiters = append(waiters, waiterOn(t, other, name, "waiter"))
	}
	stay := func() {
		for _, w := range waiters {
			mustWait(t, w)
		}
	}
	for _, h := range holders {
		h.isNotTold(t, "nothing is heard")
	}
	for range 2 {
		for _, h := range holders {
			stay()
			h.renewed(t)
			h.isTold(t, "by a renewal")
		}
		stay()
		all := []driver.Renewal{{Claim: holders[0], TTL: time.Minute}, {Claim: holders[1], TTL: time.Minute}}
		for i := range all {
			all[i].Claim = holders[i].Claim
		}
		d.RenewAll(t.Context(), all)
		for i, h := range holders {
			if all[i].Err != nil {
				t.Fatal(all[i].Err)
			}
			h.isTold(t, "by a batch")
		}
	}
	within(t, locktest.Margin, "told as soon as the subscription stands", func() bool {
		stay()
		rules("+subscribe")
		return !slices.ContainsFunc(holders, func(h holder) bool { return h.told.Load() == 0 })
	})
}

// answers holds back what a server answers to those who have sent a script.
type answers struct {
	mu   sync.Mutex
	hold chan struct{} // guarded by mu; closed when they may go on; nil: they do
}

func (a *answers) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &answered{Conn: conn, by: a}, nil
}

// holdBack holds answers back from now on.
func (a *answers) holdBack() (letGo func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	hold := make(chan struct{})
	a.hold = hold
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.hold = nil
		close(hold)
	})
}

type answered struct {
	net.Conn
	by     *answers
	script atomic.Bool // it has sent one
}

func (c *answered) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("EVAL")) {
		c.script.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *answered) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.by.mu.Lock()
	hold := c.by.hold
	c.by.mu.Unlock()
	if hold != nil && c.script.Load() {
		<-hold
	}
	return n, err
}

// A notice may come before the answer that tells of the grant, and is told at once.
func TestRecallBeforeTheGrant(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	link := new(answers)
	d, other := openedOn(t, &redis.Options{Addr: r.Addr(), Dialer: link.dial}, nil), openOn(t, r)
	mustTry(t, holderOf(t, d, "another", driver.Exclusive, time.Minute))
	listens(t, r, 1)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		letGo := link.holdBack()
		defer letGo()
		name := mode.String()
		h := holderOf(t, d, name, mode, time.Minute)
		tried := make(chan error, 1)
		go func() { tried <- tryOf(h)(t.Context()) }()
		within(t, locktest.Margin, "granted", func() bool { return r.Must(t, "EXISTS", "lock:"+name) == "1" })
		waiterOn(t, other, name, "waiter")
		h.isTold(t, "before the answer")
		select {
		case err := <-tried:
			t.Fatalf("Try was answered: %v", err)
		default:
		}
		letGo()
		if err := <-tried; err != nil {
			t.Fatal(err)
		}
	}
}

// The answer to a Try that grants, or finds what was granted, tells of those who wait already.
func TestGrantTellsOfThoseWhoWait(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, other := openOn(t, r), openOn(t, r)
	r.Must(t, "SET", "lock:n", "foreign") // nothing is brought when it goes
	var told atomic.Int64
	next, err := d.Claim(driver.Request{Resource: "n", Owner: "next", TTL: time.Minute, Queue: true, Wanted: func() { told.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	mustWait(t, next)
	behind := waiterOn(t, other, "n", "behind")
	if told.Load() > 0 {
		t.Error("told while it waited")
	}
	r.Must(t, "DEL", "lock:n")
	for _, grants := range []string{"granted", "found"} {
		within(t, locktest.Margin, "told of who is behind, with the grant that was "+grants, func() bool { // its place may end
			told.Store(0)
			mustTry(t, next)
			defer mustWait(t, behind)
			return told.Load() > 0
		})
	}
}

// A grant that is brought to a waiter tells whether others wait behind it, without another call.
func TestBroughtGrantIsWanted(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, other := openOn(t, r), openOn(t, r)
	round := 0
	within(t, locktest.Margin, "a grant is brought", func() bool { // none is where the machine is so slow that places end
		round++
		name := fmt.Sprint("n", round)
		former := lateClaim(t, other, name, "former", time.Minute)
		mustTry(t, former)
		var told atomic.Int64
		next, err := d.Claim(driver.Request{Resource: name, Owner: "next", TTL: time.Minute, Queue: true, Wanted: func() { told.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		busy := mustWait(t, next)
		waiterOn(t, other, name, "behind")
		claimtest.Released(t, former)
		if _, ok := brought(t, busy); !ok {
			return false
		}
		within(t, locktest.Margin, "told of who is behind", func() bool { return told.Load() > 0 })
		return true
	})
}

// A holder that wants to know who waits is told of its eviction as others are, and of nobody who waits after it.
func TestEvictionOfOneThatIsRecalled(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, other := openOn(t, r), openOn(t, r)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		name := mode.String()
		lost := make(chan error, 1)
		var told atomic.Int64
		c, err := d.Claim(driver.Request{
			Resource: name, Owner: "holder", TTL: time.Minute, Mode: mode,
			Lost: func(err error) { lost <- err }, Wanted: func() { told.Add(1) },
		})
		if err != nil {
			t.Fatal(err)
		}
		mustTry(t, c)
		if err := other.Evict(t.Context(), name, "holder", "stuck"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-lost:
			if !errors.Is(err, driver.ErrEvicted) {
				t.Errorf("%s: lost for %v", name, err)
			}
		case <-time.After(locktest.Margin):
			t.Fatal("it is not told of its eviction")
		}
		mustTry(t, lateClaim(t, other, name, "next", time.Minute))
		waiterOn(t, other, name, "waiter")
		if _, err := c.Renew(t.Context(), time.Minute); !errors.Is(err, driver.ErrLost) || told.Load() > 0 {
			t.Errorf("%s: Renew after it: %v; told %d times that another waits", name, err, told.Load())
		}
	}
}

// A waiter that dies after it has recalled the holder is told of for as long as its place lives, and no longer.
func TestWaiterDiesAfterRecalling(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, dies := openOn(t, r), openOn(t, r)
	h := holderOf(t, d, "n", driver.Exclusive, time.Minute)
	mustTry(t, h)
	listens(t, r, 1)
	waiterOn(t, dies, "n", "waiter")
	h.isTold(t, "it has come")
	if err := dies.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, 20*time.Second, "nobody waits any more", func() bool {
		h.told.Store(0)
		h.renewed(t)
		return h.told.Load() == 0
	})
	if err := h.Release(t.Context(), driver.End{}); err != nil {
		t.Error(err)
	}
	mustTry(t, lateClaim(t, openOn(t, r), "n", "next", time.Minute))
}

// holderEnv makes the test binary a process that holds a lock until it is told to release it; its value is the
// address of the server.
const holderEnv = "LEASEHOLD_REDISLOCK_HOLDER"

const stoppedTTL = 2 * time.Second

// hold is that process. It writes a line when it holds, when it is recalled, and what its release came to.
func hold(addr string) error {
	d, err := redislock.Open(&redis.Options{Addr: addr}, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	recalled := make(chan bool, 1)
	c, err := d.Claim(driver.Request{Resource: "n", Owner: "stopped", TTL: stoppedTTL, Wanted: func() {
		select {
		case recalled <- true:
		default:
		}
	}})
	if err != nil {
		return err
	}
	ctx := context.Background()
	if _, err := c.Try(ctx); err != nil {
		return err
	}
	fmt.Println("holds")
	renew := time.NewTicker(stoppedTTL / 10)
	for waits := true; waits; {
		select {
		case <-recalled:
			waits = false
		case <-renew.C:
			if _, err := c.Renew(ctx, stoppedTTL); err != nil {
				return err
			}
		}
	}
	fmt.Println("recalled")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	fmt.Println(errors.Is(c.Release(ctx, driver.End{}), driver.ErrLost))
	return nil
}

// A holder that is stopped between the notice and its release loses the lease to who waits, and its release then
// ends nothing.
func TestHolderIsStoppedAfterTheRecall(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	child := exec.Command(os.Args[0])
	child.Env, child.Stderr = append(os.Environ(), holderEnv+"="+r.Addr()), os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	lines := bufio.NewScanner(out)
	says := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the holder says %q; want %q", lines.Text(), want)
		}
	}
	says("holds")
	waiter := waiterOn(t, openOn(t, r), "n", "waiter")
	says("recalled")
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	within(t, locktest.Margin, "granted to who waits", func() bool {
		_, err := waiter.Try(t.Context())
		return err == nil
	})
	if err := child.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(in); err != nil {
		t.Fatal(err)
	}
	says("true")
	if _, err := waiter.Renew(t.Context(), time.Minute); err != nil {
		t.Errorf("the next lease: %v", err)
	}
}

// After a failover a holder hears who waits on the new primary.
func TestRecallAfterAFailover(t *testing.T) {
	t.Parallel()
	s := servers.StartSentinel(t)
	open := func(replicas int) *redislock.Driver {
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Master, SentinelAddrs: s.Sentinels})
		t.Cleanup(func() { c.Close() })
		return redisDriverOf(t, c, &redislock.Options{Replicas: replicas})
	}
	d, other := open(2), open(0)
	var holders []holder
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		h := holderOf(t, d, mode.String(), mode, 5*time.Minute)
		within(t, locktest.Margin, "both replicas have the grant", func() bool {
			_, err := h.Try(t.Context())
			return err == nil
		})
		holders = append(holders, h)
	}
	primary := s.Primary(t)
	listens(t, primary, 1)
	primary.Kill()
	within(t, 40*time.Second, "another primary", func() bool { return s.Primary(t) != primary })
	for i, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		c, err := other.Claim(driver.Request{Resource: mode.String(), Owner: "waiter", TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		within(t, 40*time.Second, "told without a renewal", func() bool {
			if _, err := c.Try(t.Context()); err == nil {
				t.Fatal("two hold after a failover")
			}
			return holders[i].told.Load() > 0
		})
	}
}

// Where a slot is on its way, and where it has gone, holders are renewed and hear who waits.
func TestRecallWhileASlotMoves(t *testing.T) {
	t.Parallel()
	nodes := servers.StartCluster(t, 3)
	open := func() *redislock.Driver {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
		t.Cleanup(func() { c.Close() })
		return redisDriverOf(t, c, nil)
	}
	d, other := open(), open()
	h := holderOf(t, d, "n", driver.Exclusive, time.Minute)
	mustTry(t, h)
	m := startMove(t, nodes, "lock:n")
	h.renewed(t) // its queue is nowhere
	m.key(t, companion("f", "n"))
	h.renewed(t)
	m.key(t, "lock:n")
	h.renewed(t)
	h.isNotTold(t, "nobody waits")
	m.end(t)
	waiter := waiterOn(t, other, "n", "waiter")
	h.isTold(t, "on the other node")
	mustWait(t, waiter)
	h.renewed(t)
	h.isTold(t, "by a renewal")

	m = startMove(t, nodes, "lock:n")
	m.key(t, companion("q", "n"))
	h.renewed(t) // its queue is elsewhere
	m.key(t, companion("d", "n"))
	m.key(t, companion("f", "n"))
	h.renewed(t)
	m.key(t, "lock:n")
	m.end(t)
	mustWait(t, waiter)
	h.told.Store(0)
	h.renewed(t)
	h.isTold(t, "by a renewal, where the slot has gone")
}

// A holder that does not ask costs nobody a message. One that asks costs one for each new place, and no round trip.
func TestRecallsCostNothingUnasked(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		for asks, messages := range map[bool]int{false: 0, true: 2} {
			t.Run(fmt.Sprint(mode, ", asks ", asks), func(t *testing.T) {
				t.Parallel()
				r := servers.StartRedis(t)
				d, other := openOn(t, r), openOn(t, r)
				use := func(name string) {
					h := holderOf(t, d, name, mode, time.Minute)
					if !asks {
						c, err := d.Claim(driver.Request{Resource: name, Owner: "silent", TTL: time.Minute, Mode: mode, Lost: func(error) {}})
						if err != nil {
							t.Fatal(err)
						}
						h.Claim = c
					}
					mustTry(t, h)
					h.renewed(t)
					for _, owner := range []string{"first", "second"} { // one at a time: no beat keeps its place
						waiter := waiterOn(t, other, name, owner)
						h.renewed(t)
						claimtest.Released(t, waiter)
					}
					claimtest.Released(t, h)
				}
				use("warm") // the server has the scripts, and other listens
				before, told := scripts(t, r), published(t, r)
				use("n")
				if n, m := scripts(t, r)-before, published(t, r)-told; n != 10 || m != messages {
					t.Errorf("%d scripts, and %d messages; want 10, and %d", n, m, messages)
				}
			})
		}
	}
}

func published(t *testing.T, r *servers.Redis) (n int) {
	t.Helper()
	_, after, _ := strings.Cut(r.Must(t, "INFO", "commandstats"), "cmdstat_publish:calls=")
	_, _ = fmt.Sscanf(after, "%d", &n) // none: 0
	return n
}

// Who resumes a lease and asks is told of the next who comes, without a renewal; and nobody looks for sharers who
// ask when the last of them has gone.
func TestRecallOfAResumedLease(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d, other := openOn(t, r), openOn(t, r)
	asked := func(name string) bool { return r.Must(t, "HEXISTS", companion("d", name), "r") == "1" }
	for i, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		name := mode.String()
		first, err := other.Claim(driver.Request{Resource: name, Owner: "holder of " + name, TTL: time.Minute, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		mustTry(t, first)
		resumed := holderOf(t, d, name, mode, time.Minute)
		resumed.renewed(t)
		listens(t, r, 1+i) // the other has waited then
		waiter := waiterOn(t, other, name, "waiter")
		resumed.isTold(t, "after it was resumed")
		claimtest.Released(t, waiter)
		if mode == driver.Exclusive {
			continue
		}
		if !asked(name) {
			t.Error("a sharer asks, and the scripts do not know")
		}
		remains, err := d.Claim(driver.Request{Resource: name, Owner: "silent", TTL: time.Minute, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		mustTry(t, remains)
		claimtest.Released(t, resumed)
		waiterOn(t, other, name, "next")
		if asked(name) {
			t.Error("no sharer asks any more, and the scripts still look for one")
		}
	}
}
