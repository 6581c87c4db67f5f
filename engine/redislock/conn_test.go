package redislock

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

var errGone = errors.New("gone")

// longClaim is one for a lease that nobody is in a hurry about.
func longClaim(t *testing.T, d *Driver, name string) driver.Claim {
	c, err := d.Claim(driver.Request{Resource: name, Owner: "owner", TTL: time.Minute})
	if err != nil {
		t.Error(err)
	}
	return c
}

// A keeping connection keeps what goes to it, and is not closed at once.
type keeping struct {
	net.Conn
	mu  sync.Mutex
	all []byte
}

func (k *keeping) Close() error { return nil }

func (k *keeping) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, b...)
	return len(b), nil
}

// If a connection ends before a queued call is written, the call is reported as unsent, so another
// connection may take it. The first one never writes it.
func TestWhatHasNotLeftDoesNotLeave(t *testing.T) {
	mine, _ := net.Pipe()
	line := &keeping{Conn: mine}
	n := newConn(line, 0, 0, func(*conn) {}, func() {})
	c := new(pipelines).newCall(nil, "PING")
	n.mu.Lock()
	n.push(c)
	n.mu.Unlock()
	n.end(errGone)
	<-c.done
	n.flush()
	n.writeAll()
	if !c.unsent || len(line.all) > 0 {
		t.Errorf("unsent: %v, and %q was sent", c.unsent, line.all)
	}
	mine.Close()
}

// A call that comes to a connection after the others have left it goes to another one: this one ends
// as soon as nothing is in flight, and the call's outcome would be unknown.
func TestNoCallBeginsOnAConnectionThatIsLeft(t *testing.T) {
	mine, _ := net.Pipe()
	defer mine.Close()
	line := &keeping{Conn: mine}
	n := newConn(line, 0, 0, func(*conn) {}, func() {})
	n.mu.Lock()
	n.silence.leaving = true
	n.mu.Unlock()
	if err := n.send(t.Context(), new(pipelines).newCall(nil, "PING")); !errors.Is(err, errEnded) || len(line.all) > 0 {
		t.Errorf("%v, and %q was sent; want errEnded", err, line.all)
	}
}

// A connection that is given up drops what has not reached the server: the kernel would deliver it
// for minutes, longer than the mark of a claim that was given up lasts.
func TestWhatHasNotArrivedIsDropped(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mine, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	n := newConn(tls.Client(mine, &tls.Config{}), 0, 0, func(*conn) {}, func() {})
	n.end(errSilent)
	if _, err := io.Copy(io.Discard, server); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server finds %v, so unsent bytes still come", err)
	}
}

// Calls return when their contexts end, whatever the server does, and leave nothing behind.
func TestCallsEndWithTheirContext(t *testing.T) {
	silent := make(chan bool)
	d := driverOn(t, speaking(t, func([]string) any {
		<-silent
		return hangUp{}
	}), nil)
	defer close(silent)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := longClaim(t, d, "first").Try(ctx); !errors.Is(err, context.DeadlineExceeded) { // connects
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	var all sync.WaitGroup
	for i := range 500 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := longClaim(t, d, fmt.Sprint(i)).Try(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Try: %v", err)
			}
		})
	}
	all.Wait()
	if n := runtime.NumGoroutine() - before; n > 20 {
		t.Errorf("%d goroutines are left behind a server that does not answer", n)
	}
}

