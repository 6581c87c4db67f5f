package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const buyers, pieces = 1000, 100

// seckill is a thousand buyers in one process who want a hundred pieces, each under one
// lock. The stock is a number in Redis, read and written in two steps.
func seckill(b *testing.B, addr string) {
	names := append([]string{ours, mutex}, peers...)
	locks := map[string]lockFunc{mutex: mutexLock(&sync.Mutex{})}
	for _, l := range openLockers(b, addr, append([]string{ours}, peers...)...) {
		locks[l.name] = l.lock
	}
	shop := redis.NewClient(&redis.Options{Addr: addr})
	defer shop.Close()
	took := make(map[string][]time.Duration)
	longest := make(map[string][]time.Duration)
	for round := range 5 {
		for _, name := range names {
			if name == bsmLock && round >= 1 || name == redsyncLoc && round >= 3 {
				continue
			}
			all, wait, err := sell(shop, locks[name], fmt.Sprint("seckill/", round))
			if err != nil {
				b.Errorf("%s: %v", name, err)
			}
			took[name], longest[name] = append(took[name], all), append(longest[name], wait)
		}
	}
	t := newTable("Seckill: 1,000 buyers, 100 pieces, one process", "lock", "all served in", "× ours", "longest wait for the lock")
	fastest := took[peers[0]]
	for _, name := range names {
		t.row(name, median(took[name]), float64(median(took[name]))/float64(median(took[ours])), median(longest[name]))
		if name != ours && name != mutex && median(took[name]) < median(fastest) {
			fastest = took[name]
		}
	}
	atLeast("seckill: times faster than the fastest peer", float64(median(fastest))/float64(median(took[ours])), 3)
	atMost("seckill: times sync.Mutex", float64(median(took[ours]))/float64(median(took[mutex])), 1.5)
}

func mutexLock(mu *sync.Mutex) lockFunc {
	return func(context.Context, string) (held, error) {
		mu.Lock()
		return held{unlock: func() error { mu.Unlock(); return nil }}, nil
	}
}

// sell opens the doors to all buyers at once, and returns when all are served.
func sell(shop *redis.Client, lock lockFunc, name string) (took, longest time.Duration, err error) {
	ctx := context.Background()
	if err := shop.Set(ctx, "shop:stock", pieces, 0).Err(); err != nil {
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
				sold[i], err = buy(ctx, shop)
				err = errors.Join(err, held.unlock())
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

// buy reads the stock and writes it back as two steps.
func buy(ctx context.Context, shop *redis.Client) (bool, error) {
	stock, err := shop.Get(ctx, "shop:stock").Int()
	if err != nil || stock <= 0 {
		return false, err
	}
	return true, shop.Set(ctx, "shop:stock", strconv.Itoa(stock-1), 0).Err()
}
