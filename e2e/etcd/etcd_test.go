package etcd

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/etcdlock"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite. Tests wait more than
// they compute, so that more of them run at once than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	// A server waits for the disk at each write, and the other tests of the machine use it too.
	var memory syscall.Statfs_t
	if syscall.Statfs("/dev/shm", &memory) == nil && int64(memory.Bavail)*memory.Bsize > 4<<30 {
		os.Setenv("TMPDIR", "/dev/shm")
	}
	locktest.Main(m, openAddress)
}

// etcdDriver closes its client too.
type etcdDriver struct {
	*etcdlock.Driver
	client *clientv3.Client
}

func (d etcdDriver) Close() error {
	err := d.Driver.Close()
	if closed := d.client.Close(); err == nil {
		err = closed
	}
	return err
}

func newClient(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(), // servers that are down are part of the tests
		DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: time.Second,
	})
}

// openAddress opens the cluster whose endpoints stand in address, separated by commas.
func openAddress(address string) (driver.Driver, error) {
	client, err := newClient(strings.Split(address, ","))
	if err != nil {
		return nil, err
	}
	d, err := etcdlock.New(client, nil)
	if err != nil {
		return nil, err
	}
	return etcdDriver{d, client}, nil
}

func harness(members ...*servers.Etcd) locktest.Harness {
	address := strings.Join(servers.Endpoints(members...), ",")
	return locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := openAddress(address)
			if err != nil {
				t.Fatalf("open %s: %v", address, err)
			}
			return d
		},
		Address: address,
		Pause: func(t testing.TB) (resume func()) {
			for _, m := range members {
				m.Signal(syscall.SIGSTOP)
				untilStopped(t, m.Pid())
			}
			return func() {
				for _, m := range members {
					m.Signal(syscall.SIGCONT)
				}
			}
		},
		Restart: func(t testing.TB) {
			for _, m := range members {
				m.Kill()
			}
			for _, m := range members {
				m.Begin()
			}
			for _, m := range members {
				m.Ready()
			}
		},
	}
}

// untilStopped waits until all threads of a process that was told to stop have.
func untilStopped(t testing.TB, pid int) {
	t.Helper()
	stopped := func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range threads {
			stat, err := os.ReadFile(path)
			if _, rest, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(rest, "T") {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(5 * time.Second); !stopped(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d does not stop", pid)
		}
	}
}

var all = flag.Bool("all", false, "run the suite on every version and size, not on two of the four")

// aloneEnv is set in the process of a test that runs alone.
const aloneEnv = "LEASEHOLD_TEST_ETCD_ALONE"

// The suite counts the goroutines of its process and mostly waits. So each cluster has a
// process of its own, beside the other tests.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, on := range []struct {
		version string
		members string
		always  bool
	}{
		{servers.EtcdDebian, "1", true}, {servers.EtcdCurrent, "3", true},
		{servers.EtcdDebian, "3", false}, {servers.EtcdCurrent, "1", false},
	} {
		t.Run(on.version+"/"+on.members, func(t *testing.T) {
			t.Parallel()
			if !on.always && !*all {
				t.Skip("needs -all")
			}
			alone(t, "TestSuite", on.version+" "+on.members)
		})
	}
}

// alone runs a test in a process of its own, with what it is to run on.
func alone(t *testing.T, test, on string) {
	t.Helper()
	run := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.v", "-test.timeout", "5m")
	run.Env = append(os.Environ(), aloneEnv+"="+on)
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := run.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if err != nil || strings.Contains(line, "SKIP") {
			t.Log(strings.TrimRight(line, "\n"))
		}
	}
	if err != nil {
		t.Errorf("%s: %v", test, err)
	}
}

func TestSuite(t *testing.T) {
	var version string
	var members int
	if _, err := fmt.Sscan(os.Getenv(aloneEnv), &version, &members); err != nil {
		t.Skip("TestConformance runs it")
	}
	h := harness(servers.StartEtcdCluster(t, version, members)...)
	locktest.Run(t, h)
}

// A server that has lost its data tells nobody: holders hear of it from their next renewal.
func TestFlush(t *testing.T) {
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	h := harness(e)
	h.NoLossNotice = true
	h.FlushState = func(t testing.TB) {
		e.Kill()
		e.Forget(t)
		e.Start(t)
	}
	for _, c := range locktest.Cases() {
		if c.Needs&locktest.NeedFlushState != 0 {
			t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
		}
	}
}
