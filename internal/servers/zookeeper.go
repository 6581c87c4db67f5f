package servers

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// zookeeperJar is the path of ZooKeeper in Debian, below the root of the build. Its manifest names
// the files that it needs.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

// A ZooKeeper is one ZooKeeper server, alone or of an ensemble.
type ZooKeeper struct{ server }

// ZooKeeperOptions change how servers are started.
type ZooKeeperOptions struct {
	Tick   time.Duration // 0: 200 ms. Sessions end at the end of a tick
	Config []string      // more lines of zoo.cfg
	Java   []string      // more options of the Java machine, such as "-Dzookeeper.extendedTypesEnabled=true"
}

// StartZooKeeper starts one server. It grants sessions of 0.4 to 60 s. The operating system decides
// when its log is written to disk, unless Config contains "forceSync=yes".
func StartZooKeeper(t testing.TB, opts ZooKeeperOptions) *ZooKeeper {
	t.Helper()
	z := newZooKeeper(t, FreePorts(t, 1)[0], 0, opts, nil)
	z.Start(t)
	return z
}

// StartZooKeepers starts an ensemble of n servers, and returns when all of them serve.
func StartZooKeepers(t testing.TB, n int, opts ZooKeeperOptions) []*ZooKeeper {
	t.Helper()
	ports := FreePorts(t, 3*n)
	var peers []string
	for i := range n {
		peers = append(peers, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, ports[3*i+1], ports[3*i+2]))
	}
	all := make([]*ZooKeeper, n)
	for i := range all {
		all[i] = newZooKeeper(t, ports[3*i], i+1, opts, peers)
		all[i].Begin()
	}
	for _, z := range all {
		z.Ready()
	}
	return all
}

func newZooKeeper(t testing.TB, port, id int, opts ZooKeeperOptions, peers []string) *ZooKeeper {
	t.Helper()
	need(t, "zookeeper", "ZooKeeper", func() error {
		_, err := exec.LookPath("java")
		_, missing := os.Stat(Root("zookeeper") + zookeeperJar)
		return errors.Join(err, missing)
	})
	z := &ZooKeeper{server{Port: port, life: t, dir: DataDir(t), binary: "java"}}
	z.args = append([]string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"}, opts.Java...)
	z.args = append(z.args, "-cp", "/etc/zookeeper/conf:"+zookeeperPath(t),
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(z.dir, "zoo.cfg"))
	z.serves = func() error {
		mode, err := z.Mode()
		if err == nil && mode == "" {
			err = errors.New("it serves nobody")
		}
		return err
	}
	tick := opts.Tick
	if tick == 0 {
		tick = 200 * time.Millisecond
	}
	lines := append([]string{
		fmt.Sprintf("tickTime=%d", tick.Milliseconds()), "dataDir=" + z.Data(),
		fmt.Sprintf("clientPort=%d", port), "clientPortAddress=127.0.0.1", "maxClientCnxns=0",
		"initLimit=50", "syncLimit=15", "minSessionTimeout=400", "maxSessionTimeout=60000",
		"admin.enableServer=false", "4lw.commands.whitelist=*", "forceSync=no",
	}, append(opts.Config, peers...)...)
	write(t, filepath.Join(z.dir, "zoo.cfg"), strings.Join(lines, "\n")+"\n")
	if err := os.Mkdir(z.Data(), 0o700); err != nil {
		t.Fatalf("make a folder: %v", err)
	}
	if id > 0 {
		write(t, filepath.Join(z.Data(), "myid"), fmt.Sprint(id))
	}
	return z
}

// zookeeperPath returns the class path of ZooKeeper. The manifest names installed paths; the same
// files of this build come before them.
func zookeeperPath(t testing.TB) string {
	t.Helper()
	root := Root("zookeeper")
	jar, err := zip.OpenReader(root + zookeeperJar)
	if err != nil {
		t.Fatalf("open ZooKeeper: %v", err)
	}
	defer jar.Close()
	manifest, err := fs.ReadFile(jar, "META-INF/MANIFEST.MF")
	if err != nil {
		t.Fatalf("read ZooKeeper's manifest: %v", err)
	}
	text := strings.NewReplacer("\r", "", "\n ", "").Replace(string(manifest)) // lines are folded
	_, needs, _ := strings.Cut(text, "Class-Path: ")
	needs, _, _ = strings.Cut(needs, "\n")
	var path []string
	for _, one := range strings.Fields(needs) {
		path = append(path, root+one)
	}
	for _, forTLS := range []string{"netty-codec", "netty-resolver", "netty-transport-native-unix-common"} { // the manifest omits them
		path = append(path, root+"/usr/share/java/"+forTLS+".jar")
	}
	return strings.Join(append(path, root+zookeeperJar), ":")
}

// Mode returns the server's current mode: standalone, leader or follower, or "" without a quorum.
func (z *ZooKeeper) Mode() (string, error) {
	text, err := z.Ask("srvr")
	if err != nil {
		return "", err
	}
	_, mode, _ := strings.Cut(text, "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode, nil
}

// Ask sends a four-letter word and returns the answer.
func (z *ZooKeeper) Ask(word string) (string, error) {
	conn, err := dial(z.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(word)); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	return string(text), err
}

// Leader returns the leader of servers. It fails t if there is none after a while.
func Leader(t testing.TB, servers []*ZooKeeper) *ZooKeeper {
	t.Helper()
	return first(t, servers, "leads", func(z *ZooKeeper) bool {
		mode, err := z.Mode()
		return err == nil && mode == "leader"
	})
}
