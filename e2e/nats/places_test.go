package nats

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// over is what is sent when a waiter has released.
const over = 0

// waits begins to wait in a Locker of its own, and returns when it was told so and the bucket shows n waiters. The
// number is sent when the waiter is served, and the lease is then released.
func waits(t *testing.T, d, look driver.Driver, n int, served chan<- int) {
	t.Helper()
	queued := make(chan struct{})
	is := sync.OnceFunc(func() { close(queued) })
	l, err := leasehold.New(d, &leasehold.Options{
		TTL: ttl, HandOver: -1, Trace: locktest.On(leasehold.StepQueued, func(leasehold.Event) { is() }),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		lease, err := l.Acquire(context.Background(), "a")
		if err != nil {
			t.Errorf("waiter %d: %v", n, err)
			served <- -n
			return
		}
		served <- n
		if err := lease.Release(context.Background()); err != nil {
			t.Errorf("release of waiter %d: %v", n, err)
		}
		served <- over
	}()
	select {
	case <-queued:
	case <-time.After(time.Minute):
		t.Fatalf("waiter %d is not queued", n)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		st, err := look.(driver.Operator).Inspect(t.Context(), "a")
		if err == nil && len(st.Waiters) == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d waiters, %v; want %d", len(st.Waiters), err, n)
		}
	}
}

// inOrder fails unless all of n are served, in their order.
func inOrder(t *testing.T, served <-chan int, n int) {
	t.Helper()
	for want, ended := 1, 0; want <= n || ended < n; {
		select {
		case got := <-served:
			switch got {
			case over:
				ended++
			case want:
				want++
			default:
				t.Fatalf("waiter %d was served when it was the turn of %d", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("waiter %d is not served", want)
		}
	}
}

// Waiters keep their places and their order while the server is away, for longer than their process may be silent.
func TestPlacesOutlastTheServer(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	url := urlOf([]*servers.NATS{s})
	var drivers []driver.Driver
	for range 3 {
		d := open(t, url)
		t.Cleanup(func() { d.Close() })
		drivers = append(drivers, d)
	}
	holder := claim(t, drivers[0], "a", "holder")
	claimtest.Granted(t, holder)
	const waiters = 12
	served := make(chan int, waiters)
	for i := range waiters {
		waits(t, drivers[i%len(drivers)], drivers[0], i+1, served)
	}
	s.Kill()
	time.Sleep(10 * time.Second)
	s.Begin()
	s.Ready()
	claimtest.Released(t, holder)
	inOrder(t, served, waiters)
}

// A bucket without markers has places in the record, as those that are made one by one would each leave something.
func TestPlacesInABucketWithoutMarkers(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	js := connected(t, s)
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "locks"})
	if err != nil {
		t.Fatal(err)
	}
	first, second := on(t, js), on(t, connected(t, s))
	holder := claim(t, first, "a", "holder")
	claimtest.Granted(t, holder)
	const waiters = 4
	served := make(chan int, waiters)
	for i := range waiters {
		waits(t, []driver.Driver{first, second}[i%2], first, i+1, served)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil || len(keys) != 1 {
		t.Errorf("the bucket has the keys %q, %v; want one", keys, err)
	}
	claimtest.Released(t, holder)
	inOrder(t, served, waiters)
}

// A waiter that died delays claims that do not wait for three times Place, and not for the day that the server keeps
// leases longer than needed.
func TestDeadWaiterDelaysNewcomersBriefly(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	js := connected(t, s)
	if err := natslock.CreateBucket(t.Context(), js, "locks", 1); err != nil {
		t.Fatal(err)
	}
	d, dying := on(t, js), connected(t, s)
	holder := claim(t, d, "a", "holder")
	claimtest.Granted(t, holder)
	dead, err := natslock.New(dying, "locks", &natslock.Options{Options: caslock.Options{Place: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	queues(t, claimtest.New(t, dead, driver.Request{Resource: "a", Owner: "dead", TTL: ttl, Queue: true}))
	dying.Conn().Close()
	claimtest.Released(t, holder)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		_, err := try(t, claim(t, d, "a", "newcomer"), 5*time.Second)
		switch {
		case err == nil:
			return
		case !errors.Is(err, driver.ErrBusy) || time.Now().After(end):
			t.Fatalf("Try: %v", err)
		}
	}
}

// A behind is JetStream of which a replica that has missed the last places lists them, for a number of times.
type behind struct {
	jetstream.JetStream
	times *atomic.Int32
}

func (b behind) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	kv, err := b.JetStream.KeyValue(ctx, bucket)
	return behindBucket{kv, b.times}, err
}

type behindBucket struct {
	jetstream.KeyValue
	times *atomic.Int32
}

func (b behindBucket) Watch(ctx context.Context, keys string, opts ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	if keys != "a.*" || b.times.Add(-1) < 0 {
		return b.KeyValue.Watch(ctx, keys, opts...)
	}
	all := make(chan jetstream.KeyValueEntry, 1)
	all <- nil // that was all
	return emptyList{updates: all, stop: sync.OnceFunc(func() { close(all) })}, nil
}

type emptyList struct {
	jetstream.KeyWatcher
	updates chan jetstream.KeyValueEntry
	stop    func()
}

func (l emptyList) Updates() <-chan jetstream.KeyValueEntry { return l.updates }
func (l emptyList) Stop() error                             { l.stop(); return nil }

// Nobody passes a waiter whose place a replica has missed, which is asked for the places.
func TestNobodyPassesBesideAReplicaThatIsBehind(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	first := open(t, urlOf([]*servers.NATS{s}))
	t.Cleanup(func() { first.Close() })
	holder := claim(t, first, "a", "holder")
	claimtest.Granted(t, holder)
	waiter := claimtest.New(t, first, driver.Request{Resource: "a", Owner: "waiter", TTL: ttl, Queue: true})
	claimtest.Refused(t, waiter)
	claimtest.Released(t, holder)
	var times atomic.Int32
	d := on(t, behind{connected(t, s), &times})
	times.Store(3)
	claimtest.Refused(t, claim(t, d, "a", "passes by"))
	claimtest.Granted(t, waiter)
}
