package etcdlock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/rivals"
	"github.com/leasehold-go/leasehold/internal/servers"
)

const canary = "s3cr3t-canary"

// refusedFor checks that no call believes in a lock, and that the error says what to do,
// within the context's bound.
func refusedFor(t *testing.T, d driver.Driver, want error) {
	t.Helper()
	l := lockerOn(t, d, leasehold.Options{})
	for _, opt := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		const within = 30 * time.Second // a busy server takes its time to refuse
		ctx, cancel := context.WithTimeout(t.Context(), within)
		start := time.Now()
		lease, err := l.TryAcquire(ctx, "bad", opt...)
		if lease != nil || !errors.Is(err, want) {
			t.Errorf("TryAcquire: lease %v, %v; want %v", lease != nil, err, want)
		}
		if took := time.Since(start); took > within/2 {
			t.Errorf("TryAcquire took %v, its context %v", took, within)
		}
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("the error tells the password: %v", err)
		}
		cancel()
	}
}

// The user of the documentation can do all that a lock needs below its prefix; others are
// refused, and told so.
func TestAuth(t *testing.T) {
	t.Parallel()
	for _, version := range []string{servers.EtcdDebian, servers.EtcdCurrent} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			e := startAuth(t, version, nil)
			e.Etcdctl(t, "--user", "root:r", "user", "add", "nobody:"+canary)
			as := func(user, password string) (*clientv3.Client, error) {
				return clientv3.New(clientv3.Config{
					Endpoints: servers.Endpoints(e), Username: user, Password: password, Logger: zap.NewNop(), DialTimeout: time.Minute,
				})
			}
			if _, err := as("locker", canary); !errors.Is(etcdlock.Explain(err), etcdlock.ErrAuth) || strings.Contains(err.Error(), canary) {
				t.Errorf("a wrong password: %v; want ErrAuth", etcdlock.Explain(err))
			}
			refusedFor(t, driverOn(t, clientOf(t, e), nil), etcdlock.ErrAuth)
			nobody, err := as("nobody", canary)
			if err != nil {
				t.Fatal(err)
			}
			defer nobody.Close()
			refusedFor(t, driverOn(t, nobody, nil), etcdlock.ErrAuth)

			client, err := as("locker", "right")
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			refusedFor(t, driverOn(t, client, &etcdlock.Options{Prefix: "elsewhere"}), etcdlock.ErrAuth)
			d := driverOn(t, client, nil)
			l, other := lockerOn(t, d, leasehold.Options{}), lockerOn(t, driverOn(t, client, nil), leasehold.Options{HandOver: -1})
			rivals.Permitted(t, l, other, "auth")
		})
	}
}

// Without space nothing is acquired; what is held can be renewed and released.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	e := servers.StartEtcd(t, servers.EtcdDebian, "--quota-backend-bytes", "1048576")
	client := clientOf(t, e)
	d := driverOn(t, client, nil)
	l := lockerOn(t, d, leasehold.Options{})
	var leases []*leasehold.Lease
	for i, opt := range [][]leasehold.Option{nil, {leasehold.Shared()}} {
		lease, err := l.Acquire(t.Context(), fmt.Sprint("before-", i), opt...)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	const ttl, longer, limit = 30 * time.Second, time.Minute, 20 * time.Second
	short, long := claimOf(t, d, driver.Request{Resource: "short", Owner: "o", TTL: ttl}), claimOf(t, d, driver.Request{Resource: "long", Owner: "o", TTL: longer})
	if err := errors.Join(within(t, limit, tryOf(short)), within(t, limit, tryOf(long))); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if _, err := client.Put(t.Context(), fmt.Sprint("data/", i), strings.Repeat("x", 100_000)); err != nil {
			break
		}
		if i > 100 {
			t.Fatal("the server has more space than its quota")
		}
	}
	refusedFor(t, d, etcdlock.ErrNoSpace)
	refusedFor(t, driverOn(t, clientOf(t, e), nil), etcdlock.ErrNoSpace)
	if level, text := servers.Found(t, d, driver.AboutSpace); level != driver.Unfit || !strings.Contains(text, "NOSPACE") {
		t.Errorf("Check: %v, %q; want the alarm", level, text)
	}
	renew := func(ttl time.Duration) func(context.Context) error {
		return func(ctx context.Context) error { _, err := short.Renew(ctx, ttl); return err }
	}
	if err := within(t, limit, renew(longer)); !errors.Is(err, etcdlock.ErrNoSpace) {
		t.Errorf("Renew with another TTL without space: %v; want ErrNoSpace", err)
	}
	if err := within(t, limit, renew(ttl)); err != nil {
		t.Errorf("Renew with the TTL of the grant after that: %v", err)
	}
	for _, lease := range leases {
		if err := lease.Extend(t.Context(), leasehold.DefaultTTL); err != nil {
			t.Errorf("Extend without space: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release without space: %v", err)
		}
	}
}

