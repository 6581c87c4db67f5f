package doctor_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

func TestRedis(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, durable...)
	store := "redis://" + r.Addr() + "/0"
	still := held(t, store)
	examine(t, store).fine("ok", "persistence", "eviction", "replicas", "clock")
	absent(t, r.Must(t, "KEYS", "*"))
	still()

	r.Must(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	examine(t, store).has("eviction", "warning", "allkeys-lru", "noeviction")
	r.Must(t, "CONFIG", "SET", "appendfsync", "everysec")
	examine(t, store).has("persistence", "warning", "everysec")
	r.Must(t, "CONFIG", "SET", "appendonly", "no")
	bad := examine(t, store)
	bad.has("persistence", "warning", "appendonly is no")
	bad.fine("warning")
	examine(t, "redis://"+r.Addr()+"?replicas=1").has("rights", "error", "too few replicas")

	resume := r.Pause()
	away(t, store)
	resume()
	r.Stop()
	away(t, store)
}

// A user who may do less than locks need is told so, and so is a wrong password.
func TestRedisUsers(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, durable...)
	const may = "+evalsha +eval +mget +get +getex +set +del +exists +pexpire +pexpireat +pexpiretime +pttl +time " +
		"+zadd +zrem +zrange +zrevrange +zrangebyscore +zscore +zcard +hset +hget +hdel +publish +spublish +subscribe +ssubscribe +unsubscribe +sunsubscribe +ping +scan +wait +hello"
	user := func(name, rights string) string {
		r.Must(t, append([]string{"ACL", "SETUSER", name, "on", ">" + canary, "resetkeys", "resetchannels", "-@all", "~lock:*", "&leasehold:*"}, strings.Fields(rights)...)...)
		return "redis://" + name + ":" + canary + "@" + r.Addr()
	}
	examine(t, user("all", may+" +info +config|get")).fine("ok")
	examine(t, user("least", may+" +info")).fine("ok", "persistence")
	blind := examine(t, user("blind", may))
	blind.has("server", "warning", "INFO")
	blind.has("rights", "ok")
	examine(t, user("reads", "+eval +evalsha +get +mget +exists +pttl +time +info +ping +hello +zrange +zcard")).has("rights", "error", "take a lock")
	absent(t, r.Must(t, "KEYS", "*"))
	examine(t, "redis://all:x"+canary+"@"+r.Addr()).has("reach", "error", "refuses the user")
}

func TestRedisClock(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t, durable...)
	store := "redis://" + r.Addr()
	examine(t, store).fine("ok", "clock")
	clock.Set(95 * time.Second) // within a few seconds
	ahead := examine(t, store)
	ahead.has("clock", "warning", "1m3", "ahead of ours", "NTP")
	ahead.fine("warning")
	clock.Set(-time.Hour)
	examine(t, store).has("clock", "warning", "behind ours")
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	s := servers.StartSentinel(t, durable...)
	store := "redis+sentinel://" + strings.Join(s.Sentinels, ",") + "/" + s.Master
	examine(t, store).has("replicas", "warning", "2 replicas", "replicas=1")
	examine(t, store+"?replicas=1").fine("ok", "replicas")
	examine(t, "redis://"+s.Nodes[1].Addr()).has("replicas", "error", "replica", "primary")
}

func TestRedlock(t *testing.T) {
	t.Parallel()
	var nodes []*servers.Redis
	var addrs []string
	for range 3 {
		r := servers.StartRedis(t)
		nodes, addrs = append(nodes, r), append(addrs, r.Addr())
	}
	store := "redlock://" + strings.Join(addrs, ",")
	waiting := examine(t, store)
	waiting.has("rights", "warning", "forgotten", "wait")
	waiting.has("persistence", "ok", "grants nothing for 1m0s")
	// Without that guard, what a restart forgets counts again.
	sure := examine(t, store+"?min_uptime=off")
	sure.has("persistence", "warning", addrs[0])
	sure.fine("warning", "quorum", "clock")
	for _, r := range nodes {
		absent(t, r.Must(t, "KEYS", "*"))
	}
	nodes[2].Stop()
	one := examine(t, store+"?min_uptime=off")
	one.has("server", "warning", "node 3", "its check failed")
	one.has("rights", "ok")
	nodes[1].Stop()
	away(t, store)
}

// A server that has no room left keeps no locks, whatever its policy.
func TestRedisFull(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, durable...)
	r.Must(t, "CONFIG", "SET", "maxmemory", "1")
	full := examine(t, "redis://"+r.Addr())
	full.has("reach", "ok")
	full.has("rights", "error", "out of memory", "maxmemory")
}

// A server that cannot save its data takes no writes. What only reads is served: it is looked at just then.
func TestRedisThatCannotSave(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, "--save", "3600 1", "--enable-protected-configs", "yes")
	gone := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	r.Must(t, "CONFIG", "SET", "dir", gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	d, err := stores.Open(t.Context(), "redis://"+r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	locks, err := leasehold.New(d, &leasehold.Options{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	if _, err := locks.Acquire(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	r.Must(t, "BGSAVE")
	for end := time.Now().Add(time.Minute); !strings.Contains(r.Must(t, "INFO", "persistence"), "rdb_last_bgsave_status:err"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it can save")
		}
	}
	report := examine(t, "redis://"+r.Addr())
	report.has("reach", "ok")
	report.has("rights", "error", "cannot write to its disk")
	for _, command := range [][]string{{"ls"}, {"show", "held"}} {
		if out, code := run(t, "redis://"+r.Addr(), command...); code != 0 || !strings.Contains(out, "exclusive") {
			t.Errorf("%q: exit code %d: %s", command, code, out)
		}
	}
	if _, err := locks.TryAcquire(t.Context(), "other"); !errors.Is(err, redislock.ErrCannotSave) {
		t.Errorf("acquire: %v", err)
	}
}

// A password file that is empty is a slip, and no user without a password.
func TestEmptyPasswordFile(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, code := run(t, "redis://"+r.Addr()+"?password_file="+path, "doctor"); code != 64 {
		t.Errorf("exit code %d", code)
	}
}

// certify writes a certificate of 127.0.0.1 by an authority of its own, and its key.
func certify(t *testing.T, until time.Time) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.AddDate(-1, 0, 0), NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, &c, &c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// What is wrong with a certificate is said, with what to do about it.
func TestRedisCertificate(t *testing.T) {
	t.Parallel()
	at := func(until time.Time) (server, authority string) {
		cert, key := certify(t, until)
		port := servers.FreePorts(t, 1)[0]
		servers.StartRedis(t, append([]string{"--tls-port", fmt.Sprint(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no"}, durable...)...)
		return fmt.Sprintf("127.0.0.1:%d", port), "ca_file=" + url.QueryEscape(cert)
	}
	server, authority := at(time.Now().AddDate(0, 1, 0))
	examine(t, "rediss://"+server+"?"+authority).fine("ok")
	examine(t, "rediss://"+server).has("reach", "error", "ca_file=PATH")
	examine(t, "rediss://"+server+"?"+authority+"&server_name=other").has("reach", "error", "server_name=NAME")
	examine(t, "rediss://"+server+"?ca_file=/nosuch").has("reach", "error", "file of this machine")
	examine(t, "redis://"+server).has("reach", "error")
	server, authority = at(time.Now().AddDate(0, 0, -1))
	examine(t, "rediss://"+server+"?"+authority).has("reach", "error", "expired", "renew the server's certificate")
}
