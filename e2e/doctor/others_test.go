package doctor_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/serve"
	"github.com/leasehold-go/leasehold/stores"
)

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	store := "zookeeper://" + z.Addr()
	one := examine(t, store)
	one.fine("warning")
	one.has("quorum", "warning", "one member")
	one.has("version", "ok", "standalone")
	dump, err := z.Ask("wchp")
	if err != nil {
		t.Fatal(err)
	}
	absent(t, dump)
	examine(t, store+"/nosuch").has("rights", "error", "chroot does not exist")
	resume := z.Pause()
	away(t, store)
	resume()
	z.Kill()
	away(t, store)
}

func TestZooKeeperEnsemble(t *testing.T) {
	t.Parallel()
	all := servers.StartZooKeepers(t, 3, servers.ZooKeeperOptions{})
	var addrs []string
	for _, z := range all {
		addrs = append(addrs, z.Addr())
	}
	store := "zookeeper://" + strings.Join(addrs, ",")
	examine(t, store).fine("ok", "quorum")
	all[0].Kill()
	two := examine(t, store)
	two.has("server", "warning", addrs[0], "does not answer")
	two.has("rights", "ok")
	all[1].Kill()
	away(t, store)
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	all := servers.StartEtcdCluster(t, servers.EtcdCurrent, 3)
	var addrs []string
	for _, e := range all {
		addrs = append(addrs, e.Addr())
	}
	store := "etcd://" + strings.Join(addrs, ",")
	still := held(t, store)
	examine(t, store).fine("ok", "quorum")
	absent(t, all[0].Etcdctl(t, "get", "--prefix", "--keys-only", ""))
	still()
	resume := all[0].Pause()
	two := examine(t, store)
	two.has("server", "warning", addrs[0], "does not answer")
	two.has("rights", "ok")
	more := all[1].Pause()
	away(t, store)
	more()
	resume()
}

func TestEtcdAlone(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdDebian)
	store := "etcd://" + e.Addr()
	one := examine(t, store)
	one.has("version", "warning", "CVE-2026-33413")
	one.has("quorum", "warning", "one member")
	for _, line := range []string{
		"user add root:" + canary, "user grant-role root root", "role add none", "user add reads:" + canary,
		"role add reads", "role grant-permission reads --prefix=true read leasehold/", "user grant-role reads reads", "auth enable",
	} {
		e.Etcdctl(t, strings.Fields(line)...)
	}
	users := examine(t, "etcd://root:"+canary+"@"+e.Addr())
	users.has("rights", "ok")
	users.has("version", "warning", "3.4 with users")
	examine(t, "etcd://reads:"+canary+"@"+e.Addr()).has("rights", "error", "refuses the user")
	examine(t, "etcd://reads:x"+canary+"@"+e.Addr()).has("reach", "error", "refuses the user")
	e.Kill()
	away(t, store)
}

