package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// clockSteps are what a clock is set to one after the other, the first before anything is
// granted. No step forward ends a lease.
var clockSteps = map[string][]time.Duration{
	"back":            {0, -time.Hour},
	"ahead, then set": {time.Hour, 0},
	"back and forth":  {0, -time.Hour, -time.Hour + time.Second, -2 * time.Hour},
}

// leftOf is how long a key of r has left.
func leftOf(t *testing.T, r *servers.Redis, key string) time.Duration {
	t.Helper()
	ms, err := strconv.Atoi(r.Must(t, "PTTL", key))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

// within polls until ok.
func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// Whatever the server's clock does under a holder that renews, its lease ends when no more
// renewals come: a step back adds nothing to it.
func TestRedisClockUnderAHolder(t *testing.T) {
	t.Parallel()
	for what, opts := range map[string][]leasehold.Option{"exclusive": nil, "shared": {leasehold.Shared()}} {
		for step, offsets := range clockSteps {
			for _, leases := range []int{1, 5} { // the renewals of several go together
				t.Run(fmt.Sprint(what, " ", step, " ", leases), func(t *testing.T) {
					t.Parallel()
					r, clock := servers.StartRedisWithClock(t)
					for ttl := 3 * time.Second; lateUnderAClock(t, r, clock, offsets, leases, ttl, opts...); ttl *= 2 {
						r.Must(t, "FLUSHALL")
					}
				})
			}
		}
	}
}

// lateUnderAClock sets the server's clock under leases that are renewed. It reports whether one was
// not renewed in time after a call here took so long that renewals were late, too.
func lateUnderAClock(t *testing.T, r *servers.Redis, clock *servers.Clock, offsets []time.Duration, leases int, ttl time.Duration, opts ...leasehold.Option) (late bool) {
	l := redisLocker(t, r, nil, leasehold.Options{TTL: ttl})
	clock.Set(offsets[0])
	last := time.Now()
	var held []*leasehold.Lease
	for i := range leases {
		lease, err := l.Acquire(t.Context(), fmt.Sprint("n", i), opts...)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, lease)
	}
	for _, offset := range offsets[1:] {
		clock.Set(offset)
		for i, lease := range held {
			key, left := fmt.Sprint("lock:n", i), ttl+1
			for end := time.Now().Add(2 * ttl); left > ttl && time.Now().Before(end) && lease.Context().Err() == nil; time.Sleep(10 * time.Millisecond) {
				left = leftOf(t, r, key)
				late, last = late || time.Since(last) > ttl/8, time.Now()
			}
			switch err := context.Cause(lease.Context()); {
			case late && (err != nil || left > ttl):
				return true
			case err != nil:
				t.Fatalf("clock set to %v: lease %d: %v", offset, i, err)
			case left > ttl:
				t.Fatalf("clock set to %v: lease %d has %v left of %v", offset, i, left, ttl)
			}
		}
	}
	return false
}

