package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/redislock"
)

// A dawdler holds some scripts and some of their replies back, and lets them go on when
// their callers have gone.
type dawdler struct{ busy atomic.Int64 } // scripts on their way

func (*dawdler) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*dawdler) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d *dawdler) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" {
			return next(ctx, cmd)
		}
		d.busy.Add(1)
		defer d.busy.Add(-1)
		dawdle()
		defer dawdle()
		return next(context.WithoutCancel(ctx), cmd)
	}
}

func dawdle() {
	if mathrand.N(3) == 0 {
		time.Sleep(mathrand.N(120 * time.Millisecond))
	}
}

// A waiter gives up about when it is granted, and its commands come late. Once its clean-up
// is through, nothing of it is left, nor is there when the last command has come.
func TestRedisGivingUpLeavesNothing(t *testing.T) {
	t.Parallel()
	r, nodes := servers.StartRedis(t), servers.StartCluster(t, 3)
	for kind, connect := range map[string]func() redis.UniversalClient{
		"single": func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: r.Addr()}) },
		"cluster": func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			open := func(late *dawdler) *redislock.Driver {
				client := connect()
				t.Cleanup(func() { client.Close() })
				if late != nil {
					client.AddHook(late)
				}
				return redisDriverOf(t, client, nil)
			}
			prompt := open(nil)
			var all sync.WaitGroup
			for i := range 8 {
				late := new(dawdler)
				d := open(late)
				all.Go(func() {
					for range 20 {
						if err := givesUpWhenGranted(t.Context(), fmt.Sprint("given-up-", i), prompt, d, late); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// givesUpWhenGranted has a waiter on d give up about when a holder on prompt releases.
func givesUpWhenGranted(ctx context.Context, name string, prompt, d *redislock.Driver, late *dawdler) error {
	holder, err := prompt.Claim(driver.Request{Resource: name, Owner: rand.Text(), TTL: 30 * time.Second})
	if err != nil {
		return err
	}
	if _, err := holder.Try(ctx); err != nil {
		return fmt.Errorf("%s: Try where nobody is: %w", name, err)
	}
	waiters, err := leasehold.New(d, nil)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, mathrand.N(250*time.Millisecond))
	defer cancel()
	outcome := make(chan error, 1)
	go func() {
		lease, err := waiters.Acquire(short, name)
		if err == nil {
			outcome <- lease.Release(ctx)
			return
		}
		outcome <- nil
	}()
	time.Sleep(mathrand.N(250 * time.Millisecond)) // while it waits, or after
	released := holder.Release(ctx)
	if err := errors.Join(released, <-outcome, waiters.Close()); err != nil { // Close waits for the clean-up
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := nobodyAt(ctx, prompt, name); err != nil {
		return fmt.Errorf("after Close: %w", err)
	}
	for late.busy.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := nobodyAt(ctx, prompt, name); err != nil {
		return fmt.Errorf("after late commands: %w", err)
	}
	return nil
}

func nobodyAt(ctx context.Context, d *redislock.Driver, name string) error {
	st, err := d.Inspect(ctx, name)
	if err == nil && len(st.Holders)+len(st.Waiters) > 0 {
		err = fmt.Errorf("%s has %d holders and %d waiters", name, len(st.Holders), len(st.Waiters))
	}
	return err
}
