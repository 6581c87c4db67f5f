package badday

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// denials are stores that refuse the user, by what they lack.
var denials = map[string]func(t *testing.T) (urls map[string]string){
	"redis": func(t *testing.T) map[string]string {
		r := servers.StartRedis(t)
		r.Must(t, "ACL", "SETUSER", "reads", "on", ">reads", "~*", "&*", "+@read", "+@connection", "+info")
		r.Must(t, "ACL", "SETUSER", "default", "off")
		return map[string]string{
			"nobody": "redis://" + r.Addr(), "a wrong password": "redis://reads:wrong@" + r.Addr(), "no right": "redis://reads:reads@" + r.Addr(),
		}
	},
	"postgres": func(t *testing.T) map[string]string {
		p := servers.StartPostgres(t)
		p.Must(t, "CREATE ROLE nobody LOGIN", "CREATE ROLE visitor LOGIN", "CREATE DATABASE hers", "REVOKE CONNECT ON DATABASE hers FROM PUBLIC")
		return map[string]string{
			"an unknown user": "postgres://who@" + p.Addr() + "/postgres", "no right": "postgres://nobody@" + p.Addr() + "/postgres",
			"another's database": "postgres://visitor@" + p.Addr() + "/hers",
		}
	},
	"mysql": func(t *testing.T) map[string]string {
		m := servers.StartMariaDB(t)
		m.Must(t, "CREATE USER locker IDENTIFIED BY 'pw'", "CREATE USER locked IDENTIFIED BY 'pw' ACCOUNT LOCK",
			"CREATE USER looker IDENTIFIED BY 'pw'", "GRANT SELECT ON locks.* TO looker")
		return map[string]string{
			"a wrong password": "mysql://locker:wrong@" + m.Addr() + "/locks", "no database": "mysql://locker:pw@" + m.Addr() + "/locks",
			"a locked account": "mysql://locked:pw@" + m.Addr() + "/locks", "no right": "mysql://looker:pw@" + m.Addr() + "/locks",
		}
	},
	"etcd": func(t *testing.T) map[string]string {
		e := servers.StartEtcd(t, servers.EtcdDebian, "--bcrypt-cost=4")
		for _, line := range []string{
			"user add root:pw", "user grant-role root root", "role add none", "user add reads:pw",
			"role add reads", "role grant-permission reads --prefix=true read leasehold/", "user grant-role reads reads", "auth enable",
		} {
			e.Etcdctl(t, strings.Fields(line)...)
		}
		return map[string]string{
			"nobody": "etcd://" + e.Addr(), "a wrong password": "etcd://reads:wrong@" + e.Addr(), "no right": "etcd://reads:pw@" + e.Addr(),
		}
	},
	"zookeeper": func(t *testing.T) map[string]string {
		z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
		conn, _, err := zk.Connect([]string{z.Addr()}, 10*time.Second, zk.WithLogger(silent{}))
		must(t, err)
		defer conn.Close()
		_, err = conn.Create("/app", nil, 0, zk.DigestACL(zk.PermAll, "locker", "pw"))
		must(t, err)
		return map[string]string{"nobody": "zookeeper://" + z.Addr() + "/app", "a wrong password": "zookeeper://locker:wrong@" + z.Addr() + "/app"}
	},
	"nats": func(t *testing.T) map[string]string {
		s := servers.StartNATS(t, 1, `accounts { a { jetstream: enabled, users: [{user: admin, password: pw}, {user: reads, password: pw, permissions: {publish: ["$JS.API.INFO", "$JS.API.STREAM.INFO.>"]}}] } }`)[0]
		if out, code := command(t, "nats://admin:pw@"+s.Addr()+"/locks", "run", "x", "--", "true"); code != 0 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		return map[string]string{
			"nobody": "nats://" + s.Addr() + "/locks", "a wrong password": "nats://reads:wrong@" + s.Addr() + "/locks", "no right": "nats://reads:pw@" + s.Addr() + "/locks",
		}
	},
	"s3": func(t *testing.T) map[string]string {
		s := servers.StartS3(t)
		s.AddUser("nobody", "secret-of-nobody")
		store := s.URL("x")
		return map[string]string{
			"a wrong key": strings.Replace(store, servers.S3Secret, "wrong", 1),
			"no right":    strings.Replace(store, servers.S3Key+":"+servers.S3Secret, "nobody:secret-of-nobody", 1),
		}
	},
	"kubernetes": func(t *testing.T) map[string]string {
		servers.OnlyWithAll(t)
		k := servers.StartKubernetes(t)
		k.AddNamespace("locks")
		as := func(user string) string { return "kubernetes://locks?kubeconfig=" + k.Kubeconfig(user, k.Addr()) }
		return map[string]string{"nobody": as("nobody"), "no right": as("locker")}
	},
	"http": func(t *testing.T) map[string]string {
		hash := sha256.Sum256([]byte("reads"))
		path := filepath.Join(t.TempDir(), "access.json")
		must(t, os.WriteFile(path, fmt.Appendf(nil, `{"clients": [{"name": "reads", "tokens": [%q], "rules": [{"prefix": "", "rights": ["view"]}]}]}`, hex.EncodeToString(hash[:])), 0o600))
		access, err := serve.ReadAccess(path, nil)
		must(t, err)
		service, err := serve.New(memory.New(), &serve.Options{Client: access.Client})
		must(t, err)
		t.Cleanup(func() { service.Close() })
		server := httptest.NewServer(service)
		t.Cleanup(server.Close)
		addr := strings.TrimPrefix(server.URL, "http://")
		return map[string]string{"nobody": "http://" + addr, "a wrong token": "http://:wrong@" + addr, "no right": "http://:reads@" + addr}
	},
}

