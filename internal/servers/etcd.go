package servers

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The versions of etcd that tests run with.
const (
	EtcdDebian  = "debian"  // etcd-server of Debian 12, 3.4
	EtcdCurrent = "current" // the version that e2e's go.mod requires, built by make tools
)

// An Etcd is one member of a cluster.
type Etcd struct {
	server
	Name   string
	Peer   int // port
	health int // port
	scheme string
}

// StartEtcd starts a cluster of one. args are further options.
func StartEtcd(t testing.TB, version string, args ...string) *Etcd {
	t.Helper()
	return StartEtcdCluster(t, version, 1, args...)[0]
}

// StartEtcdCluster starts n members, and returns when they have a leader.
func StartEtcdCluster(t testing.TB, version string, n int, args ...string) []*Etcd {
	t.Helper()
	var members []*Etcd
	var initial []string
	ports := FreePorts(t, 3*n)
	scheme := "http"
	if slices.Contains(args, "--cert-file") {
		scheme = "https"
	}
	for i := range n {
		e := &Etcd{
			server: server{Port: ports[3*i], life: t, dir: DataDir(t), binary: etcdBinary(t, version)},
			Name:   fmt.Sprint("n", i), Peer: ports[3*i+1], health: ports[3*i+2], scheme: scheme,
		}
		e.serves = func() error { _, err := e.ask("/health"); return err }
		members = append(members, e)
		initial = append(initial, e.Name+"=http://"+address(e.Peer))
	}
	if !measures(t) && !etcdInstalled(version) {
		args = append(args, "--unsafe-no-fsync") // see diskOf; Debian's version lacks the option
	}
	for _, e := range members {
		peer, client := "http://"+address(e.Peer), e.scheme+"://"+e.Addr()
		e.args = append([]string{
			"--name", e.Name, "--data-dir", e.Data(), "--log-level", "error",
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", "new",
			"--listen-metrics-urls", "http://" + address(e.health),
		}, args...)
		e.Begin()
	}
	for _, e := range members {
		e.Ready()
	}
	return members
}

// ask returns a page with what the member reports about itself.
func (e *Etcd) ask(path string) ([]byte, error) { return get("http://" + address(e.health) + path) }

// Endpoints returns the URLs of members for clients.
func Endpoints(members ...*Etcd) []string {
	var urls []string
	for _, e := range members {
		urls = append(urls, e.scheme+"://"+e.Addr())
	}
	return urls
}

// Etcdctl runs Debian's etcdctl on the member and returns its output.
func (e *Etcd) Etcdctl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := e.EtcdctlCommand(t, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("etcdctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// EtcdctlCommand returns Debian's etcdctl for the member, not started.
func (e *Etcd) EtcdctlCommand(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Need(t, "etcd", "etcdctl"), append([]string{"--endpoints", e.Addr()}, args...)...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	cmd.SysProcAttr = mortal()
	return cmd
}

// IsLeader reports whether the member leads the cluster.
func (e *Etcd) IsLeader() bool {
	text, err := e.ask("/metrics")
	return err == nil && strings.Contains(string(text), "\netcd_server_is_leader 1\n")
}

// EtcdLeader returns the member that leads.
func EtcdLeader(t testing.TB, members []*Etcd) *Etcd {
	t.Helper()
	return first(t, members, "leads", (*Etcd).IsLeader)
}

// etcdInstalled reports whether a version, or the build that the environment names in its place, is
// installed and not built by make tools.
func etcdInstalled(version string) bool { return version == EtcdDebian || Root("etcd") != "" }

// etcdBinary returns the server of a version, or the build that the environment names in place of
// either.
func etcdBinary(t testing.TB, version string) string {
	t.Helper()
	if etcdInstalled(version) {
		return Need(t, "etcd", "etcd")
	}
	return built(t, "etcd", "etcd-current", "e2e/go.mod", "go.etcd.io/etcd/server/v3")
}