// A connection that is dead unnoticed holds up nobody for long who comes later. It is given up at last, and
// what was sent is unknown.
func TestSilentConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	d := driverOn(t, speaking(t, func(words []string) any {
		if sent.Add(1) == 1 {
			return nil
		}
		return grantPlain(words)
	}), nil)
	start := time.Now()
	asked := make(chan error)
	go func() { // what may be asked twice goes on by another connection before
		_, err := d.Inspect(t.Context(), "a")
		asked <- err
	}()
	p, err := d.pipelines.of(t.Context(), "", false)
	if err != nil {
		t.Fatal(err)
	}
	left := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return sent.Load() == 1 && p.conn == nil
	}
	for !left() {
		if time.Since(start) > leaveAfter+2*time.Second {
			t.Fatal("others are still sent on the silent connection")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := claimOn(t, d, "b").Try(t.Context()); err != nil {
		t.Errorf("Try on the next connection: %v", err)
	}
	if err := <-asked; !errors.Is(err, errSilent) {
		t.Errorf("Inspect: %v", err)
	}
	if took := time.Since(start); took < endAfter || took > endAfter+5*time.Second {
		t.Errorf("the connection was given up after %v", took)
	}
}

// A connection that ends takes with it what was sent, and nothing is sent once more.
func TestNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sent := make(map[string]int) // by lock key
	d := driverOn(t, speaking(t, func(words []string) any {
		mu.Lock()
		defer mu.Unlock()
		if isScript(words, scriptTake) {
			sent[lockOf(words)]++
			if len(sent)%7 == 0 {
				return hangUp{}
			}
		}
		return grantPlain(words)
	}), nil)
	var all sync.WaitGroup
	var unknown atomic.Int32
	for i := range 200 {
		all.Go(func() {
			if _, err := claimOn(t, d, fmt.Sprint(i)).Try(t.Context()); err != nil {
				unknown.Add(1)
			}
		})
	}
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	for lock, n := range sent {
		if n > 1 {
			t.Errorf("%s was sent %d times", lock, n)
		}
	}
	if unknown.Load() == 0 {
		t.Error("each call has an answer, also those whose connection has ended")
	}
}

// Each call has its own answer, however many go together; a lost script is brought along.
func TestCallsGoTogether(t *testing.T) {
	t.Parallel()
	whole := make(map[string]bool) // locks; guarded by the speaker's mutex until all have returned
	d := driverOn(t, speaking(t, func(words []string) any {
		if words[0] == "EVALSHA" {
			return refusal("NOSCRIPT No matching script.")
		}
		whole[lockOf(words)] = true
		if isScript(words, scriptAcquire) { // on a busy machine some try again
			return []any{int64(replyGranted), int64(len(lockOf(words)))}
		}
		return grantPlain(words)
	}), nil)
	var all sync.WaitGroup
	const n = 100
	for i := range n {
		all.Go(func() {
			g, err := claimOn(t, d, strings.Repeat("x", i+1)).Try(t.Context())
			if want := driver.FenceOf(uint64(len("lock:") + i + 1)); err != nil || g.Fence != want {
				t.Errorf("Try: fence %d, %v; want that of its own key, %d", g.Fence, err, want)
			}
		})
	}
	all.Wait()
	if len(whole) != n {
		t.Errorf("%d scripts for %d calls", len(whole), n)
	}
}

// A key that the user may not touch fails its own call, and none that goes with it.
func TestForbiddenKeySharesNoFate(t *testing.T) {
	t.Parallel()
	d := driverOn(t, speaking(t, func(words []string) any {
		if lockOf(words) == "lock:forbidden" {
			return refusal("NOPERM No permissions to access a key")
		}
		return grantPlain(words)
	}), nil)
	var all sync.WaitGroup
	for i := range 40 {
		name, want := fmt.Sprint("allowed", i), error(nil)
		if i == 20 {
			name, want = "forbidden", ErrAuth
		}
		all.Go(func() {
			if _, err := claimOn(t, d, name).Try(t.Context()); !errors.Is(err, want) {
				t.Errorf("Try of %s: %v; want %v", name, err, want)
			}
		})
	}
	all.Wait()
}

// Whatever bytes a server or a proxy sends, calls fail, the connection is given up, and the program and its
// next call go on.
func TestWrongBytesEndTheConnection(t *testing.T) {
	t.Parallel()
	for _, bytes := range []string{
		":1\r\n:1\r\n", "+OK\r\n+OK\r\n", ":5\r\n-ERR bye\r\n", "$-5\r\n", "*-7\r\n", "*1000000000\r\n", "$99999999999999999999\r\n", "hello\r\n", "\r\n",
		"\n", ":x\r\n", "$3\r\nabcd\r\n", strings.Repeat("*1\r\n", 100), "+" + strings.Repeat("x", 2*maxLine),
	} {
		var sent atomic.Int32
		d := driverOn(t, speaking(t, func(words []string) any {
			if sent.Add(1) == 1 {
				return raw(bytes)
			}
			return grantPlain(words)
		}), nil)
		_, err := claimOn(t, d, "first").Try(t.Context())
		if strings.HasPrefix(bytes, ":1") || strings.HasPrefix(bytes, ":5") {
			if err != nil {
				t.Errorf("%.20q: %v", bytes, err)
			}
		} else if err == nil {
			t.Errorf("%.20q: granted", bytes)
		}
		for end := time.Now().Add(10 * time.Second); ; {
			if _, err = claimOn(t, d, "second").Try(t.Context()); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			t.Errorf("after %.20q: %v", bytes, err)
		}
	}
}

