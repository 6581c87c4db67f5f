package badday

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/table"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/stores"
)

var update = flag.Bool("update", false, "write the table into docs/bad-day.md")

const (
	// ttl is the default of a lease.
	ttl = 10 * time.Second
	// answers is how soon the service answers again.
	answers = 4 * time.Second
	// busy is what a busy machine adds.
	busy = time.Second
)

// allowed is what a busy machine makes of what the table promises.
func allowed(d time.Duration) time.Duration { return d + d/2 + busy }

// A walledStore is one behind firewalls.
type walledStore struct {
	url       string // by way of the firewalls
	direct    string // past them
	firewalls []*proxy.Proxy
}

// forget has all firewalls forget.
func (s *walledStore) forget(t testing.TB) {
	t.Helper()
	n := 0
	for _, f := range s.firewalls {
		n += f.Forget()
	}
	if n == 0 {
		t.Fatal("there was no connection to forget")
	}
}

// behind puts a firewall before each address.
func behind(t *testing.T, addrs ...string) (list string, all []*proxy.Proxy) {
	var names []string
	for _, addr := range addrs {
		p := servers.StartProxy(t, addr)
		all, names = append(all, p), append(names, p.Addr())
	}
	return strings.Join(names, ","), all
}

// plain is a store whose URL is form with its addresses.
func plain(t *testing.T, form string, addrs ...string) *walledStore {
	list, all := behind(t, addrs...)
	return &walledStore{fmt.Sprintf(form, list), fmt.Sprintf(form, strings.Join(addrs, ",")), all}
}

// The rows of the table. waits is what a waiter pays at the most whose store forgets just before the holder releases.
var rows = []struct {
	name  string
	waits time.Duration
	start func(t *testing.T) *walledStore
}{
	{"Redis", 5 * time.Second, func(t *testing.T) *walledStore { return plain(t, "redis://%s/0", servers.StartRedis(t).Addr()) }},
	{"Redis Cluster", 6 * time.Second, cluster},
	{"Redis, Sentinel", 6 * time.Second, sentinel},
	{"Redlock", 3 * time.Second, func(t *testing.T) *walledStore {
		return plain(t, "redlock://%s", servers.StartRedis(t).Addr(), servers.StartRedis(t).Addr(), servers.StartRedis(t).Addr())
	}},
	{"PostgreSQL", 3 * time.Second, func(t *testing.T) *walledStore {
		return plain(t, "postgres://postgres@%s/postgres", servers.StartPostgres(t).Addr())
	}},
	{"MySQL", 3 * time.Second, func(t *testing.T) *walledStore {
		return plain(t, "mysql://root@%s/locks", servers.StartMySQL(t).Addr())
	}},
	{"MariaDB", 3 * time.Second, func(t *testing.T) *walledStore {
		return plain(t, "mysql://root@%s/locks", servers.StartMariaDB(t).Addr())
	}},
	{"etcd, one endpoint", 3 * time.Second, func(t *testing.T) *walledStore {
		return plain(t, "etcd://%s/locks", servers.StartEtcd(t, servers.EtcdCurrent).Addr())
	}},
	{"etcd, three endpoints", 3 * time.Second, func(t *testing.T) *walledStore {
		var addrs []string
		for _, e := range servers.StartEtcdCluster(t, servers.EtcdCurrent, 3) {
			addrs = append(addrs, e.Addr())
		}
		return plain(t, "etcd://%s/locks", addrs...)
	}},
	{"ZooKeeper", 5 * time.Second, func(t *testing.T) *walledStore {
		return plain(t, "zookeeper://%s", servers.StartZooKeeper(t, servers.ZooKeeperOptions{}).Addr())
	}},
	{"NATS", 3 * time.Second, func(t *testing.T) *walledStore {
		return plain(t, "nats://%s/locks", servers.StartNATS(t, 1, "")[0].Addr())
	}},
	{"S3", 4 * time.Second, func(t *testing.T) *walledStore {
		s := servers.StartS3(t)
		list, all := behind(t, s.Addr())
		const form = "s3://%s:%s@locks/p?endpoint=http://%s"
		return &walledStore{fmt.Sprintf(form, servers.S3Key, servers.S3Secret, list), fmt.Sprintf(form, servers.S3Key, servers.S3Secret, s.Addr()), all}
	}},
	{"Kubernetes", 5 * time.Second, func(t *testing.T) *walledStore {
		servers.OnlyWithAll(t)
		k := servers.StartKubernetes(t)
		k.AddNamespace("locks")
		list, all := behind(t, k.Addr())
		return &walledStore{"kubernetes://locks?kubeconfig=" + k.Kubeconfig("admin", list), k.URL("locks"), all}
	}},
	{"memcached", 3 * time.Second, func(t *testing.T) *walledStore { return plain(t, "memcached://%s", servers.StartMemcached(t).Addr()) }},
	{"http://", 7 * time.Second, func(t *testing.T) *walledStore {
		return plain(t, "http://%s", serveStore(t, "redis://"+servers.StartRedis(t).Addr()+"/0"))
	}},
}

