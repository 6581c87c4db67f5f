// Command waiters has so many wait for the lock "wanted" on ZooKeeper, each at the ensemble:
//
//	waiters HOST:PORT,... COUNT SESSION
//
// It tells the test of itself through package crowd.
package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/locktest"
)

func main() {
	count, err := strconv.Atoi(os.Args[2])
	crowd.Check(err)
	session, err := time.ParseDuration(os.Args[3])
	crowd.Check(err)
	d, err := zklock.New(strings.Split(os.Args[1], ","), &zklock.Options{SessionTimeout: session})
	crowd.Check(err)
	queued := make(chan struct{}, 10*count) // again after each session
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var served sync.WaitGroup
	for range count {
		locks, err := leasehold.New(d, &leasehold.Options{Trace: locktest.On(leasehold.StepQueued, func(leasehold.Event) { queued <- struct{}{} })})
		crowd.Check(err)
		served.Go(func() { crowd.Check(locks.Do(ctx, "wanted", func(context.Context) error { return nil })) })
	}
	crowd.Tell(count, queued, served.Wait)
	crowd.Check(d.Close())
}
