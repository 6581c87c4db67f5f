package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// noServer is a client whose commands answer serves, or nothing does. They go by hooks first.
func noServer(answer func(ctx context.Context, cmd redis.Cmder) error, hooks ...redis.Hook) redis.UniversalClient {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no server")
	}})
	for _, h := range hooks {
		c.AddHook(h)
	}
	if answer != nil {
		c.AddHook(hook(answer))
	}
	return c
}

type hook func(context.Context, redis.Cmder) error

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := h(ctx, cmd)
		cmd.SetErr(err)
		return err
	}
}

func (h hook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(h(ctx, cmd))
		}
		return nil
	}
}

func version(v string) func(context.Context, redis.Cmder) error {
	return func(_ context.Context, cmd redis.Cmder) error {
		if info, ok := cmd.(*redis.StringCmd); ok {
			info.SetVal("# Server\r\nredis_version:" + v + "\r\nrun_id:abc\r\nuptime_in_seconds:7\r\n")
		}
		return nil
	}
}

func claimOn(t testing.TB, d *Driver, name string) driver.Claim {
	t.Helper()
	c, err := d.Claim(driver.Request{Resource: name, Owner: "owner", TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	client := noServer(nil)
	for what, o := range map[string]Options{
		"control character": {Prefix: "a\x1f"}, "brace without tag": {Prefix: "a{"}, "empty tag": {Prefix: "a{}"},
		"prefix and none": {Prefix: "a", NoPrefix: true}, "negative replicas": {Replicas: -1},
	} {
		if _, err := New(client, &o); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if _, err := New(redis.NewRing(&redis.RingOptions{}), nil); err == nil {
		t.Error("a Ring was accepted")
	}
	for _, none := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := New(none, nil); err == nil {
			t.Errorf("the client %#v was accepted", none)
		}
		if _, err := NewOnce(none, nil); err == nil {
			t.Errorf("the client %#v was accepted for Once", none)
		}
	}
	d := driverWith(t, Options{})
	for _, owner := range []string{"", "\x1fshared", "\x1flinger"} {
		if _, err := d.Claim(driver.Request{Resource: "a", Owner: owner, TTL: time.Second}); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("Claim of owner %q: %v", owner, err)
		}
	}
}

func TestOpenIsChecked(t *testing.T) {
	t.Parallel()
	if _, err := Open(nil, nil); err == nil {
		t.Error("Open without options was accepted")
	}
	server := &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1}
	if _, err := Open(server, &Options{Replicas: -1}); err == nil {
		t.Error("wrong options were accepted")
	}
	d, err := Open(server, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := claimOn(t, d, "a")
	if _, err := c.Try(t.Context()); err == nil || errors.Is(err, driver.ErrClosed) {
		t.Errorf("Try where no server is: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Try after Close: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close once more: %v", err)
	}
}

func TestOldServerIsRefused(t *testing.T) {
	t.Parallel()
	for v, ok := range map[string]bool{"7.0.0": true, "7.2.4": true, "8.6.1": true, "10.0": true, "6.2.14": false, "5.0.0": false, "": false, "x": false} {
		if newEnough(v) != ok {
			t.Errorf("newEnough(%q) = %v", v, !ok)
		}
	}
	d, err := New(noServer(version("6.2.14")), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = claimOn(t, d, "a").Try(t.Context())
	if !errors.Is(err, ErrOldServer) || !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "6.2.14") || !strings.Contains(err.Error(), MinVersion) {
		t.Errorf("Try of an old server: %v", err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		"WRONGTYPE Operation against a key holding the wrong kind of value":                     ErrWrongType,
		"READONLY You can't write against a read only replica.":                                 ErrReadOnly,
		"OOM command not allowed when used memory > 'maxmemory'.":                               ErrOutOfMemory,
		"LOADING Redis is loading the dataset in memory":                                        ErrLoading,
		"TRYAGAIN Multiple keys request during rehashing of slot":                               ErrMoving,
		"CLUSTERDOWN Hash slot not served":                                                      ErrClusterDown,
		"NOAUTH Authentication required.":                                                       ErrAuth,
		"WRONGPASS invalid username-password pair or user is disabled.":                         ErrAuth,
		"NOPERM this user has no permissions to run the 'evalsha' command":                      ErrAuth,
		"NOREPLICAS Not enough good replicas to write.":                                         ErrReplicas,
		"ERR AUTH <password> called without any password configured for the default user. Are…": ErrAuth,
	} {
		cause := reply(text)
		if err := explain(cause); !errors.Is(err, want) || !errors.Is(err, cause) {
			t.Errorf("%q became %v", text, err)
		}
	}
	if cause := errors.New("dial tcp: refused"); explain(cause) != cause {
		t.Error("an error that nothing is known of was changed")
	}
}

// reply is an error of the server.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestMessages(t *testing.T) {
	t.Parallel()
	for m, want := range map[string]string{"w3:abc": "w abc ", "e5:a:b\x1fcmaintenance: now": "e a:b\x1fc maintenance: now", "e1:x": "e x "} {
		kind, owner, rest, ok := parseMessage(m)
		if got := fmt.Sprintf("%c %s %s", kind, owner, rest); !ok || got != want {
			t.Errorf("parseMessage(%q) = %q, %v", m, got, ok)
		}
	}
	for _, m := range []string{"", ":", "w", "w:", "w9:abc", "w-1:abc", "wx:abc", "3:abc"} {
		if kind, owner, _, ok := parseMessage(m); ok && owner != "" {
			t.Errorf("parseMessage(%q) = %c %q", m, kind, owner)
		}
	}
}

func TestFencesAreRemembered(t *testing.T) {
	t.Parallel()
	var f fences
	f.saw("a", 5)
	f.saw("a", 3)
	if f.last("a") != 5 || f.last("b") != 0 {
		t.Errorf("last = %d and %d", f.last("a"), f.last("b"))
	}
	for i := range 3 * maxFences {
		f.saw(fmt.Sprint("x", i), 1)
		if i%100 == 0 {
			f.saw("a", 4) // in use: not forgotten
		}
		if len(f.now)+len(f.old) > maxFences {
			t.Fatalf("%d fences are kept", len(f.now)+len(f.old))
		}
	}
	if f.last("a") != 5 || f.last("x0") != 0 {
		t.Errorf("last = %d and %d", f.last("a"), f.last("x0"))
	}
}

// Calls return when their contexts end, whatever the client does, and do not pile up
// behind a server that does not answer.
func TestCallsEndWithTheirContext(t *testing.T) {
	release := make(chan struct{})
	var stuck atomic.Int32
	d, err := New(noServer(func(_ context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "info" {
			return version("7.0.15")(nil, cmd)
		}
		stuck.Add(1)
		<-release
		return errors.New("late")
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.checkVersion(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	var all sync.WaitGroup
	for i := range 500 {
		all.Go(func() {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errGone)
			defer cancel()
			if _, err := claimOn(t, d, fmt.Sprint(i)).Try(ctx); !errors.Is(err, errGone) {
				t.Errorf("Try: %v", err)
			}
		})
	}
	all.Wait()
	if n := runtime.NumGoroutine() - before; n > maxHung+4 {
		t.Errorf("%d goroutines are left behind a server that does not answer", n)
	}
	link := d.links.first
	link.mu.Lock()
	if n := len(link.waiting); n != 0 {
		t.Errorf("%d calls wait that nobody waits for", n)
	}
	link.mu.Unlock()
	close(release)
	if n := stuck.Load(); n < maxInFlight || n > maxHung {
		t.Errorf("%d calls were sent, want %d, and one more now and then", n, maxInFlight)
	}
}

var errGone = errors.New("gone")

// grantPlain answers take.lua: the fence is the length of the lock key.
func grantPlain(c sentCmd) {
	lock, _ := c.Args()[3].(string)
	c.SetVal(int64(len(lock)))
}

// Connections that are dead unnoticed hold up nobody for long who comes after them.
func TestHungConnectionsDelayOthersLittle(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var sent atomic.Int32
	d, err := New(noServer(func(ctx context.Context, cmd redis.Cmder) error {
		if c, ok := cmd.(sentCmd); ok {
			if sent.Add(1) <= maxInFlight {
				<-release
			}
			grantPlain(c)
			return nil
		}
		return version("7.0.15")(ctx, cmd)
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.checkVersion(t.Context()); err != nil {
		t.Fatal(err)
	}
	var hung, others sync.WaitGroup
	for i := range maxInFlight {
		hung.Go(func() { _, _ = claimOn(t, d, fmt.Sprint("hung", i)).Try(context.Background()) })
	}
	for end := time.Now().Add(10 * time.Second); sent.Load() < maxInFlight; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the calls that hang were not sent")
		}
	}
	start := time.Now()
	for i := range 20 {
		others.Go(func() {
			if _, err := claimOn(t, d, fmt.Sprint("other", i)).Try(t.Context()); err != nil {
				t.Errorf("Try: %v", err)
			}
		})
	}
	others.Wait()
	if took := time.Since(start); took > hungAfter+time.Second {
		t.Errorf("calls beside connections that hang took %v", took)
	}
	link := d.links.first
	link.mu.Lock()
	if link.inFlight >= maxInFlight+link.hung {
		t.Errorf("the next one waits again: %d in flight, %d of them hang", link.inFlight, link.hung)
	}
	link.mu.Unlock()
	close(release)
	hung.Wait()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		link.mu.Lock()
		n := link.inFlight + link.hung
		link.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("calls are counted as on their way for ever")
		}
	}
}

// What comes together while calls are on their way goes together, each with its own
// answer; a lost script is brought along.
func TestCallsGoTogether(t *testing.T) {
	t.Parallel()
	var pipelines, single, evals atomic.Int32
	full := make(chan struct{}) // closed when all but the first few have gathered
	d, err := New(noServer(func(_ context.Context, cmd redis.Cmder) error {
		switch c := cmd.(type) {
		case *redis.StringCmd:
			return version("7.0.15")(nil, cmd)
		case sentCmd:
			if cmd.Name() == "evalsha" {
				<-full
				return reply("NOSCRIPT No matching script.")
			}
			evals.Add(1)
			grantPlain(c)
		}
		return nil
	}, counter{&single, &pipelines}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.checkVersion(t.Context()); err != nil {
		t.Fatal(err)
	}
	const n = 100
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			name := strings.Repeat("x", i+1)
			g, err := claimOn(t, d, name).Try(t.Context())
			if want := driver.FenceOf(uint64(len("lock:") + i + 1)); err != nil || g.Fence != want {
				t.Errorf("Try: fence %d, %v; want that of its own key, %d", g.Fence, err, want)
			}
		})
	}
	link := d.links.first
	waiting := func() int {
		link.mu.Lock()
		defer link.mu.Unlock()
		return len(link.waiting)
	}
	for end := time.Now().Add(10 * time.Second); waiting() < n-maxInFlight; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d calls have gathered, want %d", waiting(), n-maxInFlight)
		}
	}
	close(full)
	all.Wait()
	if one, many := single.Load(), pipelines.Load(); evals.Load() != n || one > 3*maxInFlight || many == 0 || many > maxInFlight {
		t.Errorf("%d calls in %d commands and %d pipelines", evals.Load(), one, many)
	}
}

