package zklock_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestOtherClients: ours and other clients' locks on the same paths exclude each other.
func TestOtherClients(t *testing.T) {
	t.Parallel()
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	atOnce(t, 16, on(z, map[string]func(*testing.T, *servers.ZooKeeper){
		"ZKLock":            sectionsWithZKLock,
		"Kazoo":             sectionsWithKazoo,
		"CuratorsNames":     curatorsNames,
		"CuratorsReadWrite": curatorsReadWrite,
	}))
}

// A counter is a file that holders add to; nothing but the lock protects it.
type counter struct{ path string }

func newCounter(t testing.TB) counter {
	t.Helper()
	c := counter{filepath.Join(t.TempDir(), "number")}
	if err := os.WriteFile(c.path, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c counter) value() (int, error) {
	text, err := os.ReadFile(c.path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func (c counter) add() error {
	n, err := c.value()
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	return os.WriteFile(c.path, []byte(strconv.Itoa(n+1)), 0o600)
}

// add has ours add so often, in several processes' views.
func addOurs(t *testing.T, all *sync.WaitGroup, z *servers.ZooKeeper, opts *zklock.Options, name string, c counter, views, rounds int) {
	for range views {
		l := lockerOn(t, driverOn(t, opts, z.Addr()), leasehold.Options{})
		all.Go(func() {
			// A busy machine may keep a server from answering for a while.
			for done, end := 0, time.Now().Add(2*time.Minute); done < rounds; {
				err := l.Do(t.Context(), name, func(context.Context) error { done++; return c.add() })
				if err != nil && time.Now().After(end) {
					t.Errorf("ours: %v", err)
					return
				}
			}
		})
	}
}

func (c counter) check(t *testing.T, want int) {
	t.Helper()
	if n, err := c.value(); err != nil || n != want {
		t.Errorf("the number is %d after %d sections: %v", n, want, err)
	}
}

func sectionsWithZKLock(t *testing.T, z *servers.ZooKeeper) {
	const views, rounds = 3, 60
	c := newCounter(t)
	var all sync.WaitGroup
	for _, opts := range []*zklock.Options{{Prefix: "/fleet"}, {Prefix: "/fleet", ReadWriteNames: true}} {
		addOurs(t, &all, z, opts, "stock", c, views, rounds)
	}
	for range views {
		conn := client(t, z.Addr())
		all.Go(func() {
			for range rounds {
				l := zk.NewLock(conn, "/fleet/stock", zk.WorldACL(zk.PermAll))
				if err := l.Lock(); err != nil {
					t.Errorf("zk.Lock: %v", err)
					return
				}
				if err := c.add(); err != nil {
					t.Error(err)
				}
				if err := l.Unlock(); err != nil {
					t.Errorf("zk.Lock: Unlock: %v", err)
				}
			}
		})
	}
	all.Wait()
	c.check(t, 3*views*rounds)
}

func sectionsWithKazoo(t *testing.T, z *servers.ZooKeeper) {
	const views, rounds = 2, 50
	python := servers.NeedPython(t, "kazoo")
	c := newCounter(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	addOurs(t, &all, z, &zklock.Options{Prefix: "/python"}, "stock", c, views, rounds)
	for range views {
		all.Go(func() {
			cmd := exec.CommandContext(ctx, python, "testdata/sections.py", z.Addr(), "/python/stock", c.path, strconv.Itoa(rounds))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("kazoo: %v\n%s", err, out)
			}
		})
	}
	all.Wait()
	c.check(t, 2*views*rounds)
}

// curatorsNames: nodes as Curator's InterProcessMutex makes them, with a dash-separated
// UUID, queue with ours in both directions.
func curatorsNames(t *testing.T, z *servers.ZooKeeper) {
	d := driverOn(t, nil, z.Addr())
	conn := client(t, z.Addr())
	const parent = "/leasehold/curator"
	ours, later := claimOn(t, d, "curator"), claimOn(t, d, "curator")
	granted(t, ours)
	theirs, err := conn.Create(parent+"/_c_6f1c1b1e-2d6f-4b8e-8d0a-5f3c2b1a0d9e-lock-", nil, 3, zk.WorldACL(zk.PermAll))
	if err != nil {
		t.Fatal(err)
	}
	refused(t, later)
	claimtest.Released(t, ours)
	wake := refused(t, later).Wake
	if err := conn.Delete(theirs, -1); err != nil {
		t.Fatal(err)
	}
	select { // what is known of the queue until then may be refused by
	case <-wake:
	case <-time.After(time.Minute):
		t.Fatal("nothing wakes the waiter")
	}
	granted(t, later)
}

// curatorsReadWrite: readers and writers as Curator's InterProcessReadWriteLock names them.
func curatorsReadWrite(t *testing.T, z *servers.ZooKeeper) {
	l := lockerOn(t, driverOn(t, &zklock.Options{ReadWriteNames: true}, z.Addr()), leasehold.Options{})
	conn := client(t, z.Addr())
	const parent, uuid = "/leasehold/rw", "/_c_6f1c1b1e-2d6f-4b8e-8d0a-5f3c2b1a0d9e-"
	lease := mustAcquire(t, l, "rw")
	if path := onlyNode(t, conn, "rw"); !strings.Contains(path, "-__WRIT__") {
		t.Errorf("a writer is called %q", path)
	}
	lease.Release(t.Context())
	reader := mustAcquire(t, l, "rw", leasehold.Shared())
	if path := onlyNode(t, conn, "rw"); !strings.Contains(path, "-__READ__") {
		t.Errorf("a reader is called %q", path)
	}
	theirs, err := conn.Create(parent+uuid+"__READ__", nil, 3, zk.WorldACL(zk.PermAll))
	if err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, l, "rw", leasehold.Shared()).Release(t.Context()) // beside their reader
	reader.Release(t.Context())
	if _, err := l.TryAcquire(t.Context(), "rw"); err == nil {
		t.Error("a writer of ours beside a reader of theirs")
	}
	if err := conn.Delete(theirs, -1); err != nil {
		t.Fatal(err)
	}
	if theirs, err = conn.Create(parent+uuid+"__WRIT__", nil, 3, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	for _, opts := range [][]leasehold.Option{nil, {leasehold.Shared()}, {leasehold.Limit(5)}} {
		if _, err := l.TryAcquire(t.Context(), "rw", opts...); err == nil {
			t.Errorf("ours beside a writer of theirs")
		}
	}
	if err := conn.Delete(theirs, -1); err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, l, "rw").Release(t.Context())
}
