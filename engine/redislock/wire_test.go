package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// redisClient is a client of r until t ends.
func redisClient(t testing.TB, r *servers.Redis) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() { client.Close() })
	return client
}

// redisLocker is a Locker of one more process on r until t ends.
func redisLocker(t testing.TB, r *servers.Redis, opts *redislock.Options, o leasehold.Options) *leasehold.Locker {
	t.Helper()
	return lockerOn(t, redisDriverOf(t, redisClient(t, r), opts), o)
}

func redisDriverOf(t testing.TB, client redis.UniversalClient, opts *redislock.Options) *redislock.Driver {
	t.Helper()
	d, err := redislock.New(client, opts)
	if err != nil {
		t.Fatalf("redislock.New: %v", err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func lockerOn(t testing.TB, d driver.Driver, o leasehold.Options) *leasehold.Locker {
	t.Helper()
	l, err := leasehold.New(d, &o)
	if err != nil {
		t.Fatalf("leasehold.New: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// scripts is how often clients have sent scripts.
func scripts(t testing.TB, r *servers.Redis) (n int) {
	t.Helper()
	for line := range strings.Lines(r.Must(t, "INFO", "commandstats")) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			rest, _, _ = strings.Cut(rest, ",")
			n, _ = strconv.Atoi(rest)
		}
	}
	return n
}

// sent is a connection that counts the commands which a client sends.
type sent struct {
	net.Conn
	n *atomic.Int64
}

func (s sent) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("hello")) && !bytes.Contains(b, []byte("client")) && // how a connection begins
		!bytes.Contains(b, []byte("subscribe")) && !bytes.Contains(b, []byte("ping")) { // one begins in the background, and is asked whether it stands
		s.n.Add(int64(bytes.Count(b, []byte("*"))))
	}
	return s.Conn.Write(b)
}

// Alone, a cycle is two commands, with the fence on.
func TestRedisUncontendedCycleIsTwoCommands(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	counter := new(atomic.Int64)
	d, err := redislock.Open(&redis.Options{Addr: r.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return sent{conn, counter}, err
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l := lockerOn(t, d, leasehold.Options{HandOver: -1})
	cycle := func() {
		lease, err := l.Acquire(t.Context(), "alone")
		if err != nil {
			t.Fatalf("Acquire: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatalf("Release: %v", err)
		}
	}
	cycle() // checks the version, and has the scripts loaded
	counter.Store(0)
	before := scripts(t, r)
	const cycles = 50
	for range cycles {
		cycle()
	}
	// What is held when the subscription comes to stand is asked after once.
	if n := counter.Load(); n != 2*cycles && n != 2*cycles+1 {
		t.Errorf("%d commands for %d cycles, want two each", n, cycles)
	}
	if n := scripts(t, r) - before; n != 2*cycles && n != 2*cycles+1 {
		t.Errorf("%d scripts for %d cycles, want two each", n, cycles)
	}
}

// A foreign holder's release wakes nobody: it is noticed soon, without hammering.
func TestRedisForeignHolder(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	l := lockerOn(t, d, leasehold.Options{})
	const name, key, token = "foreign", "lock:foreign", "somebody-elses-token"
	r.Must(t, "SET", key, token, "NX", "PX", "60000")

	_, err := l.TryAcquire(t.Context(), name)
	busy, ok := errors.AsType[*leasehold.BusyError](err)
	if !ok || busy.Holder.Owner.Reveal() != token {
		t.Fatalf("TryAcquire: %v; want busy with the foreign holder", err)
	}
	st, err := d.Inspect(t.Context(), name)
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Reveal() != token || st.Holders[0].Left <= 0 {
		t.Errorf("Inspect: %+v, %v; want the foreign holder", st, err)
	}
	list, _, err := d.List(t.Context(), "for", "", 100)
	if err != nil || len(list) != 1 || list[0].Resource != name {
		t.Errorf("List: %+v, %v; want the foreign holder", list, err)
	}

	const waiters = 5 // of one process: only one asks the server
	granted := make(chan time.Time, waiters)
	var waiting sync.WaitGroup
	wait := func() {
		lease, err := l.Acquire(t.Context(), name)
		granted <- time.Now()
		if err == nil {
			err = lease.Release(context.Background())
		}
		if err != nil {
			t.Errorf("Acquire and Release: %v", err)
		}
	}
	for range waiters {
		waiting.Go(wait)
	}
	time.Sleep(500 * time.Millisecond) // until they poll
	before := scripts(t, r)
	const span = 3 * time.Second
	time.Sleep(span)
	after := scripts(t, r)
	if perSecond := float64(after-before) / span.Seconds(); perSecond > 20 || perSecond < 1 { // that it is often is measured below
		t.Errorf("%.1f commands a second while a foreign holder holds, want 10 to 20", perSecond)
	}
	var worst time.Duration
	released := time.Now()
	r.Must(t, "DEL", key)
	worst = (<-granted).Sub(released)
	for range waiters - 1 {
		<-granted
	}
	waiting.Wait()
	usual := []time.Duration{worst}
	for range 6 {
		r.Must(t, "SET", key, token, "NX", "PX", "60000")
		waiting.Go(wait)
		time.Sleep(300 * time.Millisecond)
		released = time.Now()
		r.Must(t, "DEL", key)
		usual = append(usual, (<-granted).Sub(released))
		waiting.Wait()
	}
	slices.Sort(usual)
	t.Logf("foreign releases were noticed after %v", usual)
	if usual[len(usual)/4] > 100*time.Millisecond+500*time.Millisecond { // the machine may be slow, now and then
		t.Errorf("foreign releases were noticed after %v, want 100ms", usual)
	}

	// An operator can end it.
	r.Must(t, "SET", key, token, "NX", "PX", "60000")
	if err := d.Evict(t.Context(), name, token, "test"); err != nil {
		t.Errorf("Evict of a foreign holder: %v", err)
	}
	lease, err := l.TryAcquire(t.Context(), name)
	if err != nil {
		t.Fatalf("TryAcquire after Evict: %v", err)
	}
	// A foreign client that honours the recipe does not get past us.
	if reply := r.Must(t, "SET", key, "intruder", "NX", "PX", "1000"); reply != "" {
		t.Errorf("SET NX beside our lease: %q", reply)
	}
	if got := r.Must(t, "GET", key); got != lease.Owner() {
		t.Error("the lock key does not hold the owner")
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}
