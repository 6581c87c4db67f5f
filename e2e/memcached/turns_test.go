package memcached

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// One process wants a name all the time, in several goroutines. Another gets it in between
// all the same: without its mark a try finds the name free once in a hundred times.
func TestMemcachedOneProcessKeepsNothingForItself(t *testing.T) {
	t.Parallel()
	m := servers.StartMemcached(t)
	// The longer it hands over inside, the more seldom is the name free for a moment.
	greedy, err := leasehold.New(openDriver(t, nil, m.Addr()), &leasehold.Options{HandOver: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { greedy.Close() })
	other := openLocker(t, time.Minute, m.Addr())
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	begun := make(chan struct{})
	first := sync.OnceFunc(func() { close(begun) })
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				err := greedy.Do(ctx, "n", func(context.Context) error {
					first()
					time.Sleep(time.Millisecond)
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Errorf("the greedy process: %v", err)
				}
			}
		})
	}
	<-begun
	var waited time.Duration
	const turns = 5
	for range turns {
		start := time.Now()
		mustRelease(t, mustAcquire(t, other, "n"))
		waited += time.Since(start)
	}
	stop()
	all.Wait()
	t.Logf("%d turns took %v", turns, waited)
	if waited > turns*2*time.Second {
		t.Errorf("%d turns beside a greedy process took %v", turns, waited)
	}
}