// What replicas must acknowledge is followed by one WAIT for all that went together, and others do not
// wait with them.
func TestReplicasAreAskedTogether(t *testing.T) {
	t.Parallel()
	var waits, scripts atomic.Int32
	hold := make(chan bool)
	d := driverOn(t, speaking(t, func(words []string) any {
		switch words[0] {
		case "WAIT":
			if waits.Add(1) == 1 {
				<-hold
			}
		default:
			scripts.Add(1)
		}
		return grantPlain(words)
	}), &Options{Replicas: 1})
	for range 2 { // so that none tries again meanwhile on a busy machine
		d.pipelines.answers.RanOut()
	}
	var all sync.WaitGroup
	try := func(i int) {
		all.Go(func() {
			g, err := longClaim(t, d, strings.Repeat("x", i+1)).Try(t.Context())
			if want := driver.FenceOf(uint64(len("lock:") + i + 1)); err != nil || g.Fence != want {
				t.Errorf("Try: fence %d, %v; want %d", g.Fence, err, want)
			}
		})
	}
	try(0)
	for end := time.Now().Add(10 * time.Second); waits.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no WAIT")
		}
	}
	p, err := d.pipelines.of(t.Context(), "", true)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := p.connection(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const n = 50
	for i := range n {
		try(i + 1)
	}
	gathered := func() int {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		conn.silence.lastAnswer = time.Now() // it is not left, however long a busy machine takes
		return conn.out.calls
	}
	for end := time.Now().Add(10 * time.Second); gathered() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d calls have gathered, want %d", gathered(), n)
		}
	}
	close(hold)
	all.Wait()
	if waits.Load() != 2 || scripts.Load() != n+1 {
		t.Errorf("%d WAITs for %d scripts, want 2 for %d", waits.Load(), scripts.Load(), n+1)
	}
}

// More calls than may be on their way wait for room, and leave when their contexts end. Time stands still, so that
// nobody leaves the connection because it is silent.
func TestTooManyCallsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mine, theirs := net.Pipe()
		n, calls := newConn(mine, 0, 0, func(*conn) {}, func() {}), new(pipelines)
		defer n.end(errGone)
		go io.Copy(io.Discard, theirs)
		for range maxSent {
			if err := n.send(t.Context(), calls.newCall(nil, "PING")); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		left, waits := make(chan error, 1), make(chan error, 1)
		go func() { left <- n.send(ctx, calls.newCall(nil, "PING")) }()
		go func() { waits <- n.send(t.Context(), calls.newCall(nil, "PING")) }()
		synctest.Wait()
		if len(left)+len(waits) > 0 {
			t.Fatalf("more than %d calls are on their way", maxSent)
		}
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the call whose context ended: %v", err)
		}
		if _, err := io.WriteString(theirs, strings.Repeat("+PONG\r\n", maxSent)); err != nil {
			t.Fatal(err)
		}
		if err := <-waits; err != nil {
			t.Errorf("the call that waited for room: %v", err)
		}
	})
}

// Behind sentinels, a connection is left when go-redis has ended one of its own to the same primary, because
// there is another.
func TestAnotherPrimaryIsFollowed(t *testing.T) {
	t.Parallel()
	client := speaking(t, grantPlain)
	var ended infos
	client.AddHook(&ended)
	d := driverOn(t, client, nil)
	d.pipelines.server.primary = client
	if _, err := longClaim(t, d, "a").Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "go-redis is asked", func() bool { return ended.asked.Load() > 0 })
	if !isConnected(t, d) {
		t.Error("left without a reason")
	}
	ended.fail.Store(true)
	eventually(t, "the connection is left", func() bool { return !isConnected(t, d) })
	if _, err := longClaim(t, d, "b").Try(t.Context()); err != nil {
		t.Errorf("Try on the next connection: %v", err)
	}
}

