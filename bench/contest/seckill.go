package contest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

const buyers, pieces = 1000, 100

// Mutex is the name of the lock in Engine.Seckill that needs no server.
const Mutex = "sync.Mutex"

// A Shop keeps its stock where the engine keeps its data. It reads and writes the stock in two
// steps, so only one goroutine may use it at a time. That is what the lock is for.
type Shop struct {
	Stock    func(ctx context.Context) (int, error)
	SetStock func(ctx context.Context, pieces int) error
}

// Sales are the times until all buyers were served, by lock and round.
type Sales map[string][]time.Duration

// Ratio returns the median time of name divided by the one of other.
func (s Sales) Ratio(name, other string) float64 { return ratio(Median(s[name]), Median(s[other])) }

// Fastest returns the fastest of names.
func (s Sales) Fastest(names ...string) string {
	return slices.MinFunc(names, func(a, b string) int { return cmp.Compare(Median(s[a]), Median(s[b])) })
}

// Seckill measures a thousand buyers in one process, who want a hundred pieces under one lock. The
// others and a sync.Mutex are compared with the first of names, which is Leasehold.
func (e *Engine) Seckill(b *testing.B, addr string, shop Shop, names ...string) Sales {
	const enough = 4 * time.Second // for a slow lock
	lockers := e.openAll(b, addr, names)
	var mu sync.Mutex
	lockers[Mutex] = &Locker{Lock: mutexLock(&mu)}
	names = append([]string{names[0], Mutex}, names[1:]...)
	sales, longest, spent := make(Sales), make(map[string][]time.Duration), make(map[string]time.Duration)
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		for _, name := range names {
			if spent[name] > enough {
				continue
			}
			all, wait, err := shop.sell(lockers[name].Lock, fmt.Sprint("seckill/", round))
			if err != nil {
				b.Errorf("%s: %v", name, err)
			}
			sales[name], longest[name] = append(sales[name], all), append(longest[name], wait)
			spent[name] += all
		}
	}
	t := e.table("Seckill: 1,000 buyers, 100 pieces, one process", "lock", "all served in", "× ours", "longest wait for the lock")
	for _, name := range names {
		t.Row(name, Median(sales[name]), sales.Ratio(name, names[0]), Median(longest[name]))
	}
	return sales
}

func mutexLock(mu *sync.Mutex) LockFunc {
	return func(context.Context, string) (Held, error) {
		mu.Lock()
		return Held{Unlock: func() error { mu.Unlock(); return nil }}, nil
	}
}

// sell lets all buyers begin at the same time, and returns when all are served.
func (s Shop) sell(lock LockFunc, name string) (took, longest time.Duration, err error) {
	ctx, end := patiently()
	defer end()
	if err := s.SetStock(ctx, pieces); err != nil {
		return 0, 0, err
	}
	sold, waits, errs := make([]bool, buyers), make([]time.Duration, buyers), make([]error, buyers)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range buyers {
		wg.Go(func() {
			held, err := lock(ctx, name)
			waits[i] = time.Since(start)
			if err == nil {
				sold[i], err = s.buy(ctx)
				err = errors.Join(err, held.Unlock())
			}
			errs[i] = err
		})
	}
	wg.Wait()
	took = time.Since(start)
	count := 0
	for i := range buyers {
		longest = max(longest, waits[i])
		if sold[i] {
			count++
		}
	}
	if count != pieces {
		errs = append(errs, fmt.Errorf("%d of %d pieces were sold", count, pieces))
	}
	return took, longest, errors.Join(errs...)
}

// buy takes a piece, and reports whether one was left.
func (s Shop) buy(ctx context.Context) (bool, error) {
	stock, err := s.Stock(ctx)
	if err != nil || stock <= 0 {
		return false, err
	}
	return true, s.SetStock(ctx, stock-1)
}
