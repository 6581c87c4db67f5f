// Package crowd has hundreds wait for one lock on each engine.
package crowd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

// crowd is how many wait; for each of their calls the core has a bound of 5 s, which waiting outlasts.
const (
	crowd   = 500
	waiting = 8 * time.Second
)

// brief are the engines of the short lane: one tells waiters, one of those that poll has its calls take turns.
var brief = []string{"redis", "postgres"}

// However many wait, none of them fails: an engine that answers others is within reach. One that does not answer at
// all fails a first call, as ever.
func TestCrowdFailsNobody(t *testing.T) {
	for name, start := range map[string]func() (url string){
		"redis":     func() string { return "redis://" + servers.StartRedis(t).Addr() + "/0" },
		"etcd":      func() string { return "etcd://" + servers.StartEtcd(t, servers.EtcdCurrent).Addr() },
		"zookeeper": func() string { return "zookeeper://" + servers.StartZooKeeper(t, servers.ZooKeeperOptions{}).Addr() },
		"postgres":  func() string { return "postgres://postgres@" + servers.StartPostgres(t).Addr() + "/postgres" },
		"mariadb":   func() string { return "mysql://root@" + servers.StartMariaDB(t).Addr() + "/locks" },
		"sqlite":    func() string { return "sqlite:" + t.TempDir() + "/locks.db" },
		"nats":      func() string { return "nats://" + servers.StartNATS(t, 1, "")[0].Addr() + "/locks" },
	} {
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(brief, name) {
				servers.Long(t, "hundreds wait on one engine of each kind")
			}
			wait(t, start())
		})
	}
}

func wait(t *testing.T, url string) {
	holds := locker(t, url)
	lease, err := holds().Acquire(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	waits := locker(t, url)
	errDone := errors.New("waited long enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), waiting, errDone)
	defer cancel()
	var failed sync.Map
	var all sync.WaitGroup
	for range crowd {
		l := waits()
		all.Go(func() {
			if _, err := l.Acquire(ctx, "r"); !errors.Is(err, errDone) {
				failed.Store(fmt.Sprint(err), true)
				t.Fail()
			}
		})
	}
	all.Wait()
	failed.Range(func(err, _ any) bool { t.Errorf("Acquire: %v", err); return true })
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release beside %d waiters: %v", crowd, err)
	}
}

// locker opens the store, and returns what makes Lockers on it.
func locker(t *testing.T, url string) func() *leasehold.Locker {
	d, err := stores.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	opts := &leasehold.Options{TTL: 30 * time.Second, HandOver: -1}
	if f := d.Features(); f.SessionTTL > 0 {
		opts.TTL = f.SessionTTL
	}
	return func() *leasehold.Locker {
		l, err := leasehold.New(d, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
}
