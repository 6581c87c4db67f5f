package redislock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A client of the plain recipe, which polls, gets its turns beside processes of ours that
// want the lock all the time, when the lock rests now and then; and ours keep theirs.
func TestRestLetsForeignClientsIn(t *testing.T) {
	t.Parallel()
	const turns, within, poll, rest = 12, 2 * time.Second, 10 * time.Millisecond, 100 * time.Millisecond
	r := servers.StartRedis(t)
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	var inside, ours, longest atomic.Int64
	enter := func() {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d inside at once", n)
		}
		time.Sleep(2 * time.Millisecond)
		inside.Add(-1)
	}
	for range 2 {
		d := redisDriverOf(t, redisClient(t, r), &redislock.Options{Rest: rest})
		l := lockerOn(t, d, leasehold.Options{})
		for range 2 {
			busy.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					lease, err := l.Acquire(ctx, "shop")
					if err != nil {
						continue
					}
					longest.Store(max(longest.Load(), int64(time.Since(began))))
					enter()
					ours.Add(1)
					if err := lease.Release(context.Background()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	c := redisClient(t, r)
	for ours.Load() < 50 && ctx.Err() == nil { // the stream has begun
		time.Sleep(poll)
	}
	late, worst, stall, start := 0, time.Duration(0), time.Duration(0), time.Now()
	for range turns {
		// Waited is for how long it has polled without a pause in which a whole rest may lie.
		waited, last := time.Duration(0), time.Now()
		for {
			ok, err := c.SetNX(ctx, "lock:shop", "foreign", time.Minute).Result()
			if err != nil && err != redis.Nil {
				t.Fatal(err)
			}
			pause := time.Since(last)
			last, stall = last.Add(pause), max(stall, pause)
			if waited += pause; pause >= rest {
				waited = 0
			}
			if ok {
				break
			}
			if waited > 10*within {
				t.Fatalf("never: a foreign turn; ours had %d", ours.Load())
			}
			time.Sleep(poll)
		}
		worst = max(worst, waited)
		if waited > within {
			late++
		}
		enter()
		c.Del(ctx, "lock:shop")
		time.Sleep(rest + time.Since(start)%rest) // the next turn is another rest's
	}
	took := time.Since(start)
	stop()
	busy.Wait()
	t.Logf("%d foreign turns in %v, the longest wait %v, %d late, the longest time between two polls %v; ours %d, the longest wait %v", turns, took, worst, late, stall, ours.Load(), time.Duration(longest.Load()))
	if late*100 > turns {
		t.Errorf("%d of %d foreign turns came later than %v", late, turns, within)
	}
	slow := 1 + float64(stall)/float64(rest) // a machine that holds up polls holds up ours too
	if n := float64(ours.Load()) * slow; n < took.Seconds()*20 || float64(longest.Load()) > slow*float64(within) {
		t.Errorf("ours had %d turns in %v and waited for up to %v", ours.Load(), took, time.Duration(longest.Load()))
	}
}