func TestCheckWarnsOfOldServers(t *testing.T) {
	t.Parallel()
	d := driverOn(t, clientOf(t, servers.StartEtcd(t, servers.EtcdDebian)), nil)
	if level, text := servers.Found(t, d, driver.AboutVersion); level != driver.Weak || !strings.Contains(text, "CVE-2026-33413") {
		t.Errorf("Check of 3.4: %v, %q; want a warning with the defect's number", level, text)
	}
	d = driverOn(t, clientOf(t, servers.StartEtcd(t, servers.EtcdCurrent)), nil)
	if level, text := servers.Found(t, d, driver.AboutVersion); level != driver.Fine || !strings.Contains(text, "etcd 3.") {
		t.Errorf("Check of the current version: %v, %q; want its version alone", level, text)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	port := servers.FreePorts(t, 1)[0]
	refusedFor(t, driverOn(t, clientAt(t, fmt.Sprintf("http://127.0.0.1:%d", port)), nil), etcdlock.ErrUnreachable)
}

func TestNoQuorum(t *testing.T) {
	t.Parallel()
	members := servers.StartEtcdCluster(t, servers.EtcdDebian, 3)
	d := driverOn(t, clientOf(t, members...), nil)
	l := lockerOn(t, d, leasehold.Options{})
	lease, err := l.Acquire(t.Context(), "warm")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	members[0].Kill()
	members[1].Kill()
	for end := time.Now().Add(30 * time.Second); !errors.Is(err, etcdlock.ErrNoQuorum) && time.Now().Before(end); {
		_, err = l.TryAcquire(t.Context(), "bad") // until the last one knows that it has no leader
	}
	refusedFor(t, d, etcdlock.ErrNoQuorum)
	members[0].Begin()
	lease, err = l.Acquire(t.Context(), "bad", leasehold.Wait(20*time.Second))
	for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); {
		lease, err = l.Acquire(t.Context(), "bad", leasehold.Wait(20*time.Second))
	}
	if err != nil {
		t.Fatalf("with a quorum again: %v", err)
	}
	lease.Release(t.Context())
}

// authority makes certificates that are good for a day.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

// issue writes a certificate for 127.0.0.1 and its key.
func (a *authority) issue(t testing.TB) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert, key := ca.issue(t)
	e := servers.StartEtcd(t, servers.EtcdCurrent, "--cert-file", cert, "--key-file", key)
	with := func(host string, c *tls.Config) *clientv3.Client {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{fmt.Sprintf("https://%s:%d", host, e.Port)}, TLS: c, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	l := lockerOn(t, driverOn(t, with("127.0.0.1", &tls.Config{RootCAs: ca.pool}), nil), leasehold.Options{})
	lease, err := l.Acquire(t.Context(), "tls")
	if err != nil {
		t.Fatalf("Acquire over TLS: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release over TLS: %v", err)
	}
	refusedFor(t, driverOn(t, with("localhost", &tls.Config{RootCAs: ca.pool}), nil), etcdlock.ErrTLS)
	refusedFor(t, driverOn(t, with("127.0.0.1", &tls.Config{RootCAs: newAuthority(t).pool}), nil), etcdlock.ErrTLS)
}
