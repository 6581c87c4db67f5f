package zklock_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// While nothing happens, one waiter of a process lists the queue for all of them. All are served when it is their turn.
func TestWaitersLookTogether(t *testing.T) {
	t.Parallel()
	const waiters, lasts = 60, 8 * time.Second
	z := servers.StartZooKeeper(t, servers.ZooKeeperOptions{})
	opts := &zklock.Options{SessionTimeout: 15 * time.Second}
	theirs := driverOn(t, &zklock.Options{SessionTimeout: time.Minute}, z.Addr())
	holder := claimOn(t, theirs, "crowd")
	claimtest.Granted(t, holder)
	d := driverOn(t, opts, z.Addr())
	var queued, all sync.WaitGroup
	var moves atomic.Bool // the queue, so that who holds now is not told
	queued.Add(waiters)
	for i := range waiters {
		all.Go(func() {
			c, err := d.Claim(driver.Request{Resource: "crowd", Owner: fmt.Sprint("waiter ", i), TTL: d.Features().SessionTTL, Queue: true})
			if err != nil {
				t.Error(err)
			}
			for first := true; ; first = false {
				_, err := c.Try(t.Context())
				if first {
					queued.Done()
				}
				busy, refused := errors.AsType[*driver.Busy](err)
				if !refused {
					if err != nil {
						t.Errorf("a waiter: %v", err)
					}
					break
				}
				by := busy.Holder.Owner.Reveal()
				if by == "" && !moves.Load() || by == fmt.Sprint("waiter ", i) {
					t.Errorf("a waiter waits for %q", by)
				}
				select {
				case <-busy.Wake:
				case <-time.After(busy.Retry):
				case <-t.Context().Done():
				}
			}
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
	}
	queued.Wait()
	least := math.MaxInt // who loses its connection on a busy machine looks again
	for range 3 {
		renewed(t, theirs, holder)
		before := requests(t, z)
		time.Sleep(lasts)
		if least = min(least, requests(t, z)-before); least <= 4*waiters {
			break
		}
	}
	if least > 4*waiters {
		t.Errorf("%d waiters made %d requests in %v; want no more than four each", waiters, least, lasts)
	}
	moves.Store(true)
	claimtest.Released(t, holder)
	all.Wait()
}

// requests is how many the server has had.
func requests(t *testing.T, z *servers.ZooKeeper) int {
	t.Helper()
	text, err := z.Ask("srvr")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(text, "Received: ")
	digits, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatalf("srvr: %q", text)
	}
	return n
}
