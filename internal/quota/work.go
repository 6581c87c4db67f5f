//go:build unix

package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
)

// An Order says what the processes do. Worker w works on key w % Keys. If there are enough workers,
// each process has some for each key.
type Order struct {
	URL   string // of the store
	How   string // "" for Leasehold, otherwise the program's name for its competitor
	Board string // the file of the shared memory

	Keys, PerKey int // PerKey workers of each key
	Limit, Total int // limits of one key, and of all keys together
	Hold         time.Duration
	TTL          time.Duration

	Processes, Process int // Process is set by Start
}

// workers calls do for the workers of the process, until do returns false.
func (o Order) workers(do func(worker int) bool) {
	for w := range o.Keys * o.PerKey {
		if w/o.Keys%o.Processes == o.Process && !do(w) {
			return
		}
	}
}

// TotalName is the name of the limit of all keys together.
const TotalName = "total"

// KeyName is the name of a key's limit.
func KeyName(key int) string { return fmt.Sprintf("tenant/%d", key) }

// An Admission waits until a worker of key may work. It returns a function that ends the turn.
type Admission func(ctx context.Context, key string) (end func() error, err error)

// Leasehold admits by AcquireAll on a driver. The note of a lease is the number of the process.
func Leasehold(d driver.Driver, o Order) (Admission, error) {
	locks, err := leasehold.New(d, &leasehold.Options{TTL: o.TTL, HandOver: -1})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (func() error, error) {
		leases, err := locks.AcquireAll(ctx, nil, leasehold.Note(strconv.Itoa(o.Process)),
			leasehold.For(key, leasehold.Limit(o.Limit)), leasehold.For(TotalName, leasehold.Limit(o.Total)))
		if err != nil {
			return nil, err
		}
		return func() error { return leases.Release(context.Background()) }, nil
	}, nil
}

// Poll admits like a program that counts by hand: it tries, with pauses, until there is room.
func Poll(every time.Duration, try func(ctx context.Context, key string) (bool, error), end func(key string) error) Admission {
	return func(ctx context.Context, key string) (func() error, error) {
		for {
			if ok, err := try(ctx, key); err != nil {
				return nil, err
			} else if ok {
				return func() error { return end(key) }, nil
			}
			if err := pause.For(ctx, every); err != nil {
				return nil, err
			}
		}
	}
}

// Work is the main function of a process: its workers take turns until the end of its standard
// input. It prints errors.
func Work(open func(ctx context.Context, o Order) (Admission, error)) error {
	var o Order
	in := json.NewDecoder(os.Stdin)
	if err := in.Decode(&o); err != nil {
		return err
	}
	b, err := openBoard(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	admit, err := open(ctx, o)
	if err != nil {
		return err
	}
	var workers sync.WaitGroup
	for w := range o.workers {
		workers.Go(func() {
			for ctx.Err() == nil {
				end, err := admit(ctx, KeyName(w%o.Keys))
				if err == nil {
					b.enter(w)
					time.Sleep(o.Hold)
					b.leave(w)
					err = end()
				}
				if err != nil && ctx.Err() == nil && !errors.Is(err, leasehold.ErrLost) { // a busy machine may lose some leases
					fmt.Printf("worker %d: %v\n", w, err)
					return
				}
			}
		})
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	cancel()
	workers.Wait()
	return err
}

// CounterScript counts by hand, as many programs on Redis do. KEYS are the counters, ARGV their
// limits. If there is room in all of them, it adds one to each and returns 1.
const CounterScript = `
for i, key in ipairs(KEYS) do
	if tonumber(redis.call('GET', key) or '0') >= tonumber(ARGV[i]) then return 0 end
end
for _, key in ipairs(KEYS) do redis.call('INCR', key) end
return 1`

// UncountScript undoes CounterScript.
const UncountScript = `for _, key in ipairs(KEYS) do redis.call('DECR', key) end return 1`