// A connection to a primary that stalls may be up only after the sentinels have named another. Nobody stays on the
// former one, which goes on serving, even if the next one refuses a first look.
func TestFormerPrimaryIsLeftAfterALateHandshake(t *testing.T) {
	t.Parallel()
	former, next := servers.StartRedis(t), servers.StartRedis(t)
	former.Must(t, "ACL", "SETUSER", "u", "on", "nopass", "~*", "&*", "+@all")
	next.Must(t, "ACL", "SETUSER", "u", "on", ">another", "~*", "&*", "+@all")
	stalled := servers.StartProxy(t, former.Addr())
	stalled.Dark()
	var named atomic.Value // what the sentinel names
	named.Store(stalled.Addr())
	dialled, up := make(chan bool, 10), make(chan bool)
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "main", SentinelAddrs: []string{startSentinel(t, &named)}, Username: "u", Password: "p",
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == next.Addr() {
				select {
				case <-up: // so that the first connection is used
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			if addr == stalled.Addr() {
				dialled <- true
			}
			return c, err
		},
	})
	t.Cleanup(func() { client.Close() })
	d := driverOn(t, client, nil)
	tried := make(chan error)
	go func() {
		_, err := longClaim(t, d, "a").Try(t.Context())
		tried <- err
	}()
	<-dialled
	named.Store(next.Addr())
	stalled.Pass()
	if err := <-tried; err != nil || former.Must(t, "EXISTS", "lock:a") != "1" {
		t.Fatalf("Try on the primary that had stalled: %v", err)
	}
	close(up)
	for end := time.Now().Add(10 * time.Second); next.Must(t, "ACL", "LOG") == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the next primary has refused nobody")
		}
	}
	next.Must(t, "ACL", "SETUSER", "u", "nopass")
	for n, end := 0, time.Now().Add(10*time.Second); next.Must(t, "DBSIZE") == "0"; n++ {
		if time.Now().After(end) {
			t.Fatal("the driver stays on the former primary")
		}
		_, _ = longClaim(t, d, fmt.Sprint("b", n)).Try(t.Context()) // may fail while the connection is left
		time.Sleep(10 * time.Millisecond)
	}
}

// The subscription follows the primary too, although the former one goes on serving: a lease that is
// not renewed would not hear of its eviction.
func TestSubscriptionFollowsThePrimary(t *testing.T) {
	t.Parallel()
	for name, former := range map[string]func(t *testing.T, former *servers.Redis, d *Driver, a driver.Claim){
		"connected": func(*testing.T, *servers.Redis, *Driver, driver.Claim) {},
		"after the driver's connection has ended": func(t *testing.T, former *servers.Redis, d *Driver, _ driver.Claim) {
			eventually(t, "the driver has no connection", func() bool {
				former.Must(t, "CLIENT", "KILL", "TYPE", "normal") // again, for a look at a lease may make another
				return !isConnected(t, d)
			})
		},
		"after it was made anew at the former one": func(t *testing.T, former *servers.Redis, d *Driver, a driver.Claim) {
			if err := a.Release(t.Context(), driver.End{}); err != nil { // a look at it would connect the driver
				t.Fatal(err)
			}
			e := d.subscriber
			e.mu.Lock()
			sub := e.sub
			e.mu.Unlock()
			eventually(t, "the connection is there that follow watches", func() bool {
				asks := regexp.MustCompile(`id=(\d+) .* cmd=info `).FindStringSubmatch(former.Must(t, "CLIENT", "LIST"))
				if asks != nil {
					former.Must(t, "CLIENT", "KILL", "ID", asks[1])
				}
				return asks != nil
			})
			eventually(t, "it listens anew while the driver has no connection", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return e.sub != sub && e.own.hears && !isConnected(t, d)
			})
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); subscriptionFollows(t, former) })
	}
}

