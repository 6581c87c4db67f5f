// Command waiters has so many wait for a lock on etcd each, named "a0" and so on, which
// others hold:
//
//	waiters URL,... COUNT
//
// It tells the test of itself through package crowd.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/locktest"
)

func main() {
	count, err := strconv.Atoi(os.Args[2])
	crowd.Check(err)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(os.Args[1], ","), Logger: zap.NewNop(),
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
	})
	crowd.Check(err)
	d, err := etcdlock.New(client, nil)
	crowd.Check(err)
	queued := make(chan struct{}, count)
	locks, err := leasehold.New(d, &leasehold.Options{
		TTL:   30 * time.Second,
		Trace: locktest.On(leasehold.StepQueued, func(leasehold.Event) { queued <- struct{}{} }),
	})
	crowd.Check(err)
	var served sync.WaitGroup
	for i := range count {
		served.Go(func() {
			crowd.Check(locks.Do(context.Background(), fmt.Sprint("a", i), func(context.Context) error { return nil }))
		})
	}
	crowd.Tell(count, queued, served.Wait)
	crowd.Check(d.Close())
}
