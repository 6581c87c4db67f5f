// Command peers is one process of a crowd that waits with other libraries; see package crowd.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/leasehold-go/leasehold/internal/crowd"
)

func main() {
	crowd.WorkWith(func(_ context.Context, o crowd.Order) (func() (crowd.Lock, error), error) {
		switch o.How {
		case "rueidislock":
			return ofRueidislock(o.URL)
		case "concurrency":
			return ofConcurrency(o.URL)
		case "zk.Lock":
			return ofZK(o.URL)
		}
		return nil, fmt.Errorf("no lock is called %q", o.How)
	})
}

// ofRueidislock opens one Locker per process, as its users do.
func ofRueidislock(addr string) (func() (crowd.Lock, error), error) {
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:  1, KeyValidity: crowd.TTL, ExtendInterval: crowd.TTL / 3, NoLoopTracking: true,
	})
	return func() (crowd.Lock, error) {
		return func(ctx context.Context, queued func()) (uint64, func() error, error) {
			queued()
			_, unlock, err := locks.WithContext(ctx, crowd.Name)
			return 0, func() error { unlock(); return nil }, err
		}, nil
	}, err
}

// ofConcurrency opens a session per waiter, because two mutexes of one session do not exclude each
// other.
func ofConcurrency(addr string) (func() (crowd.Lock, error), error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	return func() (crowd.Lock, error) {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(int(crowd.TTL/time.Second)))
		if err != nil {
			return nil, err
		}
		m := concurrency.NewMutex(s, crowd.Name)
		return func(ctx context.Context, queued func()) (uint64, func() error, error) {
			queued()
			err := m.Lock(ctx)
			return 0, func() error { return m.Unlock(ctx) }, err
		}, nil
	}, err
}

func ofZK(addr string) (func() (crowd.Lock, error), error) {
	conn, _, err := zk.Connect(strings.Split(addr, ","), crowd.TTL, zk.WithLogger(log.New(io.Discard, "", 0)), zk.WithLogInfo(false))
	return func() (crowd.Lock, error) {
		l := zk.NewLock(conn, "/zklock/"+crowd.Name, zk.WorldACL(zk.PermAll))
		return func(_ context.Context, queued func()) (uint64, func() error, error) {
			queued()
			return 0, l.Unlock, l.Lock()
		}, nil
	}, err
}
