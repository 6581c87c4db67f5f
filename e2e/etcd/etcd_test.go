package etcd

import (
	"flag"
	"fmt"
	"os"
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
