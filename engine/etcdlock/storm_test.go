package etcdlock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Many wait, a third of them give up, and the holder dies: the others are served in their order,
// few are woken, and nothing is left over.
func TestStormOfWaiters(t *testing.T) {
	t.Parallel()
	const each, ttl = 12, 12 * time.Second // which a holder renews on a busy machine
	drivers := 25
	if testing.Short() {
		drivers = 10
	}
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	proxy := servers.StartProxy(t, e.Addr())
	dead, err := driverOn(t, clientAt(t, "http://"+proxy.Addr()), nil).Claim(driver.Request{Resource: "storm", Owner: "dead", TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dead.Try(ctx); err != nil {
		t.Fatal(err)
	}
	leave, killed := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			select {
			case <-time.After(time.Second):
				_, _ = dead.Renew(ctx, ttl) // its failure shows as too many turns
			case <-killed:
				return
			}
		}
	}()
	// A driver stands for a process, of twelve waiters.
	var wakes, turns atomic.Int64
	var order sync.Mutex
	var last uint64 // fence: their order is that of the queue
	var queued, left, all sync.WaitGroup
	for range drivers {
		d := driverOn(t, clientOf(t, e), nil)
		for i := range each {
			queued.Add(1)
			leaves := i < each/3
			if leaves {
				left.Add(1)
			}
			all.Go(func() {
				if leaves {
					defer left.Done()
				}
				c, err := d.Claim(driver.Request{Resource: "storm", Owner: rand.Text(), TTL: 2 * ttl, Queue: true})
				if err != nil {
					t.Errorf("Claim: %v", err)
				}
				w := &waiter{claim: c}
				err = w.try(ctx)
				queued.Done()
				if !errors.Is(err, driver.ErrBusy) {
					t.Errorf("Try: %v; want busy", err)
					return
				}
				if leaves {
					err = w.wait(ctx, leave, &wakes)
				} else {
					err = w.wait(ctx, nil, &wakes)
				}
				switch {
				case errors.Is(err, errLeft):
				case err != nil:
					t.Errorf("a waiter: %v", err)
				default:
					order.Lock()
					if turns.Add(1); w.fence < last {
						t.Errorf("fence %d was served after fence %d", w.fence, last)
					}
					last = w.fence
					order.Unlock()
				}
				if err := released(t, c, 20*time.Second); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
	}
	queued.Wait()
	wakes.Store(0) // who came while the watch of its driver began was woken for that
	close(leave)
	left.Wait()
	close(killed)
	proxy.Dark() // as if the holder's process had been killed
	all.Wait()
	t.Logf("%d turns, %d wake-ups", turns.Load(), wakes.Load())
	if stay := int64(drivers * (each - each/3)); turns.Load() != stay || wakes.Load() > 2*stay {
		t.Errorf("%d turns and %d wake-ups; want %d, and at most twice as many", turns.Load(), wakes.Load(), stay)
	}
	if keys, _ := keysOf(t, direct, "storm"); len(keys) > 0 {
		t.Errorf("left over: %q", keys)
	}
}

// A waiter is a claim in a queue.
type waiter struct {
	claim driver.Claim
	busy  *driver.Busy
	fence uint64
}

var errLeft = errors.New("it left the queue")

// try tries again as long as the outcome is unknown.
func (w *waiter) try(ctx context.Context) error {
	for {
		g, err := w.claim.Try(ctx)
		w.fence = g.Fence
		w.busy, _ = errors.AsType[*driver.Busy](err)
		if err == nil || w.busy != nil || ctx.Err() != nil {
			return err
		}
	}
}

// wait returns when the claim is granted or is to leave, and counts how often it was woken.
func (w *waiter) wait(ctx context.Context, leave <-chan struct{}, wakes *atomic.Int64) error {
	for {
		select {
		case <-w.busy.Wake:
			wakes.Add(1)
		case <-time.After(w.busy.Retry): // to keep the place
		case <-leave:
			return errLeft
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := w.try(ctx); !errors.Is(err, driver.ErrBusy) {
			return err
		}
	}
}
