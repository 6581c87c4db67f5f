package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// severalCases are about what the core builds from single leases.
var severalCases = []Case{
	{Name: "AllOrNothing", Run: allOrNothing},
	{Name: "OppositeOrdersNeverDeadlock", Run: oppositeOrdersNeverDeadlock},
	{Name: "NobodyElseLeadsBeforeTheReturn", Run: nobodyElseLeadsBeforeTheReturn},
	{Name: "KilledLeaderIsFollowed", Needs: NeedAddress, Run: killedLeaderIsFollowed},
	{Name: "OncePerRunsOnce", Needs: NeedLingers, Run: oncePerRunsOnce},
	{Name: "OncePerWithoutAnswerEndsSoon", Needs: NeedLingers | NeedResumes, Run: oncePerWithoutAnswer},
}

// allOrNothing: a call that does not get all of several resources keeps none of them.
func allOrNothing(t testing.TB, h Harness) {
	l, other := locker(t, open(t, h), leasehold.Options{}), locker(t, open(t, h), leasehold.Options{})
	base := newName(t)
	names := []string{base + "-c", base + "-a", base + "-b"}
	all, err := l.AcquireAll(bounded(t), names)
	if err != nil {
		t.Fatalf("AcquireAll of what is free: %v", err)
	}
	for _, name := range names {
		mustBeBusy(t, other, name, "it is one of several that are held")
	}
	if err := all.Release(bounded(t)); err != nil {
		t.Fatalf("Release of several: %v", err)
	}
	for _, taken := range names {
		lease := acquire(t, other, taken)
		for _, wait := range []time.Duration{0, aWhile / 4} {
			_, err := l.AcquireAll(bounded(t), names, leasehold.Wait(wait))
			for errors.Is(err, context.DeadlineExceeded) && wait > 0 && wait < Margin { // there was no answer within wait
				wait *= 2
				_, err = l.AcquireAll(bounded(t), names, leasehold.Wait(wait))
			}
			if !errors.Is(err, leasehold.ErrBusy) {
				t.Errorf("AcquireAll for %v while %s is held: %v; want ErrBusy", wait, taken, err)
			}
			for _, name := range names {
				if name == taken {
					continue
				}
				// The clean-up may continue for a while after the refusal.
				lease, err := other.Acquire(bounded(t), name, leasehold.Wait(Margin))
				if err != nil {
					t.Fatalf("Acquire of %s: %v; want a lease: not all were to be had", name, err)
				}
				release(t, lease)
			}
		}
		release(t, lease)
	}
}

// oppositeOrdersNeverDeadlock: callers that want overlapping sets, in any order, all get them, one
// at a time.
func oppositeOrdersNeverDeadlock(t testing.TB, h Harness) {
	const contenders, rounds = 4, 3
	base := newName(t)
	var held [3]atomic.Int32
	atOnce(t, contenders, func(int) error {
		l := locker(t, open(t, h), leasehold.Options{})
		for range rounds {
			order := rand.Perm(len(held))[:2+rand.N(2)]
			names := make([]string, len(order))
			for i, n := range order {
				names[i] = fmt.Sprint(base, n)
			}
			all, err := l.AcquireAll(bounded(t), names)
			if err != nil {
				return fmt.Errorf("AcquireAll of %q: %w", names, err)
			}
			for _, n := range order {
				if held[n].Add(1) != 1 {
					err = errors.New("two hold it at once")
				}
			}
			time.Sleep(rand.N(10 * time.Millisecond))
			for _, n := range order {
				held[n].Add(-1)
			}
			if err := errors.Join(err, all.Release(bounded(t))); err != nil {
				return err
			}
		}
		return nil
	})
}

// A leader reports its terms.
type leader struct {
	locks *leasehold.Locker
	began chan uint64 // the token of each term
	stays time.Duration
}

// campaign starts a candidate that campaigns until t ends.
func campaign(t testing.TB, h Harness, name string, stays, ttl time.Duration) *leader {
	ctx, cancel := context.WithCancel(context.Background())
	le := &leader{locker(t, open(t, h), leasehold.Options{TTL: ttl}), make(chan uint64, 10), stays}
	over := make(chan error, 1)
	go func() { over <- le.locks.Lead(ctx, name, le.lead) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("Lead: %v", err)
		}
	})
	return le
}

func (le *leader) lead(ctx context.Context) error {
	lease, _ := leasehold.FromContext(ctx)
	le.began <- lease.Token()
	<-ctx.Done()
	time.Sleep(le.stays)
	return nil
}

// next waits for the next term, whose token must be greater than last.
func (le *leader) next(t testing.TB, limit time.Duration, last uint64) (token uint64) {
	t.Helper()
	select {
	case token = <-le.began:
	case <-time.After(limit):
		t.Fatalf("nobody leads after %v", limit)
	}
	if token != 0 && token <= last {
		t.Errorf("a term with token %d after %d", token, last)
	}
	return token
}

