package redislock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// placeLives is for how long a place outlives its last Try, or the last beat that kept it.
const placeLives = 3 * time.Second

// crowdLimit is when a crowd of dozens hangs, also on a busy machine.
const crowdLimit = time.Minute

// served is one of a crowd that has had its turn.
type served struct {
	owner string
	token uint64
	err   error
}

// crowdOn has n wait on d, each in a Locker of its own. Each takes its turn, and tells.
func crowdOn(t *testing.T, d driver.Driver, n int) <-chan served {
	t.Helper()
	turns := make(chan served, n)
	for range n {
		l, err := leasehold.New(d, &leasehold.Options{TTL: 30 * time.Second, HandOver: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			lease, err := l.Acquire(t.Context(), "crowd")
			if err != nil {
				turns <- served{err: err}
				return
			}
			turns <- served{lease.Owner(), lease.Token(), lease.Release(context.WithoutCancel(t.Context()))}
		}()
	}
	return turns
}

// waiting returns the owners who have places, in order, when there are n.
func waiting(t *testing.T, d *redislock.Driver, n int) (owners []string) {
	t.Helper()
	within(t, crowdLimit, fmt.Sprint(n, " have places"), func() bool {
		owners = nil
		st, err := d.Inspect(t.Context(), "crowd")
		for _, w := range st.Waiters {
			owners = append(owners, w.Owner.Reveal())
		}
		return err == nil && len(owners) == n
	})
	return owners
}

// servedAll returns the owners of n turns in the order of their tokens.
func servedAll(t *testing.T, n int, crowds ...<-chan served) (owners []string) {
	t.Helper()
	var all []served
	late := time.After(crowdLimit)
	for _, turns := range crowds {
		for range n / len(crowds) {
			select {
			case one := <-turns:
				if one.err != nil {
					t.Error(one.err)
				}
				all = append(all, one)
			case <-late:
				t.Fatalf("%d of %d were served", len(all), n)
			}
		}
	}
	slices.SortFunc(all, func(a, b served) int { return cmp.Compare(a.token, b.token) })
	for _, one := range all {
		owners = append(owners, one.owner)
	}
	return owners
}

// The places of all who wait in a driver are kept together, and only the first in the queue asks the server: what a crowd
// costs that waits does not grow with it. Everybody is served in order afterwards.
func TestCrowdIsKeptTogether(t *testing.T) {
	t.Parallel()
	const each, lasts = 60, 4 * time.Second
	r := servers.StartRedis(t)
	holder := lateClaim(t, redisDriverOf(t, redisClient(t, r), nil), "crowd", "holder", time.Minute)
	mustTry(t, holder)
	a, b := redisDriverOf(t, redisClient(t, r), nil), redisDriverOf(t, redisClient(t, r), nil)
	first := crowdOn(t, a, each)
	waiting(t, a, each)
	second := crowdOn(t, b, each)
	waiting(t, a, 2*each)
	const most = 40 // two beats and one Try a second
	sent := most + 1
	for again := 0; sent > most && again < 4; again++ { // the first beats are to come, and may be late on a busy machine
		before := scripts(t, r)
		time.Sleep(lasts)
		sent = scripts(t, r) - before
	}
	if sent > most {
		t.Errorf("%d scripts in %v for %d that wait in two drivers", sent, lasts, 2*each)
	}
	order := waiting(t, a, 2*each)
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Error(err)
	}
	if got := servedAll(t, 2*each, first, second); !slices.Equal(got, order) {
		t.Errorf("served in the order %q, want %q", got, order)
	}
}

// On Cluster a crowd is kept by the node of its slot.
func TestCrowdOnClusterIsKeptTogether(t *testing.T) {
	t.Parallel()
	const n = 20
	nodes := servers.StartCluster(t, 3)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
	t.Cleanup(func() { c.Close() })
	d := redisDriverOf(t, c, nil)
	holder := lateClaim(t, d, "crowd", "holder", time.Minute)
	mustTry(t, holder)
	turns := crowdOn(t, d, n)
	waiting(t, d, n)
	beats := func() string {
		return fmt.Sprint(c.ZRangeWithScores(t.Context(), companion("b", "crowd"), 0, -1).Val())
	}
	seen := make(map[string]bool)
	within(t, crowdLimit, "there are beats", func() bool {
		seen[beats()] = true
		return len(seen) > 3
	})
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Error(err)
	}
	servedAll(t, n, turns)
}

