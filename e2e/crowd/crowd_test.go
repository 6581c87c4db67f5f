// Package crowd has several processes use one store at the same time: hundreds of waiters on each
// engine, workers below limits, holders of Keep, and programs that are the first. Most tests kill
// some of the processes.
package crowd

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

// An engine is what a crowd waits on.
type engine struct {
	name    string
	start   func(t *testing.T) (url string)
	waiters int
	unfair  bool // beyond the first waiters
	brief   bool // is in the short lane, with a tenth of the waiters
}

var engines = []engine{
	{name: "redis", start: func(t *testing.T) string { return "redis://" + servers.StartRedis(t).Addr() + "/0" }, waiters: 1000, brief: true},
	{name: "etcd", start: func(t *testing.T) string { return "etcd://" + servers.StartEtcd(t, servers.EtcdCurrent).Addr() }, waiters: 1000},
	{name: "zookeeper", start: func(t *testing.T) string {
		return "zookeeper://" + servers.StartZooKeeper(t, servers.ZooKeeperOptions{}).Addr()
	}, waiters: 1000},
	{name: "postgres", start: func(t *testing.T) string { return servers.StartPostgres(t, "max_connections=500").URL() }, waiters: 1000, brief: true},
	{name: "mariadb", start: func(t *testing.T) string { return "mysql://root@" + servers.StartMariaDB(t).Addr() + "/locks" }, waiters: 1000},
	{name: "mysql", start: func(t *testing.T) string { return "mysql://root@" + servers.StartMySQL(t).Addr() + "/locks" }, waiters: 1000},
	{name: "sqlite", start: func(t *testing.T) string { return "sqlite:" + t.TempDir() + "/locks.db" }, waiters: 1000},
	{name: "nats", start: func(t *testing.T) string { return "nats://" + servers.StartNATS(t, 1, "")[0].Addr() + "/locks" }, waiters: 1000},
	{name: "kubernetes", start: func(t *testing.T) string {
		k := servers.StartKubernetes(t)
		k.AddNamespace("crowd")
		return k.URL("crowd")
	}, waiters: 200, unfair: true},
	{name: "s3", start: func(t *testing.T) string { return servers.StartS3(t).URL("crowd") }, waiters: 50, unfair: true},
}

// patience bounds what takes seconds where nothing else runs.
const patience = 5 * time.Minute

// onEach runs a test on each engine, with as many waiters as the lane allows.
func onEach(t *testing.T, test func(t *testing.T, e engine, c crowded)) {
	binary, processes := crowd.Build(t, "./testdata/waiters"), 20
	if testing.Short() {
		processes = 5 // to start one costs more than its waiters
	}
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			switch {
			case !e.brief:
				servers.Long(t, "hundreds wait on each engine, of which two are in the short lane")
			case testing.Short():
				e.waiters /= 10
			}
			test(t, e, crowded{binary, e.start(t), processes})
		})
	}
}

// A crowded store has waiters.
type crowded struct {
	binary, url string
	processes   int // that the waiters are of
}

// begin has waiters wait for a lease, and returns them with what releases it.
func (c crowded) begin(t *testing.T, how string, waiters int) (f *crowd.Fleet, release func()) {
	t.Helper()
	d, err := stores.Open(t.Context(), c.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	locks, err := leasehold.New(d, &leasehold.Options{TTL: crowd.TTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	lease, err := locks.Acquire(t.Context(), crowd.Name)
	if err != nil {
		t.Fatal(err)
	}
	f = crowd.StartFleet(t, c.binary, crowd.Order{URL: c.url, How: how}, c.processes, waiters)
	f.Begin()
	f.Queued(patience)
	return f, func() {
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release beside %d waiters: %v", waiters, err)
		}
	}
}

// However many wait, none of them fails: all are served, one after the other, in the order in which they came.
func TestCrowdIsServed(t *testing.T) {
	onEach(t, func(t *testing.T, e engine, c crowded) {
		f, release := c.begin(t, "", e.waiters)
		release()
		turns, err := f.Turns(e.waiters, patience)
		if err != nil {
			t.Error(err)
		}
		if faults := crowd.Faults(turns, !e.unfair); len(faults) > 0 {
			t.Errorf("%d faults, such as\n%s", len(faults), strings.Join(faults[:min(5, len(faults))], "\n"))
		}
	})
}

// Places outlive their process for seconds, all of them at once: whoever is left is served soon, though hundreds of the
// dead stand before it.
func TestCrowdThatDies(t *testing.T) {
	onEach(t, func(t *testing.T, e engine, c crowded) {
		f, release := c.begin(t, "", e.waiters)
		left := f.Members[c.processes-1]
		for _, m := range f.Members {
			if m != left {
				m.Kill()
			}
		}
		release()
		if _, err := f.TurnsOf(left, left.Waiters, patience); err != nil {
			t.Error(err)
		}
	})
}

// A fleet campaigns for one leader. When the leader's process is killed, one of another leads.
func TestLeaderOfACrowd(t *testing.T) {
	onEach(t, func(t *testing.T, e engine, c crowded) {
		f, release := c.begin(t, crowd.Lead, e.waiters/2)
		release()
		turns, err := f.Turns(1, patience)
		if err != nil {
			t.Fatal(err)
		}
		first := turns[0]
		f.Members[first.Member].Kill()
		if turns, err = f.Turns(2, patience); err != nil {
			t.Fatal(err)
		}
		if next := turns[1]; next.Member == first.Member || next.Token <= first.Token {
			t.Errorf("after %+v leads %+v", first, next)
		}
	})
}
