package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/etcdlock"
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
	const rounds = 25
	const prefix, name = "/locks", "contest"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var inside, sharers atomic.Int32
	counter := 0 // the race detector sees it if the locks do not order holders
	section := func() error {
		if n, s := inside.Add(1), sharers.Load(); n != 1 || s != 0 {
			return fmt.Errorf("%d exclusive holders and %d sharers at once", n, s)
		}
		counter++
		time.Sleep(200 * time.Microsecond)
		inside.Add(-1)
		return nil
	}
	sharing := func(context.Context) error {
		sharers.Add(1)
		defer sharers.Add(-1)
		if n := inside.Load(); n != 0 {
			return fmt.Errorf("a sharer beside %d exclusive holders", n)
		}
		time.Sleep(200 * time.Microsecond)
		return nil
	}
	opts := &etcdlock.Options{Prefix: prefix}
	ours := []*leasehold.Locker{
		lockerOn(t, driverOn(t, clientOf(t, e), opts), leasehold.Options{}),
		lockerOn(t, driverOn(t, clientOf(t, e), opts), leasehold.Options{HandOver: -1}),
	}
	theirs := func() func() error {
		s, err := concurrency.NewSession(clientOf(t, e), concurrency.WithTTL(10))
		if err != nil {
			t.Fatalf("NewSession: %v", err)
		}
		return func() error {
			m := concurrency.NewMutex(s, prefix+"/"+name)
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return errors.Join(section(), m.Unlock(ctx))
		}
	}
	contenders := map[string]func() error{
		"concurrency":         theirs(),
		"another concurrency": theirs(),
		"etcdctl lock":        func() error { return etcdctlLock(t, e, prefix+"/"+name, section) },
		"ours":                func() error { return ours[0].Do(ctx, name, func(context.Context) error { return section() }) },
		"ours, without local hand-over": func() error {
			return ours[1].Do(ctx, name, func(context.Context) error { return section() })
		},
		"ours, shared": func() error { return ours[1].Do(ctx, name, sharing, leasehold.Shared()) },
	}
	var running sync.WaitGroup
	var sections atomic.Int32
	for who, once := range contenders {
		turns := rounds
		if who == "etcdctl lock" { // a process each time
			turns = 5
		}
		running.Go(func() {
			for range turns {
				if err := once(); err != nil {
					t.Errorf("%s: %v", who, err)
					return
				}
				if who != "ours, shared" {
					sections.Add(1)
				}
			}
		})
	}
	running.Wait()
	if want := int(sections.Load()); counter != want || want != 4*rounds+5 {
		t.Errorf("%d sections were counted and %d made, want %d", counter, want, 4*rounds+5)
	}
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
	_ = cmd.Process.Signal(interrupt) // it gives the lock up
	_ = cmd.Wait()                    // and tells of the signal
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
	if !ok || string(busy.Holder.Owner) != owner {
		t.Fatalf("TryAcquire: %v; want busy with the foreign holder", err)
	}
	st, err := d.Inspect(t.Context(), "foreign")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner != owner || st.Holders[0].Left <= 0 {
		t.Errorf("Inspect: %+v, %v; want the foreign holder", st, err)
	}
	list, err := d.List(t.Context(), "for")
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