// behind are claims that wait on drivers of their own behind a holder, in this order.
func behind(t *testing.T, r *servers.Redis, ds ...driver.Driver) (holder driver.Claim, wait []driver.Claim) {
	t.Helper()
	holder = lateClaim(t, redisDriverOf(t, redisClient(t, r), nil), "crowd", "holder", time.Minute)
	mustTry(t, holder)
	for i, d := range ds {
		c, err := d.Claim(driver.Request{Resource: "crowd", Owner: fmt.Sprint("waiter ", i), TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		mustWait(t, c)
		wait = append(wait, c)
	}
	return holder, wait
}

// mustWait is a Try that is refused.
func mustWait(t *testing.T, c driver.Claim) *driver.Busy {
	t.Helper()
	_, err := c.Try(t.Context())
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok {
		t.Fatalf("Try: %v; want a refusal", err)
	}
	return busy
}

// waitFor has claims Try again and again for that long.
func waitFor(t *testing.T, d time.Duration, claims ...driver.Claim) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, c := range claims {
			mustWait(t, c)
		}
	}
}

// Who is known to have a place is refused without asking the server, and told who holds.
func TestKeptWaiterAsksNothing(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	_, wait := behind(t, r, redisDriverOf(t, redisClient(t, r), nil), d)
	waitFor(t, 2*time.Second, wait...)
	const tries = 100
	least := tries
	for range 5 { // a beat may be late on a busy machine
		before := scripts(t, r)
		for range tries {
			if busy := mustWait(t, wait[1]); busy.Holder.Owner.Reveal() != "holder" || busy.Holder.Held <= 0 || busy.Wake == nil || busy.Retry <= 0 {
				t.Fatalf("%+v", busy)
			}
		}
		if least = min(least, scripts(t, r)-before); least < tries/4 {
			return
		}
		waitFor(t, time.Second, wait...)
	}
	t.Errorf("%d tries sent %d scripts", tries, least)
}

// A place goes that nobody tries for any more, though its driver keeps those of others.
func TestUntriedPlaceGoes(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	_, wait := behind(t, r, redisDriverOf(t, redisClient(t, r), nil), d, d)
	waitFor(t, 2*time.Second, wait...)
	waitFor(t, placeLives+time.Second, wait[0], wait[2]) // of the second, the beats keep no more than this
	within(t, 10*time.Second, "the place of who does not try is gone", func() bool {
		mustWait(t, wait[0])
		mustWait(t, wait[2])
		st, err := d.Inspect(t.Context(), "crowd")
		return err == nil && len(st.Waiters) == 2 && st.Waiters[1].Owner.Reveal() == "waiter 2"
	})
}

// What is told with a grant that came without asking counts from the last Try, also of one that had asked the server long
// before that.
func TestGrantToAKeptWaiterEndsInTime(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	for range 5 {
		r.Must(t, "FLUSHALL")
		holder, wait := behind(t, r, redisDriverOf(t, redisClient(t, r), nil), d)
		waitFor(t, placeLives+1500*time.Millisecond, wait...)
		tried := time.Now()
		busy := mustWait(t, wait[1])
		for _, c := range []driver.Claim{wait[0], holder} {
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Fatal(err)
			}
		}
		<-busy.Wake
		select {
		case g := <-busy.Granted:
			left := leftOf(t, r, "lock:crowd")
			if told := g.TTL - time.Since(tried); told > left+2*time.Millisecond || told < left-time.Second {
				t.Errorf("a lease of %v is told as one of %v", left, told)
			}
			return
		default: // a beat was on its way, by which it was granted
			mustTry(t, wait[1])
		}
		if err := wait[1].Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("no grant came without asking")
}

// untilBeats returns the key of the beats when there have been some.
func untilBeats(t *testing.T, r *servers.Redis) string {
	t.Helper()
	key := companion("b", "crowd")
	seen := make(map[string]bool)
	within(t, crowdLimit, "there are beats", func() bool {
		seen[r.Must(t, "ZRANGE", key, "0", "-1", "WITHSCORES")] = true
		return len(seen) > 3 // one of them is none
	})
	return key
}

// A server that has forgotten the queue is asked anew by everybody.
func TestForgottenCrowdQueuesAnew(t *testing.T) {
	t.Parallel()
	const n = 10
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	mustTry(t, lateClaim(t, redisDriverOf(t, redisClient(t, r), nil), "crowd", "holder", time.Hour))
	turns := crowdOn(t, d, n)
	waiting(t, d, n)
	untilBeats(t, r)
	r.Must(t, "FLUSHALL")
	servedAll(t, n, turns)
}