// isConnected reports whether the driver, which has one server, is connected to it or connects.
func isConnected(t *testing.T, d *Driver) bool {
	p, err := d.pipelines.of(t.Context(), "", false)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn != nil || p.making != nil
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// subscriptionFollows checks that the subscription moves when the sentinels name another primary.
// Before that, disturb may break connections to the former one.
func subscriptionFollows(t *testing.T, disturb func(t *testing.T, former *servers.Redis, d *Driver, a driver.Claim)) {
	former, next := servers.StartRedis(t), servers.StartRedis(t)
	var named atomic.Value
	named.Store(former.Addr())
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{startSentinel(t, &named)}})
	t.Cleanup(func() { client.Close() })
	d := driverOn(t, client, nil)
	lost := make(chan string, 1000)
	take := func(name string) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: "o-" + name, TTL: time.Minute, Lost: func(error) { lost <- name }})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Try(t.Context()) // may fail while the connection is left
		return c
	}
	a := take("a")
	eventually(t, "it listens at the former primary", func() bool {
		return strings.Contains(former.Must(t, "PUBSUB", "CHANNELS"), d.subscriber.channel)
	})
	disturb(t, former, d, a)
	named.Store(next.Addr())
	name := ""
	for n := 0; name == ""; n++ {
		eventually(t, "go-redis finds the next primary", func() bool { return client.Ping(t.Context()).Err() == nil })
		took := fmt.Sprint("b", n)
		if c := take(took); next.Must(t, "EXISTS", "lock:"+took) == "1" {
			name = took
		} else {
			c.(*claim).Forget() // the subscription would look it up at the next primary
		}
		if time.Sleep(10 * time.Millisecond); n > 1000 {
			t.Fatal("the driver stays on the former primary")
		}
	}
	eventually(t, "it listens at the next primary", func() bool {
		return strings.Contains(next.Must(t, "PUBSUB", "CHANNELS"), d.subscriber.channel)
	})
	if err := driverOn(t, redisAt(t, next), nil).Evict(t.Context(), name, "o-"+name, "x"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the holder hears of its eviction", func() bool {
		select {
		case of := <-lost:
			return of == name
		default:
			return false
		}
	})
}

// A subscription that hangs while it connects to the former primary does not hold up the driver's
// first connection to the next one.
func TestHungSubscriptionHoldsUpNoConnection(t *testing.T) {
	t.Parallel()
	connects, up := make(chan bool), make(chan bool)
	once := sync.OnceFunc(func() { close(connects) })
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		once()
		<-up
		return nil, errGone
	}})
	t.Cleanup(func() { client.Close() })
	d := driverOn(t, client, nil)
	t.Cleanup(func() { close(up) })
	c, err := d.Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Minute, Lost: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	d.subscriber.listen(c.(*claim))
	<-connects
	d.pipelines.leadTo("former")
	led := make(chan bool)
	go func() { defer close(led); d.pipelines.leadTo("next") }()
	select {
	case <-led:
	case <-time.After(5 * time.Second):
		t.Error("who has connected to the next primary waits for the subscription")
	}
}

// redisAt returns a client of r until t ends.
func redisAt(t *testing.T, r *servers.Redis) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() { client.Close() })
	return client
}

// startSentinel starts a sentinel that names the primary at the address in named, and returns its own.
func startSentinel(t *testing.T, named *atomic.Value) string {
	return listen(t, func(words []string) any {
		switch strings.Join(words[:min(2, len(words))], " ") {
		case "sentinel get-master-addr-by-name":
			host, port, _ := net.SplitHostPort(named.Load().(string))
			return []any{host, port}
		case "sentinel sentinels":
			return []any{}
		case "subscribe +switch-master":
			return nil
		}
		return refusal("ERR unknown command")
	})
}

// infos is a hook that fails them.
type infos struct {
	fail  atomic.Bool
	asked atomic.Int32
}

func (*infos) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*infos) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (p *infos) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "info" && p.fail.Load() {
			return errGone
		}
		err := next(ctx, cmd)
		if cmd.Name() == "info" && err == nil {
			p.asked.Add(1)
		}
		return err
	}
}

// Replies are read as they were written, or refused, whatever comes; none needs much more room than it has.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{
		":1\r\n", "+OK\r\n", "-ERR x\r\n", "$3\r\nabc\r\n", "$-1\r\n", "*-1\r\n", "*2\r\n:1\r\n*1\r\n$0\r\n\r\n", "$-5\r\n", "*-7\r\n",
		"*1000000000\r\n", "$1000000000\r\nx", "_\r\n", "%1\r\n", ":9223372036854775808\r\n", strings.Repeat("*1\r\n", 20),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, bytes string) {
		from := bufio.NewReaderSize(strings.NewReader(bytes), 64)
		for {
			r, err := readReply(from)
			if err != nil {
				return
			}
			again, err := readReply(bufio.NewReader(strings.NewReader(string(onWire(nil, withNothing(r))))))
			if err != nil || fmt.Sprint(again) != fmt.Sprint(r) {
				t.Fatalf("%q of %q is %v when it is written and read again, %v", r, bytes, again, err)
			}
		}
	})
}

// withNothing is a reply as onWire takes it.
func withNothing(v any) any {
	switch v := v.(type) {
	case nil:
		return raw("$-1\r\n")
	case []any:
		all := make([]any, len(v))
		for i, one := range v {
			all[i] = withNothing(one)
		}
		return all
	}
	return v
}