// A counter is a hook that counts commands and pipelines.
type counter struct{ single, pipelines *atomic.Int32 }

func (counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.single.Add(1)
		return next(ctx, cmd)
	}
}

func (c counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.pipelines.Add(1)
		return next(ctx, cmds)
	}
}

// A key that the user may not touch fails its own call, and none that goes with it.
func TestForbiddenKeySharesNoFate(t *testing.T) {
	t.Parallel()
	full := make(chan struct{}) // closed when all but the first few have gathered
	d, err := New(noServer(func(ctx context.Context, cmd redis.Cmder) error {
		c, ok := cmd.(sentCmd)
		if !ok {
			return version("7.0.15")(ctx, cmd)
		}
		<-full
		if slices.Contains(cmd.Args(), any("lock:forbidden")) {
			return reply("NOPERM No permissions to access a key")
		}
		grantPlain(c)
		return nil
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.checkVersion(t.Context()); err != nil {
		t.Fatal(err)
	}
	const n = 20
	var all sync.WaitGroup
	try := func(name string, want error) {
		all.Go(func() {
			if _, err := claimOn(t, d, name).Try(t.Context()); !errors.Is(err, want) {
				t.Errorf("Try of %s: %v; want %v", name, err, want)
			}
		})
	}
	gathered := func(want int) {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			link := d.links.first
			link.mu.Lock()
			got := link.inFlight + len(link.waiting)
			link.mu.Unlock()
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d calls have gathered, want %d", got, want)
			}
		}
	}
	for i := range maxInFlight {
		try(fmt.Sprint("first", i), nil)
	}
	gathered(maxInFlight)
	try("forbidden", ErrAuth)
	for i := range n {
		try(fmt.Sprint("allowed", i), nil)
	}
	gathered(maxInFlight + 1 + n)
	close(full)
	all.Wait()
}

func TestPatternsAreLiteral(t *testing.T) {
	t.Parallel()
	if got := glob(`a*b?c[d]e\f`); got != `a\*b\?c\[d\]e\\f` {
		t.Errorf("glob = %s", got)
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	d, err := New(noServer(version("7.0.15")), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if id, err := d.Identify(t.Context()); id != "abc" || err != nil {
		t.Errorf("Identify: %q, %v", id, err)
	}
	d.Close()
	if _, err := claimOn(t, d, "a").Try(t.Context()); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Try after Close: %v", err)
	}
}

// The scripts have the length of a place as a number of their own.
func TestScriptsKnowPlaces(t *testing.T) {
	t.Parallel()
	for _, s := range []*script{scriptAcquire, scriptRelease, scriptEvict, scriptInspect} {
		if want := fmt.Sprintf("local PLACE = %d\n", millis(placeTTL)); strings.Count(s.load().text, want) != 1 {
			t.Errorf("%s has no %q", s.name, want)
		}
	}
}

// Every script says in its head what it is given and what it answers.
func TestScriptsHaveHeads(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*script{
		"acquire": scriptAcquire, "renew": scriptRenew, "release": scriptRelease, "evict": scriptEvict, "raise": scriptRaise, "inspect": scriptInspect, "renewall": scriptRenewAll,
		"take": scriptTake, "give": scriptGive, "note": scriptNote,
	} {
		head, _, _ := strings.Cut(s.load().text, "\nlocal ")
		for _, part := range []string{"#!lua", "-- KEYS: ", "-- ARGV: ", "-- Reply: "} {
			if !strings.Contains(head, part) {
				t.Errorf("%s.lua has no %q", name, part)
			}
		}
		if strings.Contains(s.text, "--include ") {
			t.Errorf("%s.lua: an include is missing", name)
		}
	}
}