// The places of a driver that is gone go, whichever way the clock is set and whatever became of its beats: also where no
// other driver waits.
func TestDeadCrowdGoes(t *testing.T) {
	t.Parallel()
	for what, disturb := range map[string]func(r *servers.Redis, clock *servers.Clock, beats string){
		"the clock goes on":     func(*servers.Redis, *servers.Clock, string) {},
		"the clock is set back": func(_ *servers.Redis, clock *servers.Clock, _ string) { clock.Set(-time.Hour) },
		"the beats are damaged": func(r *servers.Redis, _ *servers.Clock, beats string) { r.Must(t, "SET", beats, "x") },
	} {
		for _, queue := range []bool{true, false} {
			t.Run(fmt.Sprint(what, " queue ", queue), func(t *testing.T) {
				t.Parallel()
				r, clock := servers.StartRedisWithClock(t)
				dies, lives := redisDriverOf(t, redisClient(t, r), nil), redisDriverOf(t, redisClient(t, r), nil)
				holder, wait := behind(t, r, dies, dies)
				waitFor(t, placeLives+time.Second, wait...)
				if err := dies.Close(); err != nil {
					t.Fatal(err)
				}
				disturb(r, clock, companion("b", "crowd"))
				if err := holder.Release(t.Context(), driver.End{}); err != nil {
					t.Fatal(err)
				}
				next, err := lives.Claim(driver.Request{Resource: "crowd", Owner: "lives", TTL: time.Minute, Queue: queue})
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				within(t, 4*placeLives, "who lives is served", func() bool {
					_, err := next.Try(t.Context())
					if err != nil && !errors.Is(err, driver.ErrBusy) {
						t.Fatal(err)
					}
					return err == nil
				})
				if took := time.Since(start); what == "the clock goes on" && took < time.Second {
					t.Errorf("the places of who may only be slow were gone after %v", took)
				}
			})
		}
	}
}

// Where beats fail, all who wait keep their places by themselves, in order.
func TestDamagedBeatsLoseNoPlace(t *testing.T) {
	t.Parallel()
	for what, damage := range map[string][]string{"text": {"SET", "x"}, "without end": {"ZADD", "inf", "leasehold:stranger"}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var got, want []string
			for range 3 { // a machine that stands still for seconds loses places, too
				if got, want = servedDespite(t, damage); slices.Equal(got, want) {
					return
				}
			}
			t.Errorf("served in the order %q, want %q", got, want)
		})
	}
}

// servedDespite returns in which order a crowd is served whose beats somebody has damaged, and in which it came.
func servedDespite(t *testing.T, damage []string) (order, came []string) {
	t.Helper()
	const n = 10
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	holder := lateClaim(t, redisDriverOf(t, redisClient(t, r), nil), "crowd", "holder", time.Minute)
	mustTry(t, holder)
	turns := crowdOn(t, d, n)
	came = waiting(t, d, n)
	beats := untilBeats(t, r)
	r.Must(t, append([]string{damage[0], beats}, damage[1:]...)...)
	time.Sleep(placeLives + time.Second)
	if err := holder.Release(t.Context(), driver.End{}); err != nil {
		t.Fatal(err)
	}
	return servedAll(t, n, turns), came
}

// A grant without another Try to one that a beat has kept lasts for a whole place from that beat, however old its own Try.
func TestGrantCountsFromTheLaterOfTryAndBeat(t *testing.T) {
	t.Parallel()
	const lastTry = placeLives - 100*time.Millisecond // which alone would leave the rest
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	var spans []time.Duration
	for range 5 { // a machine that stands still misses the moment, or the beat before it
		r.Must(t, "FLUSHALL")
		start := time.Now()
		holder, wait := behind(t, r, redisDriverOf(t, redisClient(t, r), nil), d)
		for at := placeLives / 3; at < lastTry; at += placeLives / 3 {
			time.Sleep(time.Until(start.Add(at)))
			mustWait(t, wait[0])
			mustWait(t, wait[1])
		}
		time.Sleep(time.Until(start.Add(lastTry)))
		busy := mustWait(t, wait[1])
		for _, c := range []driver.Claim{wait[0], holder} {
			if err := c.Release(t.Context(), driver.End{}); err != nil {
				t.Fatal(err)
			}
		}
		<-busy.Wake
		select {
		case g := <-busy.Granted:
			spans = append(spans, g.TTL)
			if g.TTL > placeLives/3 { // the beats are that far apart
				return
			}
		default: // a beat was on its way, by which it was granted
			mustTry(t, wait[1])
		}
		if err := wait[1].Release(t.Context(), driver.End{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("grants came for %v, want one for more than %v", spans, placeLives/3)
}

// A place that its driver does not know goes, though the driver's beats keep those of others.
func TestPlaceOfNobodyGoes(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	d := redisDriverOf(t, redisClient(t, r), nil)
	_, wait := behind(t, r, redisDriverOf(t, redisClient(t, r), nil), d)
	waitFor(t, 2*time.Second, wait...)
	r.Must(t, "EVAL", "redis.call('HSET', KEYS[1], 'wnobody', redis.call('HGET', KEYS[1], 'wwaiter 1')) return redis.call('ZADD', KEYS[2], '-1', 'nobody')",
		"2", companion("d", "crowd"), companion("q", "crowd"))
	waitFor(t, placeLives+time.Second, wait...)
	r.Must(t, "DEL", "lock:crowd") // its lease ends, of which nobody tells
	within(t, 5*placeLives, "who waits is served", func() bool {
		for _, c := range wait {
			if _, err := c.Try(t.Context()); err == nil {
				return true
			}
		}
		return false
	})
}