// cluster is one whose nodes tell clients of the firewalls before them.
func cluster(t *testing.T) *walledStore {
	nodes := servers.StartCluster(t, 3)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
	}
	s := plain(t, "redis+cluster://%s", addrs...)
	for i, n := range nodes {
		_, port, _ := strings.Cut(s.firewalls[i].Addr(), ":")
		n.Must(t, "CONFIG", "SET", "cluster-announce-port", port)
	}
	s.direct = s.url // whoever asks a node hears of the firewalls
	return s
}

// sentinel is a primary behind a firewall, and a sentinel behind another.
func sentinel(t *testing.T) *walledStore {
	r := servers.StartRedis(t)
	primary := servers.StartProxy(t, r.Addr())
	s := plain(t, "redis+sentinel://%s/mymaster", servers.StartLoneSentinel(t, primary.Addr()))
	s.direct, s.firewalls = "redis://"+r.Addr()+"/0", append(s.firewalls, primary)
	return s
}

// serveStore starts the command's service on a store, and returns its address.
func serveStore(t *testing.T, url string) (addr string) {
	t.Helper()
	addr = fmt.Sprintf("127.0.0.1:%d", servers.FreePorts(t, 1)[0])
	var said bytes.Buffer
	cmd := exec.Command(binary, "serve", "--listen", addr)
	cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+url)
	cmd.Stderr = &said
	ended, err := servers.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	for until := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get("http://" + addr + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return addr
			}
		}
		if time.Now().After(until) {
			t.Fatalf("the service is not ready: %v", err)
		}
	}
}

// acquires makes one call to the service, and reports whether it granted.
func acquires(addr, name string) (granted bool, answer string) {
	body := fmt.Sprintf(`{"name":%q,"ttl_ms":10000}`, name)
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Post("http://"+addr+"/v1/acquire", "application/json", strings.NewReader(body))
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body) // what is missing shows
	var a struct {
		Outcome string `json:"outcome"`
	}
	_ = json.Unmarshal(text, &a) // as that does
	return a.Outcome == "granted", string(text)
}

// open returns a Locker on a store.
func open(t *testing.T, url string, trace func(context.Context, leasehold.Event)) *leasehold.Locker {
	t.Helper()
	d, err := stores.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl, HandOver: -1, Trace: trace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestPageHasTheForgotten(t *testing.T) {
	var b strings.Builder
	b.WriteString("| store | lease of 10 s | the service answers within | extra wait, at most |\n|---|---|---|---|\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s | survives | %g s | %g s |\n", row.name, answers.Seconds(), row.waits.Seconds())
	}
	table.Check(t, "../../docs/bad-day.md", "forgotten: written by e2e/badday", b.String(), *update)
}

// many is how many leases are held: pools have that many connections at least where each carries a call.
const many = 6

// A firewall forgets all connections to a store, as one does that restarts: those that are open are
// silent for ever, and new ones pass.
func TestForgottenConnections(t *testing.T) {
	t.Parallel()
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if row.name == "MySQL" {
				servers.Long(t, "the connections are to MariaDB, too")
			}
			s := row.start(t)
			forgets(t, s, row.waits)
			if row.name == "Redlock" { // whose nodes have 50 ms for an answer, which a busy machine does not keep to
				return
			}
			for _, c := range locktest.Cases() {
				if c.Needs&locktest.NeedForget != 0 {
					t.Run(c.Name, func(t *testing.T) { c.Run(t, s.harness()) })
				}
			}
		})
	}
}

