package serve_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// A hung is an engine that answers no call.
type hung struct {
	*memory.Driver
	now, most atomic.Int64 // now: calls in flight; most: their maximum
}

func (d *hung) Inspect(ctx context.Context, _ string) (driver.State, error) {
	now := d.now.Add(1)
	defer d.now.Add(-1)
	for most := d.most.Load(); now > most && !d.most.CompareAndSwap(most, now); most = d.most.Load() {
	}
	<-ctx.Done()
	return driver.State{}, ctx.Err()
}

// However many clients ask whether the instance is ready, an engine that hangs gets one call. Its
// connections stay free for holders.
func TestReadyAsksOneQuestion(t *testing.T) {
	t.Parallel()
	d := &hung{Driver: memory.NewServer().Connect()}
	s := startOn(t, d, nil)
	var all sync.WaitGroup
	began := time.Now()
	for range 20 {
		all.Go(func() {
			resp, err := http.Get(s.url + "/readyz")
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("readyz: %s", resp.Status)
			}
		})
	}
	all.Wait()
	if most := d.most.Load(); most != 1 {
		t.Errorf("%d questions at once", most)
	}
	t.Logf("all are answered after %v", time.Since(began))
}