// nobodyElseLeadsBeforeTheReturn: after a leader has resigned, nobody else leads until its callback
// has returned. Then another one does.
func nobodyElseLeadsBeforeTheReturn(t testing.TB, h Harness) {
	name := newName(t)
	first := campaign(t, h, name, aWhile, longTTL)
	token := first.next(t, followWithin, 0)
	second := campaign(t, h, name, 0, longTTL)
	for start := time.Now(); time.Since(start) < aWhile/4; time.Sleep(pollEvery) {
		if len(second.began) > 0 {
			t.Fatal("two lead at once")
		}
	}
	resigned := time.Now()
	if !first.locks.Resign(name) {
		t.Fatal("the leader has no term to resign from")
	}
	second.next(t, aWhile+followWithin, token)
	if took := time.Since(resigned); took < aWhile {
		t.Errorf("the next leads after %v, while the former needed %v to return", took, aWhile)
	}
}

// killedLeaderIsFollowed: after a leader was killed, another one leads within the TTL.
func killedLeaderIsFollowed(t testing.TB, h Harness) {
	ttl := renewableTTL(open(t, h))
	name := newName(t)
	c := startChild(t, h)
	c.do(command{Do: "acquire", Name: name, TTL: ttl})
	token := c.next("granted", callLimit).Belief.Token
	next := campaign(t, h, name, 0, ttl)
	c.next("renewed", callLimit)
	if len(next.began) > 0 {
		t.Fatal("two lead at once")
	}
	killed := c.kill()
	next.next(t, h.over(ttl)+followWithin, token)
	t.Logf("led by the next %v after a kill, with a TTL of %v", time.Since(killed), ttl)
}

// oncePerRunsOnce: of several callers of a job, one runs it in a period, and one in the next.
func oncePerRunsOnce(t testing.TB, h Harness) {
	name := newName(t)
	f := open(t, h).Features()
	ttl := roundUp(max(f.MinTTL, 3*aWhile), f.Step) // this bounds calls; it is shorter than the lease for a period
	period := 2 * ttl
	var runs atomic.Int32
	job := func(context.Context) error { runs.Add(1); return nil }
	start := time.Now()
	atOnce(t, 5, func(int) error {
		l := locker(t, open(t, h), leasehold.Options{TTL: ttl})
		if err := l.Do(bounded(t), name, job, leasehold.OncePer(period)); !errors.Is(err, leasehold.ErrBusy) {
			return err
		}
		return nil
	})
	if n := runs.Load(); n != 1 && time.Since(start) < period*9/10 {
		t.Errorf("%d runs in one period, want 1", n)
	}
	l := locker(t, open(t, h), leasehold.Options{TTL: ttl})
	eventually(t, h.over(period)+followWithin, "the job runs in the next period", func() bool {
		return l.Do(bounded(t), name, job, leasehold.OncePer(period)) == nil
	})
	if took := time.Since(start); took < period*9/10-period/50 {
		t.Errorf("it ran again after %v of %v", took, period)
	}
}

// oncePerWithoutAnswer: a job that was not begun because the answer was lost does not count as run
// in its period, although no later call of its process succeeded. The next caller's lease has its
// full length.
func oncePerWithoutAnswer(t testing.TB, h Harness) {
	name := newName(t)
	link := openFaulty(t, h)
	ttl := roundUp(max(link.Features().MinTTL, aWhile), link.Features().Step)
	for _, op := range []Op{OpRelease, OpLinger, OpNote} {
		link.Always(op, LoseRequest)
	}
	link.Next(OpTry, LoseReply)
	link.Always(OpTry, LoseRequest)
	if lease, err := locker(t, link, leasehold.Options{TTL: ttl}).TryAcquire(bounded(t), name, leasehold.OncePer(24*time.Hour)); err == nil {
		t.Fatalf("a lease without an answer, until %v", lease.Deadline())
	}
	var lease *leasehold.Lease
	next := locker(t, open(t, h), leasehold.Options{TTL: ttl})
	eventually(t, h.over(ttl)+followWithin, "the job runs", func() (ok bool) {
		var err error
		lease, err = next.TryAcquire(bounded(t), name, leasehold.OncePer(24*time.Hour))
		return err == nil
	})
	if left := time.Until(lease.Deadline()); left < 20*time.Hour {
		t.Errorf("the lease lasts %v, want nine tenths of a day", left)
	}
	time.Sleep(h.over(ttl))
	if _, err := locker(t, open(t, h), leasehold.Options{}).TryAcquire(bounded(t), name); !errors.Is(err, leasehold.ErrBusy) {
		t.Errorf("while the job runs: %v, want ErrBusy", err)
	}
	release(t, lease)
}
