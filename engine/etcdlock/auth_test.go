package etcdlock_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// tokenTTL is how long a token of these servers lives: simple ones from their last use on.
const tokenTTL = 2 * time.Second

// jwtArgs are the options of a server that signs its tokens.
func jwtArgs(t testing.TB) []string {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, kind string, der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	pub := file("public", "PUBLIC KEY", der, err)
	der, err = x509.MarshalPKCS8PrivateKey(private)
	priv := file("private", "PRIVATE KEY", der, err)
	return []string{"--auth-token", "jwt,pub-key=" + pub + ",priv-key=" + priv + ",sign-method=RS256,ttl=" + tokenTTL.String()}
}

// authServers are those whose tokens end while leases are held. etcd 3.4 is not among them: its
// clients hang then, whatever they call.
var authServers = []struct {
	name, version string
	args          func(testing.TB) []string
}{
	{"simple tokens", servers.EtcdCurrent, simpleArgs},
	{"JWT", servers.EtcdCurrent, jwtArgs},
}

func simpleArgs(testing.TB) []string { return []string{"--auth-token-ttl", "2"} }

// startAuth starts a server with the users of the documentation.
func startAuth(t testing.TB, version string, args []string) *servers.Etcd {
	e := servers.StartEtcd(t, version, append(args, "--bcrypt-cost", "4")...) // logins cost little
	for _, args := range [][]string{
		{"user", "add", "root:r"}, {"role", "add", "root"}, {"user", "grant-role", "root", "root"},
		{"user", "add", "locker:right"}, {"role", "add", "locker"}, {"user", "grant-role", "locker", "locker"},
		{"role", "grant-permission", "--prefix", "locker", "readwrite", "leasehold/"},
		{"auth", "enable"},
	} {
		e.Etcdctl(t, args...)
	}
	return e
}

// authTTL outlasts what a busy machine needs for a change of users, which keeps renewals out. TestTokensEnd outlasts it.
const authTTL = 15 * time.Second

func authLocker(t testing.TB, e *servers.Etcd) *leasehold.Locker {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: servers.Endpoints(e), Username: "locker", Password: "right", Logger: zap.NewNop(), DialTimeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return lockerOn(t, driverOn(t, client, nil), leasehold.Options{TTL: authTTL})
}

// A token that ends costs nobody a lease, a place or an error, nor does a change of users.
func TestTokensEnd(t *testing.T) {
	t.Parallel()
	for _, s := range authServers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			e := startAuth(t, s.version, s.args(t))
			root := func(args ...string) {
				t.Helper()
				e.Etcdctl(t, append([]string{"--user", "root:r"}, args...)...)
			}
			holds, waits, idle := authLocker(t, e), authLocker(t, e), authLocker(t, e)
			lease, err := holds.Acquire(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			next := make(chan error, 1)
			go func() {
				lease, err := waits.Acquire(context.Background(), "held")
				if err == nil {
					err = lease.Release(context.Background())
				}
				next <- err
			}()
			for round, change := range []func(){
				func() {}, func() {},
				func() { root("user", "add", "somebody:x") },
				func() { root("role", "grant-permission", "--prefix", "locker", "readwrite", "more/") },
				func() { // all tokens of the user end
					root("user", "revoke-role", "locker", "locker")
					root("user", "grant-role", "locker", "locker")
				},
				func() {},
			} {
				change()
				for _, l := range []*leasehold.Locker{idle, holds} {
					short, err := l.Acquire(t.Context(), "short")
					if err == nil {
						err = short.Release(t.Context())
					}
					if err != nil {
						t.Errorf("round %d: %v", round, err)
					}
				}
				time.Sleep(tokenTTL + time.Second) // the token of who did nothing has ended
				if err := lease.Context().Err(); err != nil {
					t.Fatalf("round %d: the lease ended: %v", round, context.Cause(lease.Context()))
				}
			}
			start := time.Now()
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-next; err != nil {
				t.Errorf("the waiter: %v", err)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("the waiter was served %v after the release", took)
			}
		})
	}
}
