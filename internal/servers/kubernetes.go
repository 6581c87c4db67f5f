package servers

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Kubernetes is an API server with an etcd of its own, without the rest of a cluster.
type Kubernetes struct {
	server
	Etcd *Etcd
}

// KubernetesUsers are the users that an API server knows. The user admin may do everything; Roles
// decide what others may do.
var KubernetesUsers = []string{"admin", "locker"}

// StartKubernetes starts an API server, and returns when it serves. more are further options.
func StartKubernetes(t testing.TB, more ...string) *Kubernetes {
	t.Helper()
	binary := built(t, "kube-apiserver", "kubernetes", "scripts/kube-apiserver/go.mod", "k8s.io/kubernetes")
	k := &Kubernetes{server{Port: FreePorts(t, 1)[0], life: t, dir: DataDir(t), binary: binary}, StartEtcd(t, EtcdCurrent)}
	k.serves = func() error { return k.ask(http.MethodGet, "/readyz", "", http.StatusOK) }
	accounts := filepath.Join(k.dir, "accounts.pem") // the key that would sign tokens of service accounts
	cert, key := NewAuthority(t, "accounts").Issue("accounts")
	write(t, accounts, string(cert)+string(key))
	k.know("")
	k.args = []string{
		"--etcd-servers", Endpoints(k.Etcd)[0], "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(k.Port),
		"--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none", "--cert-dir", filepath.Join(k.dir, "certs"),
		"--service-cluster-ip-range", "198.51.100.0/24", "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", accounts, "--service-account-signing-key-file", accounts, "--disable-admission-plugins", "ServiceAccount",
		"--authorization-mode", "RBAC", "--token-auth-file", k.tokens(),
	}
	k.args = append(k.args, more...)
	k.Start(t)
	return k
}

func (k *Kubernetes) tokens() string { return filepath.Join(k.dir, "tokens.csv") }

// know writes the tokens of all users, and one more line.
func (k *Kubernetes) know(line string) {
	k.life.Helper()
	var known strings.Builder
	for _, user := range KubernetesUsers {
		fmt.Fprintf(&known, "token-of-%s,%s,%s\n", user, user, user)
	}
	write(k.life, k.tokens(), strings.Replace(known.String(), "admin\n", "admin,system:masters\n", 1)+line)
}

// SetToken restarts the server with one more user, who has that token and group. It returns when
// the server serves.
func (k *Kubernetes) SetToken(user, group, token string) {
	k.life.Helper()
	k.know(fmt.Sprintf("%s,%s,%[2]s,%s\n", token, user, group))
	k.Kill()
	k.Start(k.life)
}

// Authorities returns the file by which clients verify the server, unless it was given another
// certificate.
func (k *Kubernetes) Authorities() string { return filepath.Join(k.dir, "certs", "apiserver.crt") }

// Allow lets a user do everything.
func (k *Kubernetes) Allow(user string) {
	k.life.Helper()
	body := fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":%q},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":%[1]q}]}`, user)
	if err := k.ask(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body, http.StatusCreated); err != nil {
		k.life.Fatalf("let a user do all: %v", err)
	}
}

// AddNamespace creates a namespace.
func (k *Kubernetes) AddNamespace(name string) {
	k.life.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
	if err := k.ask(http.MethodPost, "/api/v1/namespaces", body, http.StatusCreated); err != nil {
		k.life.Fatalf("add a namespace: %v", err)
	}
}

// ask makes a call as admin. It returns an error unless the status is want.
func (k *Kubernetes) ask(method, path, body string, want int) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	client := http.Client{Timeout: 10 * time.Second, Transport: transport}
	req, err := http.NewRequest(method, k.Endpoint()+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer token-of-admin")
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != want {
		return fmt.Errorf("%s answers %s", path, resp.Status)
	}
	return nil
}

// Endpoint returns the server's URL.
func (k *Kubernetes) Endpoint() string { return "https://" + k.Addr() }

// URL returns the URL of a store in a namespace, for the user admin.
func (k *Kubernetes) URL(namespace string) string {
	k.life.Helper()
	return "kubernetes://" + namespace + "?kubeconfig=" + k.Kubeconfig("admin", k.Addr())
}

// Kubeconfig writes a file for kubectl that logs user in at addr: this server, or a proxy in front
// of it.
func (k *Kubernetes) Kubeconfig(user, addr string) (path string) {
	k.life.Helper()
	file, err := os.CreateTemp(k.dir, "kubeconfig-*")
	if err != nil {
		k.life.Fatalf("write a kubeconfig: %v", err)
	}
	defer file.Close()
	_, err = fmt.Fprintf(file, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]
users: [{name: u, user: {token: "token-of-%s"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, addr, k.Authorities(), user)
	if err != nil {
		k.life.Fatalf("write a kubeconfig: %v", err)
	}
	return file.Name()
}
