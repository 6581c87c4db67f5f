package badday

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A client that the caller brings notices by itself, with the settings that docs/bad-day.md names.
func TestClientsThatAreBrought(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ttl  time.Duration
		open func(t *testing.T) (driver.Driver, *proxy.Proxy)
	}{
		{"etcd", 20 * time.Second, func(t *testing.T) (driver.Driver, *proxy.Proxy) {
			p := servers.StartProxy(t, servers.StartEtcd(t, servers.EtcdCurrent).Addr())
			client, err := clientv3.New(clientv3.Config{
				Endpoints:         []string{"http://" + p.Addr()},
				DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			return opened(etcdlock.New(client, nil))(t), p
		}},
		{"NATS", 10 * time.Second, func(t *testing.T) (driver.Driver, *proxy.Proxy) {
			p := servers.StartProxy(t, servers.StartNATS(t, 1, "")[0].Addr())
			client, err := nats.Connect("nats://"+p.Addr(), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1),
				nats.PingInterval(time.Second), nats.MaxPingsOutstanding(1), nats.ReconnectWait(250*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			js, err := jetstream.New(client)
			if err == nil {
				err = natslock.CreateBucket(t.Context(), js, "locks", 1)
			}
			if err != nil {
				t.Fatal(err)
			}
			return opened(natslock.New(js, "locks", nil))(t), p
		}},
		{"S3", 10 * time.Second, func(t *testing.T) (driver.Driver, *proxy.Proxy) {
			p := servers.StartProxy(t, servers.StartS3(t).Addr())
			client := s3.New(s3.Options{
				BaseEndpoint: aws.String("http://" + p.Addr()), UsePathStyle: true, Region: "us-east-1",
				Credentials: credentials.NewStaticCredentialsProvider(servers.S3Key, servers.S3Secret, ""),
				HTTPClient:  &http.Client{Transport: &http.Transport{ResponseHeaderTimeout: time.Second, MaxIdleConnsPerHost: 1}},
			})
			return opened(s3lock.New(client, "locks", nil))(t), p
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, p := c.open(t)
			locks, err := leasehold.New(d, &leasehold.Options{TTL: c.ttl})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { locks.Close() })
			held := hold(t, locks, "held/")
			if p.Forget() == 0 {
				t.Fatal("there was no connection to forget")
			}
			time.Sleep(c.ttl + busy) // the leases of before are over unless renewed
			for _, lease := range held {
				if lease.Context().Err() != nil {
					t.Errorf("the lease of %q was lost: %v", lease.Name(), context.Cause(lease.Context()))
				}
			}
		})
	}
}

// opened is a driver that ends with the test.
func opened[D driver.Driver](d D, err error) func(t *testing.T) driver.Driver {
	return func(t *testing.T) driver.Driver {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
}
