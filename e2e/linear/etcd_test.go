package linear

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestEtcdIsLinearizable(t *testing.T) {
	t.Parallel()
	members := servers.StartEtcdCluster(t, servers.EtcdCurrent, 3)
	Check(t, func(t testing.TB) driver.Driver {
		client, err := clientv3.New(clientv3.Config{Endpoints: servers.Endpoints(members...), Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		d, err := etcdlock.New(client, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}
