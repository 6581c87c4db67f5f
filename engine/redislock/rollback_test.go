package redislock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// rollBack puts the server's data folder back to what old has, as a machine does that was
// restored, or whose last writes never reached the disk.
func rollBack(t *testing.T, r *servers.Redis, old string) {
	t.Helper()
	r.Kill()
	entries, err := os.ReadDir(r.Data())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".log") {
			if err := os.RemoveAll(filepath.Join(r.Data(), e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	copyData(t, old, r.Data())
	r.Start(t)
}

func copyData(t *testing.T, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		at := filepath.Join(to, e.Name())
		switch {
		case strings.HasSuffix(e.Name(), ".log"):
		case e.IsDir():
			err = os.CopyFS(at, os.DirFS(filepath.Join(from, e.Name())))
		default:
			var b []byte
			if b, err = os.ReadFile(filepath.Join(from, e.Name())); err == nil {
				err = os.WriteFile(at, b, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The data folder is put back to a while ago. Fences grow all the same, in processes that
// saw the ones in between and in those that did not; who was granted since hears that it
// is lost; what was released since is held by nobody for longer than its TTL; and a
// server with a MinUptime grants nothing before that has passed.
func TestRedisDataFolderRolledBack(t *testing.T) {
	t.Parallel()
	for what, args := range map[string][]string{
		"append-only file": {"--appendonly", "yes", "--appendfsync", "always"},
		"snapshot":         {},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const ttl, memory = 3 * time.Second, 4 * time.Second
			r := servers.StartRedis(t, args...)
			l := redisLocker(t, r, nil, leasehold.Options{TTL: ttl, HandOver: -1})
			last := make(map[string]uint64)
			grow := func(l *leasehold.Locker, name string, opts ...leasehold.Option) *leasehold.Lease {
				t.Helper()
				lease, err := l.Acquire(t.Context(), name, append(opts, leasehold.Wait(20*time.Second))...)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if lease.Token() <= last[name] {
					t.Errorf("%s: token %d, %d before", name, lease.Token(), last[name])
				}
				last[name] = lease.Token()
				return lease
			}
			names := []string{"idle", "held later", "held then", "shared"}
			optsOf := func(name string) (opts []leasehold.Option) {
				if name == "shared" {
					opts = append(opts, leasehold.Limit(1))
				}
				return opts
			}
			cycle := func(l *leasehold.Locker, name string) {
				t.Helper()
				if err := grow(l, name, optsOf(name)...).Release(t.Context()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			for _, name := range names {
				cycle(l, name)
			}
			then := grow(l, "held then", leasehold.TTL(12*time.Second), leasehold.NoRenew())
			if len(args) == 0 {
				r.Must(t, "SAVE")
			}
			old := t.TempDir()
			copyData(t, r.Data(), old)
			if err := then.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				for _, name := range names {
					cycle(l, name)
				}
			}
			later := grow(l, "held later")

			rollBack(t, r, old)

			// A server that must be trusted not to have forgotten is not, yet.
			guarded := redisLocker(t, r, &redislock.Options{MinUptime: memory}, leasehold.Options{TTL: ttl})
			if lease, err := guarded.TryAcquire(t.Context(), "guarded"); !errors.Is(err, redislock.ErrServerTooYoung) {
				t.Errorf("a server that went back: lease %v, %v; want ErrServerTooYoung", lease != nil, err)
			}
			// Who had been granted since hears it from the next renewal.
			select {
			case <-later.Context().Done():
				if cause := context.Cause(later.Context()); !errors.Is(cause, leasehold.ErrLost) {
					t.Errorf("cause %v", cause)
				}
			case <-time.After(ttl):
				t.Error("the holder does not know that its lease is forgotten")
			}
			stranger := redisLocker(t, r, nil, leasehold.Options{TTL: ttl, HandOver: -1})
			for _, name := range names {
				if name == "held then" { // its old lease is back until its own end
					if _, err := stranger.TryAcquire(t.Context(), name); !errors.Is(err, leasehold.ErrBusy) {
						t.Errorf("the lease of the snapshot: %v", err)
					}
					continue
				}
				cycle(stranger, name)
				cycle(l, name)
			}
			if what == "append-only file" { // one of the two waits for the old lease to end
				cycle(stranger, "held then")
			}
			if err := grow(l, "held later").Release(t.Context()); err != nil {
				t.Error(err)
			}
			for end := time.Now().Add(memory + 5*time.Second); ; time.Sleep(100 * time.Millisecond) {
				lease, err := guarded.TryAcquire(t.Context(), "guarded")
				if err == nil {
					_ = lease.Release(t.Context()) // that it could be had is what counts
					break
				}
				if !errors.Is(err, redislock.ErrServerTooYoung) || time.Now().After(end) {
					t.Fatalf("when the server has run for long enough: %v", err)
				}
			}
		})
	}
}

// Counter and clock went back both: a process that saw the fences in between refuses the
// smaller one and leaves nothing behind.
func TestRedisRolledBackFenceIsRefused(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	d := redisDriverOf(t, redisClient(t, r), nil)
	l := lockerOn(t, d, leasehold.Options{HandOver: -1})
	cycle := func() error {
		lease, err := l.Acquire(t.Context(), "ahead")
		if err == nil {
			err = lease.Release(t.Context())
		}
		return err
	}
	// A fence that is ahead of the clock stands in for a clock that was set back.
	if err := d.RaiseFence(t.Context(), "ahead", driver.FenceOf(time.Now().Add(24*time.Hour).UnixMicro())); err != nil {
		t.Fatal(err)
	}
	old := t.TempDir()
	copyData(t, r.Data(), old)
	for range 3 {
		if err := cycle(); err != nil {
			t.Fatal(err)
		}
	}
	st, err := d.Inspect(t.Context(), "ahead")
	if err != nil {
		t.Fatal(err)
	}
	rollBack(t, r, old)
	if err := cycle(); !errors.Is(err, redislock.ErrFenceRegressed) {
		t.Errorf("Acquire: %v; want ErrFenceRegressed", err)
	}
	if got := r.Must(t, "EXISTS", "lock:ahead"); got != "0" {
		t.Error("the refused grant is left behind")
	}
	if err := d.RaiseFence(t.Context(), "ahead", st.Fence); err != nil {
		t.Fatal(err)
	}
	if err := cycle(); err != nil {
		t.Errorf("after RaiseFence: %v", err)
	}
}

// A sharer's grant whose fence went back does not count, even if the answer to its attempt was lost
// and the next attempt finds the grant.
func TestSharersFenceThatWentBackUnanswered(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t)
	d, client, link := openLate(t, r.Addr(), nil)
	sharer := func(owner string) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: "n", Owner: owner, TTL: time.Minute, Mode: driver.Shared})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	mustTry(t, sharer("before"))
	r.Must(t, "FLUSHALL")
	clock.Set(-time.Hour)
	c := sharer("o")
	link.cancelled(t, tryOf(c))()
	if _, err := c.Try(t.Context()); !errors.Is(err, redislock.ErrFenceRegressed) {
		t.Errorf("Try: %v; want ErrFenceRegressed", err)
	}
	if n := client.Exists(t.Context(), "lock:n").Val(); n != 0 {
		t.Error("the grant was not given back")
	}
}

// A failover without Replicas, to a replica that had not seen the grant: a second holder
// is let in beside the first, with a larger token; and the first one hears of its loss at
// its next renewal.
func TestRedisFailoverWithoutReplicas(t *testing.T) {
	t.Parallel()
	s := servers.StartSentinel(t)
	open := func() (*leasehold.Locker, *redislock.Driver) {
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Master, SentinelAddrs: s.Sentinels})
		t.Cleanup(func() { c.Close() })
		d := redisDriverOf(t, c, nil)
		return lockerOn(t, d, leasehold.Options{TTL: 15 * time.Second, HandOver: -1}), d
	}
	mine, _ := open()
	theirs, other := open()
	var last uint64
	for _, l := range []*leasehold.Locker{mine, theirs} { // replicas know these
		lease, err := l.Acquire(t.Context(), "f")
		if err != nil {
			t.Fatal(err)
		}
		last = lease.Token()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	primary := s.Primary(t)
	replicas := func(do func(*servers.Redis)) {
		for _, r := range s.Nodes {
			if r != primary {
				do(r)
			}
		}
	}
	// No replica gets what comes now: each is stopped, and its connection cut.
	var resumes []func()
	replicas(func(r *servers.Redis) { resumes = append(resumes, r.Pause()) })
	primary.Must(t, "CLIENT", "KILL", "TYPE", "replica")
	first, err := mine.Acquire(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	if first.Token() <= last {
		t.Errorf("token %d after %d", first.Token(), last)
	}
	primary.Kill()
	for _, resume := range resumes {
		resume()
	}
	second, err := theirs.Acquire(t.Context(), "f", leasehold.Wait(60*time.Second))
	for end := time.Now().Add(60 * time.Second); err != nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		second, err = theirs.Acquire(t.Context(), "f", leasehold.Wait(10*time.Second)) // the service was away
	}
	if err != nil {
		t.Fatalf("no failover: %v", err)
	}
	t.Logf("two holders: %v", first.Context().Err() == nil)
	if second.Token() <= first.Token() {
		t.Errorf("the second holder has token %d, the first one %d", second.Token(), first.Token())
	}
	if err := first.Extend(t.Context(), 15*time.Second); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("the first holder's next renewal: %v; want ErrLost", err)
	}
	if first.Context().Err() == nil {
		t.Error("the first holder still believes")
	}
	if err := first.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("the first holder's Release: %v; want ErrLost", err)
	}
	st, err := other.Inspect(t.Context(), "f")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Reveal() != second.Owner() {
		t.Errorf("Inspect: %+v, %v; want the second holder", st, err)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
