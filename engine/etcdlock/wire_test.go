package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/rivals"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// clientOf is a client of members until t ends.
func clientOf(t testing.TB, members ...*servers.Etcd) *clientv3.Client {
	t.Helper()
	return clientAt(t, servers.Endpoints(members...)...)
}

func clientAt(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := newClient(endpoints)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func driverOn(t testing.TB, client *clientv3.Client, opts *etcdlock.Options) *etcdlock.Driver {
	t.Helper()
	d, err := etcdlock.New(client, opts)
	if err != nil {
		t.Fatalf("etcdlock.New: %v", err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func useNamespace(client *clientv3.Client, prefix string) {
	client.KV = namespace.NewKV(client.KV, prefix)
	client.Watcher = namespace.NewWatcher(client.Watcher, prefix)
	client.Lease = namespace.NewLease(client.Lease, prefix)
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

// All exclude each other on one name: clientv3/concurrency with its own and with a shared
// session, "etcdctl lock", and ours, exclusive and shared.
func TestExcludesOtherClients(t *testing.T) {
	t.Parallel()
	for _, version := range []string{servers.EtcdDebian, servers.EtcdCurrent} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testExcludesOtherClients(t, servers.StartEtcd(t, version))
		})
	}
}

func testExcludesOtherClients(t *testing.T, e *servers.Etcd) {
	const rounds, few = 25, 5
	const prefix, name = "/locks", "contest"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var section rivals.Section
	theirs := func() error { return section.Alone(ctx) }
	opts := &etcdlock.Options{Prefix: prefix}
	all := section.Ours(ctx, name, rounds,
		lockerOn(t, driverOn(t, clientOf(t, e), opts), leasehold.Options{}),
		lockerOn(t, driverOn(t, clientOf(t, e), opts), leasehold.Options{HandOver: -1}))
	for _, who := range []string{"concurrency", "another concurrency"} {
		s, err := concurrency.NewSession(clientOf(t, e), concurrency.WithTTL(10))
		if err != nil {
			t.Fatalf("NewSession: %v", err)
		}
		all[who] = rivals.Rival{Rounds: rounds, Enter: func() error {
			m := concurrency.NewMutex(s, prefix+"/"+name)
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return errors.Join(theirs(), m.Unlock(ctx))
		}}
	}
	all["etcdctl lock"] = rivals.Rival{ // a process each time
		Rounds: few, Enter: func() error { return etcdctlLock(t, e, prefix+"/"+name, theirs) },
	}
	section.Contend(t, 1, all)
}

// etcdctlLock runs section while "etcdctl lock" holds name.
func etcdctlLock(t *testing.T, e *servers.Etcd, name string, section func() error) error {
	cmd := e.EtcdctlCommand(t, "lock", "--ttl", "10", name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n') // the key: it holds now
	if err == nil && !strings.HasPrefix(line, name+"/") {
		err = fmt.Errorf("etcdctl says %q", line)
	}
	if err == nil {
		err = section()
	}
	_ = cmd.Process.Signal(syscall.SIGINT) // it gives the lock up
	_ = cmd.Wait()                         // and tells of the signal
	return err
}

// A holder that is another client's shows as one, keeps ours out, and can be evicted. No
// name is in the way of another: "etcdctl lock" nests them.
func TestForeignHolder(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	client := clientOf(t, e)
	d := driverOn(t, client, &etcdlock.Options{NoPrefix: true})
	l := lockerOn(t, d, leasehold.Options{})
	s, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		t.Fatalf("NewSession: %v", err)
	}
	foreign := concurrency.NewMutex(s, "foreign")
	if err := foreign.Lock(t.Context()); err != nil {
		t.Fatalf("concurrency: %v", err)
	}
	_, err = l.TryAcquire(t.Context(), "foreign")
	busy, ok := errors.AsType[*leasehold.BusyError](err)
	owner := fmt.Sprintf("%x", int64(s.Lease()))
	if !ok || busy.Holder.Owner.Reveal() != owner {
		t.Fatalf("TryAcquire: %v; want busy with the foreign holder", err)
	}
	st, err := d.Inspect(t.Context(), "foreign")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Reveal() != owner || st.Holders[0].Left <= 0 {
		t.Errorf("Inspect: %+v, %v; want the foreign holder", st, err)
	}
	list, _, err := d.List(t.Context(), "for", "", 100)
	if err != nil || len(list) != 1 || list[0].Resource != "foreign" {
		t.Errorf("List: %+v, %v; want the foreign holder", list, err)
	}
	nested := concurrency.NewMutex(s, "outer/inner")
	if err := nested.Lock(t.Context()); err != nil {
		t.Fatalf("concurrency: %v", err)
	}
	if err := l.Do(t.Context(), "outer", func(context.Context) error { return nil }, leasehold.Wait(0)); err != nil {
		t.Errorf("another name is in the way: %v", err)
	}
	if err := d.Evict(t.Context(), "foreign", owner, "test"); err != nil {
		t.Errorf("Evict of a foreign holder: %v", err)
	}
	lease, err := l.TryAcquire(t.Context(), "foreign")
	if err != nil {
		t.Fatalf("TryAcquire after Evict: %v", err)
	}
	if err := foreign.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("concurrency beside our lease: %v; want ErrLocked", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// A client with a namespace has keys of its own.
func TestNamespace(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	plain, spaced := clientOf(t, e), clientOf(t, e)
	useNamespace(spaced, "tenant/")
	l := lockerOn(t, driverOn(t, spaced, nil), leasehold.Options{})
	other := lockerOn(t, driverOn(t, plain, nil), leasehold.Options{})
	lease, err := l.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	if err := other.Do(t.Context(), "a", func(context.Context) error { return nil }, leasehold.Wait(0)); err != nil {
		t.Errorf("outside of the namespace: %v", err)
	}
	resp, err := plain.Get(t.Context(), "tenant/leasehold/a/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 || driver.FenceOf(resp.Kvs[0].CreateRevision) != lease.Token() {
		t.Fatalf("the key: %v, %v; want one whose create revision is the fence", resp, err)
	}
	if _, err := plain.Delete(t.Context(), string(resp.Kvs[0].Key)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(2 * time.Second):
		t.Error("the holder was not told that its key was deleted")
	}
}