// A store that refuses the user has an exit code of its own, at once: waiting mends nothing.
func TestDeniedByTheStore(t *testing.T) {
	t.Parallel()
	const denied = 77 // EX_NOPERM of sysexits.h
	for engine, start := range denials {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			for why, store := range start(t) {
				for _, args := range [][]string{
					{"run", "x", "--", "touch", "ran"}, {"run", "-n", "x", "--", "touch", "ran"}, {"run", "-w", "60", "x", "--", "touch", "ran"},
					{"lead", "x", "--", "touch", "ran"}, {"acquire", "x"},
				} {
					began := time.Now()
					out, code := command(t, store, args...)
					for end := began.Add(time.Minute); strings.Contains(out, "no answer within 2s") && time.Now().Before(end); { // -n, on a busy machine
						began = time.Now()
						out, code = command(t, store, args...)
					}
					if engine == "zookeeper" && args[0] == "acquire" && code == 64 {
						continue // which its leases never outlive
					}
					if code != denied || !strings.Contains(out, "rights") {
						t.Errorf("%s: %q: exit code %d, want %d:\n%s", why, args, code, denied, out)
					}
					if took := time.Since(began); took > 30*time.Second { // with -w 60 too
						t.Errorf("%s: %q took %v", why, args, took)
					}
				}
			}
		})
	}
}

// A file that this machine refuses the user is such a store, too.
func TestDeniedByTheFileSystem(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := t.TempDir()
	store := "sqlite:" + filepath.Join(dir, "locks.db")
	if out, code := command(t, store, "run", "x", "--", "true"); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	public := filepath.Join(dir, "leasehold")
	must(t, os.Link(binary, public)) // to write a copy would let a child that another test starts keep it busy
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	secret := filepath.Join(dir, "password")
	must(t, os.WriteFile(secret, []byte("pw"), 0o600))
	for _, store := range []string{store, "sqlite:" + filepath.Join(dir, "other.db"), "redis://127.0.0.1:1?password_file=" + secret} {
		cmd := exec.Command(public, "run", "x", "--", "true")
		cmd.Env, cmd.Dir = append(os.Environ(), "LEASEHOLD_STORE="+store, "HOME="+dir), dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 77 {
			t.Errorf("%s: %v, want exit code 77: %s", store, err, out)
		}
	}
}