// A waiter that has died delays others by no more than its place, whatever the clock does.
func TestRedisClockBackWithADeadWaiter(t *testing.T) {
	t.Parallel()
	const places = 3 * time.Second
	r, clock := servers.StartRedisWithClock(t)
	holder := redisLocker(t, r, nil, leasehold.Options{TTL: time.Minute})
	lease, err := holder.Acquire(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	dead := redisDriverOf(t, redisClient(t, r), nil)
	queuedClaim(t, dead, "n", "dead", time.Minute)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	clock.Set(-10 * time.Minute)
	if st, err := holder.Inspect(t.Context(), "n"); err != nil || len(st.Waiters) != 0 {
		t.Errorf("the dead waiter is shown: %v, %v", st.Waiters, err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	next := redisLocker(t, r, nil, leasehold.Options{TTL: time.Minute})
	if _, err := next.Acquire(t.Context(), "n", leasehold.Wait(20*time.Second)); err != nil {
		t.Fatalf("behind a dead waiter: %v", err)
	}
	if took := time.Since(start); took > places+3*time.Second {
		t.Errorf("granted after %v behind a dead waiter", took)
	}
}

// Those who wait keep their order when the clock goes back.
func TestRedisClockBackKeepsTheOrder(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	holder := lateClaim(t, d, "n", "holder", time.Minute)
	mustTry(t, holder)
	first, busy, _ := queuedClaim(t, d, "n", "first", time.Minute)
	clock.Set(-time.Hour)
	second, _, _ := queuedClaim(t, d, "n", "second", time.Minute)
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	if _, ok := brought(t, busy); !ok {
		mustTry(t, first)
	}
	if _, err := second.Try(t.Context()); err == nil {
		t.Error("the second in the queue overtook the first")
	}
}

// The mark of a claim that was given up while its attempt was on its way lives no longer
// than such an attempt may take.
func TestRedisClockBackWithAMark(t *testing.T) {
	t.Parallel()
	const marks, mark = 30 * time.Second, "lock:\x1fg{lock:n}\x1fowner"
	r, clock := servers.StartRedisWithClock(t)
	d, _, link := openLate(t, r.Addr(), nil)
	c := lateClaim(t, d, "n", "owner", time.Minute)
	link.cancelled(t, tryOf(c))()
	_ = c.Release(t.Context(), driver.End{}) // there may be nothing to give up
	if left := leftOf(t, r, mark); left <= 0 {
		t.Fatal("there is no mark")
	}
	clock.Set(-time.Hour)
	mustTry(t, c)
	if left := leftOf(t, r, mark); left > marks {
		t.Errorf("the mark has %v left", left)
	}
}

// A fence lives for a day beyond the day that it is ahead of the clock: however long
// nobody uses it, none that is granted later is smaller.
func TestRedisFenceAheadOfTheClock(t *testing.T) {
	t.Parallel()
	const ahead, unused = 40 * time.Hour, 26 * time.Hour
	for what, use := range map[string]func(*testing.T, *redislock.Driver){
		"raised": func(*testing.T, *redislock.Driver) {},
		"raised, then used": func(t *testing.T, d *redislock.Driver) {
			c := lateClaim(t, d, "n", "used", time.Minute)
			mustTry(t, c)
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Fatal(err)
			}
		},
		"raised, then renewed": func(t *testing.T, d *redislock.Driver) {
			c := lateClaim(t, d, "n", "renewed", time.Minute)
			mustTry(t, c)
			if _, err := lateClaim(t, d, "n", "renewed", time.Minute).Renew(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
		},
		"raised, then refused": func(t *testing.T, d *redislock.Driver) {
			c := lateClaim(t, d, "n", "other", time.Minute)
			mustTry(t, c)
			if _, err := lateClaim(t, d, "n", "refused", time.Minute).Try(t.Context()); err == nil {
				t.Error("a second holder")
			}
		},
		"lifted by a holder": func(t *testing.T, d *redislock.Driver) {
			c := lateClaim(t, d, "n", "lifted", time.Minute)
			mustTry(t, c)
			if err := c.(driver.FenceLifter).LiftFence(t.Context(), driver.FenceOf(time.Now().Add(ahead+time.Hour).UnixMicro())); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, clock := servers.StartRedisWithClock(t)
			d := redisDriverOf(t, redisClient(t, r), nil)
			raised := driver.FenceOf(time.Now().Add(ahead).UnixMicro())
			if err := d.RaiseFence(t.Context(), "n", raised); err != nil {
				t.Fatal(err)
			}
			use(t, d)
			clock.Set(unused)
			fresh := redisDriverOf(t, redisClient(t, r), nil) // which remembers nothing
			g, err := lateClaim(t, fresh, "n", "later", time.Minute).Try(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if g.Fence <= raised {
				t.Errorf("fence %d after %v without use, raised to %d before", g.Fence, unused, raised)
			}
		})
	}
}

// A step forward ends leases early: the holder learns at its next renewal, before its
// deadline, and its token is smaller than the next one's. So it is when the server starts
// with a clock that is ahead.
func TestRedisClockForward(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	for what, restart := range map[string]bool{"running": false, "starting": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, clock := servers.StartRedisWithClock(t, "--appendonly", "yes", "--appendfsync", "always")
			step := func(offset time.Duration) {
				if restart {
					r.Kill()
				}
				clock.Set(offset)
				if restart {
					r.Start(t)
				}
			}
			holder := redisLocker(t, r, nil, leasehold.Options{TTL: ttl})
			lease, err := holder.Acquire(t.Context(), "n")
			if err != nil {
				t.Fatal(err)
			}
			step(time.Hour)
			other := redisLocker(t, r, nil, leasehold.Options{TTL: ttl})
			next, err := other.Acquire(t.Context(), "n")
			if err != nil {
				t.Fatal(err)
			}
			<-lease.Context().Done()
			if left := time.Until(lease.Deadline()); left < 0 && !restart { // which may take as long
				t.Errorf("the holder learned %v after its deadline", -left)
			}
			if next.Token() <= lease.Token() {
				t.Errorf("token %d after %d", next.Token(), lease.Token())
			}
			step(0)
			within(t, 2*ttl, "renewed", func() bool { return next.Context().Err() != nil || leftOf(t, r, "lock:n") <= ttl })
			if err := next.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			last, err := other.Acquire(t.Context(), "n")
			if err != nil {
				t.Fatal(err)
			}
			if last.Token() <= next.Token() {
				t.Errorf("token %d after %d", last.Token(), next.Token())
			}
		})
	}
}

// A step forward costs those who wait their places and no more: they come back for others.
func TestRedisClockForwardWhileWaiting(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t)
	holder := redisLocker(t, r, nil, leasehold.Options{TTL: 2 * time.Hour})
	lease, err := holder.Acquire(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	const waiters = 3
	granted := make(chan error, waiters)
	for range waiters {
		l := redisLocker(t, r, nil, leasehold.Options{TTL: 5 * time.Second})
		go func() {
			lease, err := l.Acquire(t.Context(), "n", leasehold.Wait(30*time.Second))
			if err == nil {
				err = lease.Release(context.WithoutCancel(t.Context()))
			}
			granted <- err
		}()
	}
	waiting := func() bool {
		st, err := holder.Inspect(t.Context(), "n")
		return err == nil && len(st.Waiters) == waiters
	}
	within(t, 20*time.Second, "all wait", waiting)
	clock.Set(time.Hour)
	within(t, 20*time.Second, "all wait again", waiting)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range waiters {
		if err := <-granted; err != nil {
			t.Error(err)
		}
	}
}

// Processes contend while the clock steps back, and forward by less than a lease has left:
// nobody holds twice, and nothing stays for as long as the steps.
func TestRedisClockStorm(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t)
	offset := time.Duration(0)
	redisStorm(t, threeLockers(t, r), 5*time.Second, 100*time.Millisecond, func() {
		if rand.N(3) == 0 {
			offset -= rand.N(time.Hour)
		} else {
			offset += rand.N(100 * time.Millisecond)
		}
		clock.Set(offset)
	}, never)
}

