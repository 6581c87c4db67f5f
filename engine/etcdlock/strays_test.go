package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// started starts e again, and waits until clients have a connection to it: after one that was refused they pause.
func started(t testing.TB, e *servers.Etcd, clients ...*clientv3.Client) {
	t.Helper()
	e.Start(t)
	for _, c := range clients {
		for end := time.Now().Add(time.Minute); ; {
			_, err := c.Get(t.Context(), "anything")
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("it was started a minute ago: %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// former has e serve the data again that it has now, after change. Its revision is soon above all that were
// seen, so that nobody can tell by that.
func former(t testing.TB, e *servers.Etcd, clients []*clientv3.Client, change func()) {
	t.Helper()
	e.Kill()
	before := servers.Copied(t, e.Data())
	started(t, e, clients...)
	change()
	e.Kill()
	servers.PutBack(t, e.Data(), before)
	started(t, e, clients...)
	writeElsewhere(t, e)
}

// restored is former by the tool for that.
func restored(t testing.TB, e *servers.Etcd, clients []*clientv3.Client, change func()) {
	t.Helper()
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	e.Etcdctl(t, "snapshot", "save", snapshot)
	change()
	e.Kill()
	e.Forget()
	peer := fmt.Sprint("http://127.0.0.1:", e.Peer)
	e.Etcdctl(t, "snapshot", "restore", snapshot, "--data-dir", e.Data(), "--name", e.Name, "--initial-cluster", e.Name+"="+peer, "--initial-advertise-peer-urls", peer)
	started(t, e, clients...)
	writeElsewhere(t, e)
}

func writeElsewhere(t testing.TB, e *servers.Etcd) {
	t.Helper()
	client := clientOf(t, e)
	for range 20 {
		if _, err := client.Put(t.Context(), "elsewhere", ""); err != nil {
			t.Fatal(err)
		}
	}
}

// A lease that was released is there again when the cluster's data is that of before, in a session
// that its driver keeps alive for others. It does not stay there.
func TestReleasedBeforeTheDataWentBack(t *testing.T) {
	t.Parallel()
	for _, version := range []string{servers.EtcdDebian, servers.EtcdCurrent} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			const ttl = 15 * time.Second
			e := servers.StartEtcd(t, version)
			clients := []*clientv3.Client{clientOf(t, e), clientOf(t, e)}
			one := lockerOn(t, driverOn(t, clients[0], nil), leasehold.Options{TTL: ttl})
			other := lockerOn(t, driverOn(t, clients[1], nil), leasehold.Options{TTL: ttl})
			warm, err := one.Acquire(t.Context(), "warm", leasehold.TTL(2*time.Second)) // has a stream opened
			if err != nil {
				t.Fatal(err)
			}
			if err := warm.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			var held []*leasehold.Lease
			for _, name := range []string{"kept", "a", "b"} {
				lease, err := one.Acquire(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, lease)
			}
			goBack := former
			if version == servers.EtcdDebian { // which etcdctl belongs to
				goBack = restored
			}
			goBack(t, e, clients, func() {
				for _, lease := range held[1:] {
					if err := lease.Release(t.Context()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
			for name, l := range map[string]*leasehold.Locker{"a": other, "b": one} {
				if lease, err := l.Acquire(t.Context(), name, leasehold.Wait(time.Minute)); err != nil {
					t.Errorf("Acquire of %s: %v", name, err)
				} else if err := lease.Release(t.Context()); err != nil {
					t.Errorf("Release of %s: %v", name, err)
				}
			}
			if held[0].Context().Err() != nil {
				t.Errorf("what was held before and after: %v", context.Cause(held[0].Context()))
			}
		})
	}
}

// A key of before, shared, is not taken for that of an exclusive lease that came after it, of the same name.
func TestKeyOfBefore(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Minute // to go back takes a busy machine most of one
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	client := clientOf(t, e)
	d := driverOn(t, client, nil)
	claimed := func(name string, mode driver.Mode, ttl time.Duration) driver.Claim {
		c := claimtest.New(t, d, driver.Request{Resource: name, Owner: fmt.Sprint(name, mode), Mode: mode, TTL: ttl})
		claimtest.Granted(t, c)
		return c
	}
	claimed("warm", driver.Exclusive, 2*time.Second) // has a stream opened
	more, shared := claimed("more", driver.Exclusive, ttl), claimed("a", driver.Shared, ttl)
	var alone driver.Claim
	former(t, e, []*clientv3.Client{client}, func() {
		claimtest.Released(t, shared)
		alone = claimed("a", driver.Exclusive, ttl)
	})
	for end := time.Now().Add(time.Minute); ; {
		renewals := []driver.Renewal{{Claim: more, TTL: ttl}, {Claim: alone, TTL: ttl}}
		d.RenewAll(t.Context(), renewals)
		if err := renewals[0].Err; err != nil {
			t.Errorf("Renew of what was held before and after: %v", err)
		}
		failed := renewals[1].Err
		if errors.Is(failed, driver.ErrLost) {
			break
		}
		if failed != nil || time.Now().After(end) {
			t.Fatalf("Renew by the key of a former shared lease: %v; want ErrLost", failed)
		}
	}
	queueOf(t, clientOf(t, e), "a", 0)
}

// A driver that has seen later revisions than the cluster has now goes on with what it holds, and asks no
// more than before.
func TestRevisionsWentBack(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var counts tap
	var asked atomic.Int64
	count := func(_ *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		asked.Add(1)
		return send(ctx)
	}
	counts.txn.Store(&count)
	client := counts.client(t, e)
	l := lockerOn(t, driverOn(t, client, nil), leasehold.Options{TTL: ttl})
	kept, err := l.Acquire(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	e.Kill()
	before := servers.Copied(t, e.Data())
	started(t, e, client)
	for range 20 {
		if err := l.Do(t.Context(), "a", func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	e.Kill()
	servers.PutBack(t, e.Data(), before)
	started(t, e, client)
	if err := l.Do(t.Context(), "a", func(context.Context) error { return nil }); !errors.Is(err, etcdlock.ErrFenceRegressed) {
		t.Errorf("Acquire: %v; want ErrFenceRegressed", err)
	}
	const span, most = 3 * time.Second, 60
	asked.Store(0)
	time.Sleep(span)
	if n := asked.Load(); n > most {
		t.Errorf("%d requests in %v", n, span)
	}
	if kept.Context().Err() != nil {
		t.Errorf("what was held before and after: %v", context.Cause(kept.Context()))
	}
}

// Who waited then, and waits still, is granted in turn: what the watch goes on from is a revision that the
// cluster has not reached again.
func TestWaitsWhileTheDataGoesBack(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	clients := []*clientv3.Client{clientOf(t, e), clientOf(t, e)}
	holder := lockerOn(t, driverOn(t, clients[0], nil), leasehold.Options{TTL: ttl})
	waiter := lockerOn(t, driverOn(t, clients[1], nil), leasehold.Options{TTL: 10 * time.Second})
	lease, err := holder.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- waiter.Do(t.Context(), "a", func(context.Context) error { return nil }) }()
	queueOf(t, clientOf(t, e), "a", 2)
	e.Kill()
	before := servers.Copied(t, e.Data())
	started(t, e, clients...)
	for range 20 {
		for _, l := range []*leasehold.Locker{holder, waiter} {
			if err := l.Do(t.Context(), "b", func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.Kill()
	servers.PutBack(t, e.Data(), before)
	started(t, e, clients...)
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Errorf("the waiter: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the waiter is not granted")
	}
}

// What was given up because its fence went back is not granted to the next attempt, nor are fences below those that
// the driver has given.
func TestRevisionsWentBackForTheNextAttempt(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	var taps tap
	client := taps.client(t, e)
	d := driverOn(t, client, nil)
	l := lockerOn(t, d, leasehold.Options{TTL: ttl})
	e.Kill()
	before := servers.Copied(t, e.Data())
	started(t, e, client)
	var last uint64
	for range 20 {
		lease, err := l.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		last = lease.Token()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.Kill()
	servers.PutBack(t, e.Data(), before)
	started(t, e, client)
	refused := 0
	for round := range 3 {
		c := claimOf(t, d, driver.Request{Resource: "a", Owner: fmt.Sprint(round), TTL: ttl})
		for try := range 3 {
			taps.txn.Store(nil)
			if round == 0 && try == 0 { // what was put is found by the next attempt
				taps.loseAnswers("a", func(context.Context) error { return status.Error(codes.Unavailable, "the answer is lost") })
			}
			var g driver.Grant
			err := within(t, 10*time.Second, func(ctx context.Context) (err error) { g, err = c.Try(ctx); return err })
			if errors.Is(err, etcdlock.ErrFenceRegressed) {
				refused++
			}
			if err == nil && g.Fence < last {
				t.Errorf("attempt %d of %d: granted with fence %d by the driver that has given %d", try, round, g.Fence, last)
			}
		}
		if err := released(t, c, 10*time.Second); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Error(err)
		}
	}
	if refused == 0 {
		t.Error("no attempt is refused with ErrFenceRegressed")
	}
}