func forgets(t *testing.T, s *walledStore, waits time.Duration) {
	var renewed atomic.Int64
	holder := open(t, s.url, func(_ context.Context, e leasehold.Event) {
		if e.Step == leasehold.StepRenewed {
			renewed.Add(1)
		}
	})
	held := hold(t, holder, "held/")
	service := serveStore(t, s.url)
	all(many, func(i int) { acquires(service, fmt.Sprint("warm/", i)) })

	s.forget(t)
	forgotten := time.Now()
	renewed.Store(0)
	for n := 0; ; n++ {
		granted, answer := acquires(service, fmt.Sprint("after/", n))
		took := time.Since(forgotten)
		if granted {
			t.Logf("the service answers after %v, call %d", took.Round(10*time.Millisecond), n+1)
			if took > allowed(answers) {
				t.Errorf("the service answers after %v, want %v", took, answers)
			}
			break
		}
		t.Logf("after %v the service says %s", took.Round(10*time.Millisecond), answer)
		if took > 4*answers {
			t.Fatal("the service does not answer any more")
		}
	}
	time.Sleep(time.Until(forgotten.Add(ttl + busy))) // the leases of before are over unless renewed
	for _, lease := range held {
		if err := lease.Context().Err(); err != nil {
			t.Errorf("the lease of %q was lost: %v", lease.Name(), context.Cause(lease.Context()))
		}
	}
	t.Logf("%d renewals of %d leases", renewed.Load(), many)
	if renewed.Load() < many {
		t.Errorf("%d renewals since, want one of each lease at least", renewed.Load())
	}
	wait(t, s, waits)
}

// harness is one in which all firewalls forget.
func (s *walledStore) harness() locktest.Harness {
	return locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := stores.Open(t.Context(), s.url)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Forget: func(t testing.TB, _ driver.Driver) { s.forget(t) },
	}
}

func closed(c <-chan bool) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wait measures what a waiter pays when its connections are forgotten just before the holder releases.
func wait(t *testing.T, s *walledStore, most time.Duration) {
	queued := make(chan bool)
	var waits sync.Once
	holder, waiter := open(t, s.direct, nil), open(t, s.url, func(_ context.Context, e leasehold.Event) {
		if e.Step == leasehold.StepQueued {
			waits.Do(func() { close(queued) })
		}
	})
	lease := hold(t, holder, "waited for/")[0]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := make(chan error, 1)
	var granted time.Time
	go func() {
		name := lease.Name()
		lease, err := waiter.Acquire(ctx, name)
		// The servers of a busy machine answer late, and nodes of Redlock have 50 ms for it.
		for err != nil && ctx.Err() == nil && (!closed(queued) || errors.As(err, new(*quorum.NodesError))) {
			lease, err = waiter.Acquire(ctx, name)
		}
		granted = time.Now()
		if got <- err; err == nil {
			_ = lease.Release(context.Background()) // its answer matters to nobody
		}
	}()
	select {
	case <-queued:
	case err := <-got:
		t.Fatalf("the waiter does not wait: %v", err)
	}
	s.forget(t)
	released := time.Now()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatalf("release past the firewall: %v", err)
	}
	if err := <-got; err != nil {
		t.Fatalf("the waiter: %v", err)
	}
	paid := granted.Sub(released)
	t.Logf("the waiter pays %v", paid.Round(10*time.Millisecond))
	if paid > allowed(most) {
		t.Errorf("the waiter pays %v, want %v at the most", paid, most)
	}
}

func hold(t *testing.T, l *leasehold.Locker, prefix string) []*leasehold.Lease {
	t.Helper()
	held, errs := make([]*leasehold.Lease, many), make([]error, many)
	all(many, func(i int) {
		for range 20 { // on a busy machine nodes of Redlock miss their time
			if held[i], errs[i] = l.Acquire(t.Context(), fmt.Sprint(prefix, i)); errs[i] == nil {
				return
			}
		}
	})
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return held
}

// all calls f for each of n at once.
func all(n int, f func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { f(i) })
	}
	group.Wait()
}
