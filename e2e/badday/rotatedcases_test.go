package badday

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// generations is how many secrets a process sees.
const generations = 3

// A trial is a row and a column of the page's table.
type trial struct {
	engine, kind string
	start        func(t *testing.T) rotation
	slow         bool // its server takes minutes to build
}

var cases = []trial{
	{"Redis", secret, redisPassword, false},
	{"Redis", certificate, redisCertificate, false},
	{"Redis", secret, sentinelPassword, false},
	{"Redis", secret, clusterPassword, false},
	{"Redis", secret, redlockPassword, false},
	{"PostgreSQL", secret, postgresPassword, false},
	{"PostgreSQL", certificate, postgresCertificate, false},
	{"MySQL, MariaDB", secret, mariadbPassword, false},
	{"MySQL, MariaDB", certificate, mariadbCertificate, false},
	{"etcd", secret, etcdPassword, false},
	{"etcd", certificate, etcdCertificate, false},
	{"NATS", secret, natsPassword, false},
	{"NATS", secret, natsCredentials, false},
	{"NATS", certificate, natsCertificate, false},
	{"S3", secret, s3Keys, false},
	{"S3", certificate, s3Certificate, false},
	{"ZooKeeper", secret, zookeeperPassword, false},
	{"ZooKeeper", certificate, zookeeperCertificate, false},
	{"Kubernetes", secret, kubernetesToken, true},
	{"Kubernetes", certificate, kubernetesCertificate, true},
	{"http", secret, httpToken, false},
	{"http", certificate, httpCertificate, false},
}

// word is the password of a generation. Half of one is another.
func word(n int) string { return fmt.Sprintf("of-generation-%d-%d", n, n) }

func passwords(n int) map[string][]byte { return map[string][]byte{"password": []byte(word(n) + "\n")} }

// options are those of a URL, escaped.
func options(pairs ...string) string {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return "?" + v.Encode()
}

// passworded makes the URL of a store whose password is in a file.
func passworded(before, after string, more ...string) func(addr, dir string) string {
	return func(addr, dir string) string {
		return before + addr + after + options(append(more, "password_file", filepath.Join(dir, "password"))...)
	}
}

// certified makes the URL of a store over TLS, with whose files it has.
func certified(client bool, before, after string, more ...string) func(addr, dir string) string {
	return func(addr, dir string) string {
		more := append(more, "ca_file", filepath.Join(dir, "ca.crt"))
		if client {
			more = append(more, "cert_file", filepath.Join(dir, "tls.crt"), "key_file", filepath.Join(dir, "tls.key"))
		}
		return before + addr + after + options(more...)
	}
}

// certificates are those of three generations, each of an authority of its own, and those of a server in files.
type certificates struct {
	t       *testing.T
	client  [generations]map[string][]byte
	server  [generations]map[string][]byte
	dir     string // the server's
	owner   string // of the server's files; "": us
	pureCAs bool   // clients have no certificates
}

