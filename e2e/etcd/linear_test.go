package etcd

import (
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/e2e/servers"
)

const interrupt = syscall.SIGINT

func useNamespace(client *clientv3.Client, prefix string) {
	client.KV = namespace.NewKV(client.KV, prefix)
	client.Watcher = namespace.NewWatcher(client.Watcher, prefix)
	client.Lease = namespace.NewLease(client.Lease, prefix)
}

func TestEtcdIsLinearizable(t *testing.T) {
	t.Parallel()
	members := servers.StartEtcdCluster(t, servers.EtcdCurrent, 3)
	linear.Check(t, func(t testing.TB) driver.Driver {
		return driverOn(t, clientOf(t, members...), nil)
	})
}