// After a step back a renewal shortens what has grown, and not what was renewed since.
func TestRedisLateRenewalAfterAStepBack(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t)
	d, client, link := openLate(t, r.Addr(), nil)
	c := lateClaim(t, d, "n", "aaa", time.Minute)
	mustTry(t, c)
	clock.Set(-time.Hour)
	letGo := link.cancelled(t, renewOf(c, time.Minute))
	if _, err := c.Renew(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), "lock:n").Val(); left > time.Minute {
		t.Errorf("%v left of a minute", left)
	}
	g, err := c.Renew(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	letGo()
	if left := client.PTTL(t.Context(), "lock:n").Val(); g.TTL < time.Hour || left < 30*time.Minute {
		t.Errorf("%v left of the %v granted: a late renewal shortened it", left, g.TTL)
	}
}

// A step back of the clock does not keep a lock from resting again.
func TestRedisRestsGoOnAfterAStepBack(t *testing.T) {
	t.Parallel()
	r, clock := servers.StartRedisWithClock(t)
	d := redisDriverOf(t, redisClient(t, r), &redislock.Options{Rest: 100 * time.Millisecond})
	rests := func() bool {
		c := lateClaim(t, d, "n", fmt.Sprint(time.Now().UnixNano()), time.Minute)
		next := lateClaim(t, d, "n", fmt.Sprint(time.Now().UnixNano()), time.Minute)
		if _, err := c.Try(t.Context()); err != nil {
			return false // it rests still
		}
		if err := c.Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
		_, err := next.Try(t.Context())
		if err == nil {
			if err := next.Release(t.Context(), driver.End{}); err != nil {
				t.Fatal(err)
			}
		}
		return err != nil
	}
	within(t, 10*time.Second, "the lock rests", rests)
	clock.Set(-time.Hour)
	within(t, 10*time.Second, "the lock rests again after the clock was set back", rests)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A step of the clock comes between any two looks at it, in the middle of a script too: what a
// script has set must not have ended by the time at which that script began.
func TestRedisClockStepsInsideAScript(t *testing.T) {
	t.Parallel()
	const sharers, reads = 3, 40 // no script looks more often than that
	r, clock := servers.StartRedisWithClock(t)
	d, err := redislock.OpenURL(t.Context(), "redis://"+r.Addr()+"/0")
	must(t, err)
	t.Cleanup(func() { d.Close() })
	back := time.Duration(0)
	for what, step := range map[string]struct {
		held int // sharers before
		call func(t *testing.T, claims []driver.Claim)
		left int // sharers after
	}{
		"the first acquires": {0, func(t *testing.T, c []driver.Claim) { mustTry(t, c[0]) }, 1},
		"the last acquires":  {2, func(t *testing.T, c []driver.Claim) { mustTry(t, c[2]) }, 3},
		"one renews":         {3, func(t *testing.T, c []driver.Claim) { must(t, renewOf(c[0], time.Minute)(t.Context())) }, 3},
		"one releases":       {3, func(t *testing.T, c []driver.Claim) { must(t, c[2].Release(t.Context(), driver.End{})) }, 2},
	} {
		t.Run(what, func(t *testing.T) {
			stepped := 0
			for n := range reads {
				claims := make([]driver.Claim, sharers+1)
				for i := range claims {
					claims[i], err = d.Claim(driver.Request{
						Resource: fmt.Sprint(what, n), Owner: fmt.Sprint("owner", i), TTL: time.Minute,
						Mode: driver.Shared, Limit: sharers,
					})
					must(t, err)
				}
				for _, c := range claims[:step.held] {
					mustTry(t, c)
				}
				back -= time.Hour
				clock.StepAt(n+1, back)
				step.call(t, claims)
				if clock.Stepped() {
					stepped++
				}
				for i, c := range claims[:step.left] {
					if _, err := c.Renew(t.Context(), time.Minute); err != nil {
						t.Fatalf("a step back at reading %d: sharer %d of %d: %v", n+1, i+1, step.left, err)
					}
				}
				for i, c := range claims[step.left:] {
					_, err := c.Try(t.Context())
					if granted := step.left+i < sharers; granted != (err == nil) || !granted && !errors.Is(err, driver.ErrBusy) {
						t.Fatalf("a step back at reading %d: sharer %d of at most %d: %v", n+1, step.left+i+1, sharers, err)
					}
				}
			}
			if stepped < 3 {
				t.Errorf("%d steps came within the call", stepped)
			}
		})
	}
}