func newCertificates(t *testing.T, owner string) *certificates {
	dir, err := os.MkdirTemp("", "leasehold-rotated-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &certificates{t: t, dir: dir, owner: owner}
	for n := range generations {
		a := servers.NewAuthority(t, fmt.Sprint("generation ", n))
		cert, key := a.Issue("locker")
		c.client[n] = map[string][]byte{"ca.crt": a.PEM(), "tls.crt": cert, "tls.key": key}
		cert, key = a.Issue("server")
		c.server[n] = map[string][]byte{"ca.crt": a.PEM(), "tls.crt": cert, "tls.key": key, "both.pem": append(key, cert...)}
	}
	c.put(0)
	return c
}

// put writes the server's files.
func (c *certificates) put(n int) {
	c.t.Helper()
	for name, text := range c.server[n] {
		path := c.path(name)
		err := os.WriteFile(path+".next", text, 0o600)
		if err == nil && c.owner != "" {
			err = chown(path+".next", c.owner)
		}
		if err == nil {
			err = os.Rename(path+".next", path)
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

func chown(path, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	owner, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(owner.Uid)
	if err != nil {
		return err
	}
	return os.Chown(path, uid, -1)
}

func (c *certificates) path(name string) string { return filepath.Join(c.dir, name) }

// files are the client's.
func (c *certificates) files(n int) map[string][]byte {
	if c.pureCAs {
		return map[string][]byte{"ca.crt": c.client[n]["ca.crt"]}
	}
	return c.client[n]
}

func redisPassword(t *testing.T) rotation {
	_, r := redisWithPassword(t)
	return r
}

func redisWithPassword(t *testing.T) (*servers.Redis, rotation) {
	r := servers.StartRedis(t)
	serve := func(n int) {
		r.Must(t, "ACL", "SETUSER", "locker", "on", "resetpass", ">"+word(n), "~*", "&*", "+@all")
	}
	serve(0)
	return r, rotation{
		addr: r.Addr(), url: passworded("redis://locker@", "/0"), files: passwords, serve: serve,
		refusals: func() (n int) {
			lines := strings.Split(r.Must(t, "ACL", "LOG"), "\n")
			for i, line := range lines {
				if line == "count" {
					n += number(t, lines[i+1])
				}
			}
			return n
		},
	}
}

// several have a password each, which are the same, and end the connections of their user by themselves: clients learn
// their addresses from each other.
func several(t *testing.T, nodes []*servers.Redis) (serve func(n int)) {
	serve = func(n int) {
		for _, r := range nodes {
			r.Must(t, "ACL", "SETUSER", "locker", "on", "resetpass", ">"+word(n), "~*", "&*", "+@all")
			r.Must(t, "CLIENT", "KILL", "USER", "locker")
		}
	}
	serve(0)
	return serve
}

func sentinelPassword(t *testing.T) rotation {
	s := servers.StartSentinel(t)
	return rotation{
		addr: s.Sentinels[0], url: passworded("redis+sentinel://locker@", "/"+s.Master+"/0"), files: passwords, serve: several(t, s.Nodes),
	}
}

func clusterPassword(t *testing.T) rotation {
	nodes := servers.StartCluster(t, 3)
	return rotation{addr: nodes[0].Addr(), url: passworded("redis+cluster://locker@", ""), files: passwords, serve: several(t, nodes)}
}

func redlockPassword(t *testing.T) rotation {
	nodes := []*servers.Redis{servers.StartRedis(t), servers.StartRedis(t), servers.StartRedis(t)}
	return rotation{
		addr: nodes[0].Addr(), url: passworded("redlock://locker@", ","+nodes[1].Addr()+","+nodes[2].Addr(), "min_uptime", "off"),
		files: passwords, serve: several(t, nodes),
	}
}

// number is the one that a text begins with.
func number(t *testing.T, text string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatalf("%.20q is no number", text)
	}
	return n
}

func redisCertificate(t *testing.T) rotation {
	c := newCertificates(t, "")
	port := servers.FreePorts(t, 1)[0]
	files := []string{"tls-cert-file", c.path("tls.crt"), "tls-key-file", c.path("tls.key"), "tls-ca-cert-file", c.path("ca.crt")}
	args := []string{"--tls-port", fmt.Sprint(port), "--tls-auth-clients", "yes"}
	for i := 0; i < len(files); i += 2 {
		args = append(args, "--"+files[i], files[i+1])
	}
	r := servers.StartRedis(t, args...)
	return rotation{
		addr: fmt.Sprint("127.0.0.1:", port), url: certified(true, "rediss://", "/0"), files: c.files, halves: true,
		serve: func(n int) {
			c.put(n)
			r.Must(t, append([]string{"CONFIG", "SET"}, files...)...)
		},
	}
}

// postgres starts a server that lets a line of pg_hba.conf decide who locker is.
func postgres(t *testing.T, line string, settings ...string) *servers.Postgres {
	dir, err := os.MkdirTemp("", "leasehold-rotated-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	hba := filepath.Join(dir, "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all postgres 127.0.0.1/32 trust\n"+line+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := servers.StartPostgres(t, append(settings, "hba_file="+hba)...)
	p.Must(t, "CREATE ROLE locker LOGIN SUPERUSER")
	return p
}

func postgresPassword(t *testing.T) rotation {
	p := postgres(t, "host all locker 127.0.0.1/32 scram-sha-256")
	serve := func(n int) { p.Must(t, "ALTER ROLE locker PASSWORD '"+word(n)+"'") }
	serve(0)
	return rotation{addr: p.Addr(), url: passworded("postgres://locker@", "/postgres"), files: passwords, serve: serve}
}

func postgresCertificate(t *testing.T) rotation {
	c := newCertificates(t, "postgres")
	p := postgres(t, "hostssl all locker 127.0.0.1/32 cert", "ssl=on",
		"ssl_cert_file="+c.path("tls.crt"), "ssl_key_file="+c.path("tls.key"), "ssl_ca_file="+c.path("ca.crt"))
	return rotation{
		addr: p.Addr(), url: certified(true, "postgres://locker@", "/postgres"), files: c.files, halves: true,
		serve: func(n int) {
			c.put(n)
			p.Must(t, "SELECT pg_reload_conf()")
		},
	}
}

func mariadbPassword(t *testing.T) rotation {
	m := servers.StartMariaDB(t)
	m.Must(t, "CREATE USER locker IDENTIFIED BY '"+word(0)+"'", "GRANT ALL ON locks.* TO locker")
	return rotation{
		addr: m.Addr(), url: passworded("mysql://locker@", "/locks"), files: passwords,
		serve:    func(n int) { m.Must(t, "SET PASSWORD FOR locker = PASSWORD('"+word(n)+"')") },
		refusals: func() int { return number(t, m.Must(t, "SHOW GLOBAL STATUS LIKE 'Access_denied_errors'")) },
	}
}

func mariadbCertificate(t *testing.T) rotation {
	c := newCertificates(t, "mysql")
	m := servers.StartMariaDB(t, "--ssl-cert="+c.path("tls.crt"), "--ssl-key="+c.path("tls.key"), "--ssl-ca="+c.path("ca.crt"))
	m.Must(t, "CREATE USER locker REQUIRE X509", "GRANT ALL ON locks.* TO locker")
	return rotation{
		addr: m.Addr(), url: certified(true, "mysql://locker@", "/locks"), files: c.files, halves: true,
		serve: func(n int) {
			c.put(n)
			m.Must(t, "FLUSH SSL")
		},
	}
}

func etcdPassword(t *testing.T) rotation {
	e := servers.StartEtcd(t, servers.EtcdCurrent, "--bcrypt-cost", "4")
	for _, args := range [][]string{
		{"user", "add", "root:r"}, {"role", "add", "root"}, {"user", "grant-role", "root", "root"},
		{"user", "add", "locker:" + word(0)}, {"role", "add", "locker"}, {"user", "grant-role", "locker", "locker"},
		{"role", "grant-permission", "--prefix", "locker", "readwrite", "leasehold/"}, {"auth", "enable"},
	} {
		e.Etcdctl(t, args...)
	}
	return rotation{
		addr: e.Addr(), url: passworded("etcd://locker@", ""), files: passwords,
		serve: func(n int) {
			cmd := e.EtcdctlCommand(t, "--user", "root:r", "user", "passwd", "locker", "--interactive=false")
			cmd.Stdin = strings.NewReader(word(n) + "\n")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
	}
}

func etcdCertificate(t *testing.T) rotation {
	c := newCertificates(t, "")
	e := servers.StartEtcd(t, servers.EtcdCurrent, "--cert-file", c.path("tls.crt"), "--key-file", c.path("tls.key"),
		"--trusted-ca-file", c.path("ca.crt"), "--client-cert-auth")
	return rotation{
		addr: e.Addr(), url: certified(true, "etcds://", ""), files: c.files, halves: true,
		serve: func(n int) {
			c.put(n)
			e.Stop()
			e.Start(t)
		},
	}
}

func natsPassword(t *testing.T) rotation {
	config := func(n int) string {
		return fmt.Sprintf("accounts { a { jetstream: enabled, users: [{user: locker, password: %q}] } }\n", word(n))
	}
	s := servers.StartNATS(t, 1, config(0))[0]
	return rotation{
		addr: s.Addr(), url: passworded("nats://locker@", "/locks"), files: passwords,
		serve: func(n int) { s.Reconfigure(config(n)) },
	}
}

// natsCredentials are users of an account, of which all but the last are revoked.
func natsCredentials(t *testing.T) rotation {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pair := func(create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
		key, err := create()
		must(err)
		public, err := key.PublicKey()
		must(err)
		return key, public
	}
	operator, operatorID := pair(nkeys.CreateOperator)
	_, systemID := pair(nkeys.CreateAccount)
	account, accountID := pair(nkeys.CreateAccount)
	signed := func(c jwt.Claims, by nkeys.KeyPair) string {
		text, err := c.Encode(by)
		must(err)
		return text
	}
	var files [generations][]byte
	var users [generations]string
	for n := range generations {
		user, id := pair(nkeys.CreateUser)
		seed, err := user.Seed()
		must(err)
		files[n], err = jwt.FormatUserConfig(signed(jwt.NewUserClaims(id), account), seed)
		must(err)
		users[n] = id
	}
	config := func(n int) string {
		claims := jwt.NewAccountClaims(accountID)
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1}
		for i := range n {
			claims.Revoke(users[i])
		}
		return fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %s, %s: %s }\n",
			signed(jwt.NewOperatorClaims(operatorID), operator), systemID,
			systemID, signed(jwt.NewAccountClaims(systemID), operator), accountID, signed(claims, operator))
	}
	s := servers.StartNATS(t, 1, config(0))[0]
	return rotation{
		addr: s.Addr(), halves: true, files: func(n int) map[string][]byte { return map[string][]byte{"x.creds": files[n]} },
		url: func(addr, dir string) string {
			return "nats://" + addr + "/locks" + options("creds_file", filepath.Join(dir, "x.creds"))
		},
		serve: func(n int) {
			s.Kill()
			s.Configure(config(n))
			s.Begin()
			s.Ready()
		},
	}
}

func natsCertificate(t *testing.T) rotation {
	c := newCertificates(t, "")
	config := fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true, timeout: 10 }\n", c.path("tls.crt"), c.path("tls.key"), c.path("ca.crt"))
	s := servers.StartNATS(t, 1, config)[0]
	return rotation{
		addr: s.Addr(), url: certified(true, "nats://", "/locks", "tls", "true"), files: c.files, halves: true,
		serve: func(n int) {
			c.put(n)
			s.Reconfigure(config)
		},
	}
}

func s3Keys(t *testing.T) rotation {
	s := servers.StartS3(t)
	s.AddAdmin("locker", word(0))
	return rotation{
		addr: s.Addr(), files: passwords, serve: func(n int) { s.SetSecret("locker", word(n)) },
		url: func(addr, dir string) string {
			return "s3://locker@locks/" + options("region", "us-east-1", "endpoint", "http://"+addr, "password_file", filepath.Join(dir, "password"))
		},
	}
}

func s3Certificate(t *testing.T) rotation {
	c := newCertificates(t, "")
	c.pureCAs = true
	s := servers.StartS3(t, "--cert", c.path("tls.crt"), "--key", c.path("tls.key"))
	return rotation{
		addr: s.Addr(), files: c.files, halves: true,
		serve: func(n int) {
			c.put(n)
			s.Kill()
			s.Begin()
			s.Ready()
		},
		url: func(addr, dir string) string {
			return fmt.Sprintf("s3://%s:%s@locks/", servers.S3Key, servers.S3Secret) +
				options("region", "us-east-1", "endpoint", "https://"+addr, "ca_file", filepath.Join(dir, "ca.crt"))
		},
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// longSessions lets leases of heldFor hang on one.
const longSessions = "maxSessionTimeout=120000"

// zookeeperPassword replaces it where ZooKeeper has it: in the ACLs of all nodes.
func zookeeperPassword(t *testing.T) rotation {
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{Config: []string{longSessions}})
	conn, _, err := zk.Connect([]string{z.Addr()}, 10*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if _, err := conn.Create("/app", nil, 0, zk.DigestACL(zk.PermAll, "locker", word(0))); err != nil {
		t.Fatal(err)
	}
	for n := range generations {
		if err := conn.AddAuth("digest", []byte("locker:"+word(n))); err != nil {
			t.Fatal(err)
		}
	}
	var give func(path string, n int)
	give = func(path string, n int) {
		children, _, err := conn.Children(path)
		if err != nil {
			return // it is gone
		}
		if _, err := conn.SetACL(path, zk.DigestACL(zk.PermAll, "locker", word(n)), -1); err != nil && err != zk.ErrNoNode {
			t.Fatal(err)
		}
		for _, child := range children {
			give(path+"/"+child, n)
		}
	}
	return rotation{
		addr: z.Addr(), url: passworded("zookeeper://locker@", "/app"), files: passwords, lasts: true,
		serve: func(n int) { give("/app", n) },
	}
}

func zookeeperCertificate(t *testing.T) rotation {
	c := newCertificates(t, "")
	port := servers.FreePorts(t, 1)[0]
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{Config: []string{
		longSessions, fmt.Sprint("secureClientPort=", port), "secureClientPortAddress=127.0.0.1", "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location=" + c.path("both.pem"), "ssl.keyStore.type=PEM", "ssl.trustStore.location=" + c.path("ca.crt"), "ssl.trustStore.type=PEM",
		"ssl.clientAuth=need",
	}})
	return rotation{
		addr: fmt.Sprint("127.0.0.1:", port), url: certified(true, "zookeeper://", ""), files: c.files, halves: true,
		serve: func(n int) {
			c.put(n)
			z.Kill()
			z.Start(t)
		},
	}
}

func kubeconfig(addr, ca, user string) []byte {
	return []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]
users: [{name: u, user: {%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, addr, ca, user))
}

func kubernetesToken(t *testing.T) rotation {
	k := servers.StartKubernetes(t)
	k.AddNamespace("locks")
	k.SetToken("locker", "system:masters", word(0))
	return rotation{
		addr: k.Addr(), files: func(n int) map[string][]byte { return map[string][]byte{"token": []byte(word(n))} },
		serve: func(n int) { k.SetToken("locker", "system:masters", word(n)) },
		url: func(addr, dir string) string {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(path, kubeconfig(addr, k.Authorities(), fmt.Sprintf("tokenFile: %q", filepath.Join(dir, "token"))), 0o600); err != nil {
				t.Fatal(err)
			}
			return "kubernetes://locks" + options("kubeconfig", path)
		},
	}
}

func kubernetesCertificate(t *testing.T) rotation {
	c := newCertificates(t, "")
	k := servers.StartKubernetes(t, "--client-ca-file", c.path("ca.crt"), "--tls-cert-file", c.path("tls.crt"), "--tls-private-key-file", c.path("tls.key"))
	k.AddNamespace("locks")
	k.Allow("locker")
	return rotation{
		addr: k.Addr(), files: c.files, halves: true,
		serve: func(n int) {
			c.put(n)
			k.Kill()
			k.Begin()
			k.Ready()
		},
		url: func(addr, dir string) string {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			who := fmt.Sprintf("client-certificate: %q, client-key: %q", filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
			if err := os.WriteFile(path, kubeconfig(addr, filepath.Join(dir, "ca.crt"), who), 0o600); err != nil {
				t.Fatal(err)
			}
			return "kubernetes://locks" + options("kubeconfig", path)
		},
	}
}

// service starts "leasehold serve", with a file that says who may what.
func service(t *testing.T, access string, args ...string) string {
	addr := fmt.Sprint("127.0.0.1:", servers.FreePorts(t, 1)[0])
	args = append([]string{"--store", "sqlite:" + filepath.Join(t.TempDir(), "locks.db"), "serve", "--listen", addr, "--access", access}, args...)
	servers.StartCommand(t, binary, addr, args...)
	return addr
}

// allow writes who may do all.
func allow(t *testing.T, path, field, value string) {
	t.Helper()
	text := fmt.Sprintf(`{"clients":[{"name":"locker",%q:[%q],"rules":[{"prefix":"","rights":["view","lock"]}]}]}`, field, value)
	err := os.WriteFile(path+".next", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(path+".next", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func httpToken(t *testing.T) rotation {
	access := filepath.Join(t.TempDir(), "access.json")
	serve := func(n int) {
		sum := sha256.Sum256([]byte(word(n)))
		allow(t, access, "tokens", hex.EncodeToString(sum[:]))
	}
	serve(0)
	return rotation{addr: service(t, access), url: passworded("http://", ""), files: passwords, serve: serve}
}

func httpCertificate(t *testing.T) rotation {
	c := newCertificates(t, "")
	access := filepath.Join(t.TempDir(), "access.json")
	allow(t, access, "certificates", "locker")
	addr := service(t, access, "--tls-cert", c.path("tls.crt"), "--tls-key", c.path("tls.key"), "--client-ca", c.path("ca.crt"))
	return rotation{addr: addr, url: certified(true, "https://", ""), files: c.files, halves: true, serve: c.put}
}