// What etcd 3.4 signs ends while it is used.
func TestEtcdSignedTokens(t *testing.T) {
	t.Parallel()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte, err error) string {
		path := filepath.Join(dir, name)
		if err = errors.Join(err, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	public := write("public", "PUBLIC KEY", der, err)
	der, err = x509.MarshalPKCS8PrivateKey(private)
	secret := write("private", "PRIVATE KEY", der, err)
	for version, level := range map[string]string{servers.EtcdDebian: "error", servers.EtcdCurrent: "ok"} {
		e := servers.StartEtcd(t, version, "--auth-token", "jwt,pub-key="+public+",priv-key="+secret+",sign-method=RS256,ttl=1h", "--bcrypt-cost=4") // the doctor logs in, and waits for no login long
		for _, line := range []string{"user add root:" + canary, "user grant-role root root", "auth enable"} {
			e.Etcdctl(t, strings.Fields(line)...)
		}
		found := examine(t, "etcd://root:"+canary+"@"+e.Addr())
		if level == "error" {
			found.has("version", level, "JWT", "--auth-token simple")
		} else {
			found.has("version", level)
		}
	}
}

func TestMemcached(t *testing.T) {
	t.Parallel()
	m, other := servers.StartMemcached(t, "-m", "2"), servers.StartMemcached(t)
	store := "memcached://" + m.Addr() + "," + other.Addr()
	still := held(t, store)
	examine(t, store).fine("ok", "eviction", "persistence", "clock")
	for _, s := range []*servers.Memcached{m, other} {
		absent(t, s.Must(t, "lru_crawler metadump all"))
	}
	still()
	big := strings.Repeat("x", 100_000)
	for i := range 200 {
		m.Must(t, "set fill"+strings.Repeat("y", i)+" 0 0 100000\r\n"+big)
	}
	examine(t, store).has("eviction", "warning", m.Addr(), "evicted")
	other.Kill()
	examine(t, store).has("server", "error", other.Addr())
	resume := m.Pause()
	away(t, store)
	resume()
	m.Kill()
	away(t, store)
}

// Through a service the doctor sees what the service sees of its engine, as far as it is told.
func TestService(t *testing.T) {
	t.Parallel()
	away(t, "http://127.0.0.1:1")
	r := servers.StartRedis(t, durable...)
	d, err := stores.Open(t.Context(), "redis://"+r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var strange atomic.Bool
	service, err := serve.New(d, &serve.Options{Client: func(*http.Request) (*serve.Client, error) {
		rule := serve.Rule{Rights: []serve.Right{serve.View, serve.Lock}}
		if strange.Load() {
			rule.Prefix = "other/"
		}
		return &serve.Client{Name: "c", Rules: []serve.Rule{rule}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	server := httptest.NewServer(service)
	defer server.Close()

	still := held(t, server.URL)
	examine(t, server.URL).fine("ok", "persistence", "eviction", "replicas", "clock")
	r.Must(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	examine(t, server.URL).has("eviction", "warning", "allkeys-lru")
	r.Must(t, "CONFIG", "SET", "maxmemory-policy", "noeviction") // else the next line ends the lease
	r.Must(t, "CONFIG", "SET", "maxmemory", "1")
	examine(t, server.URL).has("rights", "error", "out of memory")
	r.Must(t, "CONFIG", "SET", "maxmemory", "0")
	strange.Store(true)
	stranger := examine(t, server.URL)
	stranger.has("server", "ok", "does not tell this client")
	stranger.has("rights", "ok", "not tried", "no right to lock")
	stranger.has("reach", "ok")
	strange.Store(false)
	still()
	resume := r.Pause()
	away(t, server.URL)
	resume()
}

func TestNATS(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	store := "nats://" + servers.NATSAddrs(all) + "/locks"
	still := held(t, store+"?replicas=3")
	three := examine(t, store)
	for end := time.Now().Add(time.Minute); strings.Contains(three.text, "no response from stream") && time.Now().Before(end); { // it says so while a busy machine's servers elect the bucket's leader
		three = examine(t, store)
	}
	three.has("rights", "ok")
	three.has("clock", "ok", "within")
	still()
	single := strings.Replace(store, "/locks", "/single?replicas=1", 1)
	held(t, single)
	one := examine(t, single)
	one.has("replicas", "warning", "one replica")
	one.has("rights", "ok")
	examine(t, strings.Replace(store, "/locks", "/nosuch", 1)).has("reach", "warning", "bucket does not exist", "first command that takes a lock creates")
	resume := servers.PauseAll(all)
	away(t, store)
	resume()
}

// How often a server syncs its files, it tells its monitoring alone.
func TestNATSSyncing(t *testing.T) {
	t.Parallel()
	always := servers.StartNATS(t, 1, "")[0]
	seldom := servers.StartNATS(t, 1, fmt.Sprintf("jetstream { store_dir: %q, sync_interval: \"1m\" }\n", t.TempDir()))[0]
	of := func(s *servers.NATS, monitor string) *report {
		store := "nats://" + s.Addr() + "/locks?replicas=1&monitor=" + monitor
		if out, code := run(t, store, "run", "x", "--", "true"); code != 0 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		return examine(t, store)
	}
	of(always, always.Monitor()).has("persistence", "ok", always.Monitor(), "syncs every write")
	of(seldom, seldom.Monitor()).has("persistence", "warning", "every 1m0s", "sync_interval: always")
	of(always, "127.0.0.1:1").has("persistence", "warning", "not known", "option monitor")
	of(always, always.Addr()).has("persistence", "warning", "not known") // which is no monitoring
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	servers.OnlyWithAll(t)
	k := servers.StartKubernetes(t)
	k.AddNamespace("locks")
	store := k.URL("locks")
	still := held(t, store)
	examine(t, store).fine("ok", "clock")
	still()
	as := func(user string) string { return "kubernetes://locks?kubeconfig=" + k.Kubeconfig(user, k.Addr()) }
	examine(t, as("locker")).has("reach", "error", "refuses the user") // no Role names it
	examine(t, as("nobody")).has("reach", "error", "refuses the user")
	examine(t, k.URL("nosuch")).has("rights", "error", "namespace")
	resume := k.Pause()
	away(t, store)
	resume()
	k.Kill()
	away(t, store)
}

func TestS3(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	store := s.URL("x")
	still := held(t, store)
	good := examine(t, store)
	for _, about := range []string{"store", "reach", "promises", "space", "clock", "rights"} {
		good.has(about, "ok")
	}
	good.timed()
	still()
	examine(t, strings.Replace(store, servers.S3Secret, canary, 1)).has("reach", "error", "refuses the user")
	examine(t, strings.Replace(store, "@locks/", "@nosuch/", 1)).has("reach", "error", "bucket does not exist")
	resume := s.Pause()
	away(t, store)
	resume()
	s.Kill()
	away(t, store)
}

// What listens is a server of another kind, which says nothing or something else.
func TestAnotherKind(t *testing.T) {
	t.Parallel()
	r, m := servers.StartRedis(t), servers.StartMemcached(t)
	for _, store := range []string{
		"redis://" + m.Addr(), "memcached://" + r.Addr(), "http://" + r.Addr(), "etcd://" + r.Addr(), "rediss://" + r.Addr(),
		"postgres://u@" + r.Addr() + "/db", "mysql://u@" + r.Addr() + "/db", "zookeeper://" + r.Addr(), "nats://" + r.Addr() + "/locks",
		"s3://a:b@locks/x?region=us-east-1&endpoint=http:%2F%2F" + r.Addr(),
	} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			away(t, store)
		})
	}
}
