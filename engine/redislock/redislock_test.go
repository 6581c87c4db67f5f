package redislock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

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
	client := noServer()
	for what, o := range map[string]Options{
		"control character": {Prefix: "a\x1f"}, "brace without tag": {Prefix: "a{"}, "empty tag": {Prefix: "a{}"},
		"prefix and none": {Prefix: "a", NoPrefix: true}, "negative replicas": {Replicas: -1},
		"negative memory": {MinUptime: -1}, "memory and none": {MinUptime: 1, NoMinUptime: true}, "negative rest": {Rest: -1},
	} {
		if _, err := New(client, &o); err == nil {
			t.Errorf("%s: accepted", what)
		}
		if _, err := NewRedlock([]redis.UniversalClient{client, noServer(), noServer()}, &o, nil); err == nil {
			t.Errorf("%s: accepted for a Redlock", what)
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
		if err := checkVersion(v); (err == nil) != ok {
			t.Errorf("checkVersion(%q) = %v", v, err)
		}
	}
	d := driverOn(t, speakingOf(t, "6.2.14", grantPlain), nil)
	_, err := claimOn(t, d, "a").Try(t.Context())
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
		cause := refusal(text)
		if err := explain(cause); !errors.Is(err, want) || !errors.Is(err, cause) {
			t.Errorf("%q became %v", text, err)
		}
	}
	if cause := errors.New("dial tcp: refused"); explain(cause) != cause {
		t.Error("an error that nothing is known of was changed")
	}
}

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

// Of many locks those that are used are remembered.
func TestLocksAreKnown(t *testing.T) {
	t.Parallel()
	var k knownLocks
	k.saw("a", 5)
	k.saw("a", 3)
	k.contended("a", true)
	if got := k.of("a"); got != (known{5, true}) || k.of("b") != (known{}) {
		t.Errorf("of a %v, and of b %v", got, k.of("b"))
	}
	for i := range 3 * maxKnown {
		k.saw(fmt.Sprint("x", i), 1)
		if i%100 == 0 {
			k.saw("a", 4) // in use: not forgotten
		}
		if len(k.now)+len(k.old) > maxKnown {
			t.Fatalf("%d locks are known", len(k.now)+len(k.old))
		}
	}
	if got := k.of("a"); got != (known{5, true}) || k.of("x0") != (known{}) {
		t.Errorf("of a %v, and of x0 %v", got, k.of("x0"))
	}
}

func TestPatternsAreLiteral(t *testing.T) {
	t.Parallel()
	if got := glob(`a*b?c[d]e\f`); got != `a\*b\?c\[d\]e\\f` {
		t.Errorf("glob = %s", got)
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	d := driverOn(t, speaking(t, grantPlain), nil)
	if id, err := d.Identify(t.Context()); id != "abc" || err != nil {
		t.Errorf("Identify: %q, %v", id, err)
	}
	d.Close()
	if _, err := claimOn(t, d, "a").Try(t.Context()); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Try after Close: %v", err)
	}
}

// take.lua includes nothing, and has the number of its own at which all others stop counting, as Go has.
func TestScriptsCountToTheSame(t *testing.T) {
	t.Parallel()
	for _, s := range []*script{scriptTake, scriptAcquire} {
		if want := fmt.Sprint(uint64(maxExact)); strings.Count(s.load().text, want) != 1 {
			t.Errorf("%s does not have %s once", s.name, want)
		}
	}
}

// Every script says in its head what it is given and what it answers.
func TestScriptsHaveHeads(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*script{
		"acquire": scriptAcquire, "renew": scriptRenew, "release": scriptRelease, "evict": scriptEvict, "raise": scriptRaise, "limit": scriptLimit, "inspect": scriptInspect, "renewall": scriptRenewAll,
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
