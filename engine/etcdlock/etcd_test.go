package etcdlock_test

import (
	"flag"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite, and of two tests of its own. Tests wait more than
// they compute, so that more of them run at once than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	if address := os.Getenv(recalledEnv); address != "" {
		if err := holdRecalled(address); err != nil {
			log.Fatal(err)
		}
		return
	}
	if address := os.Getenv(limitedEnv); address != "" {
		if err := waitLimited(address); err != nil {
			log.Fatal(err)
		}
		return
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
		Pause:   func(testing.TB) (resume func()) { return servers.PauseAll(members) },
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
