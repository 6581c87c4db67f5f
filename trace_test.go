package leasehold_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func TestTraceTellsTheLifeOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, es := memory.NewServer(), &events{}
		locks := newLocker(t, server.Connect(), &leasehold.Options{Trace: es.trace})
		other := acquire(t, newLocker(t, server.Connect(), nil), "a")
		time.AfterFunc(time.Second, func() { other.Release(context.Background()) })
		lease := acquire(t, locks, "a", leasehold.Limit(3), leasehold.Weight(2))
		time.Sleep(ttl / 2)
		synctest.Wait()
		lease.Release(t.Context())

		id := es.all[0].ID
		slack := es.all[5].Left
		wantDuration(t, "slack", slack, ttl/2, ttl*7/10)
		held := ttl / 2
		var want []leasehold.Event
		for _, e := range []leasehold.Event{
			{Kind: leasehold.KindWait, Step: leasehold.StepBegun},
			{Kind: leasehold.KindWait, Step: leasehold.StepQueued},
			{Kind: leasehold.KindWait, Step: leasehold.StepGranted, Token: lease.Token(), Took: time.Second},
			{Kind: leasehold.KindHold, Step: leasehold.StepBegun, Token: lease.Token()},
			{Kind: leasehold.KindRenewal, Step: leasehold.StepBegun, Token: lease.Token()},
			{Kind: leasehold.KindRenewal, Step: leasehold.StepRenewed, Token: lease.Token(), Left: slack, TTL: ttl},
			{Kind: leasehold.KindHold, Step: leasehold.StepReleased, Token: lease.Token(), Took: held},
		} {
			e.ID, e.Name, e.Mode, e.Weight, e.Limit, e.Engine = id, "a", driver.Shared, 2, 3, "memory"
			want = append(want, e)
		}
		if busy, ok := errors.AsType[*leasehold.BusyError](es.all[1].Err); !ok || busy.Holder.Token != other.Token() {
			t.Errorf("queued behind %v", es.all[1].Err)
		}
		es.all[1].Err = nil
		if !slices.Equal(es.all, want) {
			t.Errorf("told %+v\nwant %+v", es.all, want)
		}
	})
}

// A wait that goes on while the engine fails says why each time, and that it is queued when the engine answers again.
func TestTraceTellsWhyAWaitGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, es := memory.NewServer(), &events{}
		mine := newFaulty(t, server)
		locks := newLocker(t, mine, &leasehold.Options{Trace: es.trace})
		other := acquire(t, newLocker(t, server.Connect(), nil), "a")
		mine.LoseWakes()
		time.AfterFunc(time.Second, func() { mine.Always(locktest.OpTry, locktest.LoseRequest) })
		time.AfterFunc(20*time.Second, func() { mine.Always(locktest.OpTry, nil) })
		time.AfterFunc(30*time.Second, func() { other.Release(context.Background()) })
		acquire(t, locks, "a")
		steps := slices.Compact(es.of(leasehold.KindWait))
		if want := []string{"begun", "queued", "retrying", "queued", "granted"}; !slices.Equal(steps, want) {
			t.Errorf("told %q, want %q", steps, want)
		}
		for _, e := range es.all {
			if retrying := e.Step == leasehold.StepRetrying; retrying != errors.Is(e.Err, locktest.ErrInjected) {
				t.Errorf("%v: %v", e.Step, e.Err)
			}
		}
	})
}

// A wait for a turn inside the process says that the engine was not asked.
func TestTraceTellsALocalWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, es := memory.NewServer(), &events{}
		locks := newLocker(t, server.Connect(), &leasehold.Options{Trace: es.trace})
		first := acquire(t, locks, "a")
		time.AfterFunc(time.Second, func() { first.Release(context.Background()) })
		acquire(t, locks, "a")
		for _, e := range es.all {
			if e.Local != (e.Step == leasehold.StepQueued) {
				t.Errorf("%v: local %v", e.Step, e.Local)
			}
		}
	})
}

// What waits for a lease that was granted but not begun yet hears of its end after its begin.
func TestTraceTellsTheBeginFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, es := memory.New(), &events{}
		locks := newLocker(t, engine, &leasehold.Options{Trace: leasehold.TraceAll(nil, es.trace, locktest.On(leasehold.StepGranted, func(e leasehold.Event) {
			state, err := engine.Inspect(context.Background(), e.Name)
			if err == nil {
				err = engine.Evict(context.Background(), e.Name, state.Holders[0].Owner.Reveal(), "test")
			}
			if err != nil {
				t.Error(err)
			}
		}))})
		acquire(t, locks, "a").Release(t.Context())
		if got := es.of(leasehold.KindHold); !slices.Equal(got, []string{"begun", "evicted"}) {
			t.Errorf("told that it %q", got)
		}
	})
}

type callersKey struct{}

// Spans find their parents: the context has the caller's values, whoever runs the Trace.
func TestTraceHasTheCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		var mu sync.Mutex
		told := make(map[string]int)
		locks := newLocker(t, mine, &leasehold.Options{Trace: func(ctx context.Context, e leasehold.Event) {
			mu.Lock()
			defer mu.Unlock()
			told[e.Kind.String()+" "+e.Step.String()]++
			if ctx.Value(callersKey{}) != e.Name {
				t.Errorf("the context of %+v is of %v", e, ctx.Value(callersKey{}))
			}
			if e.Kind != leasehold.KindWait && ctx.Err() != nil {
				t.Errorf("the context of %+v has ended", e)
			}
		}})
		run := func(name string, do func(ctx context.Context)) {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), callersKey{}, name))
			defer cancel()
			do(ctx)
		}
		for _, name := range []string{"a", "b", "c"} {
			run(name, func(ctx context.Context) {
				if _, err := locks.Acquire(ctx, name); err != nil {
					t.Error(err)
				}
			})
		}
		run("a", func(ctx context.Context) { locks.TryAcquire(ctx, "a") })
		run("a", func(ctx context.Context) { locks.Acquire(ctx, "a", leasehold.Wait(time.Second)) })
		time.Sleep(ttl)
		mine.Always(locktest.OpRenew, locktest.LoseRequest)
		time.Sleep(2 * ttl)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for _, what := range []string{"wait granted", "wait refused", "wait gave_up", "hold begun", "hold lost", "renewal renewed", "renewal failed"} {
			if told[what] == 0 {
				t.Errorf("not told of a %s: %v", what, told)
			}
		}
	})
}

// A renewal that is cut short has not failed.
func TestTraceOfARenewalThatIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []func(driver.Driver) driver.Driver{
			func(d driver.Driver) driver.Driver { return d },
			func(d driver.Driver) driver.Driver { return batching{d} },
		} {
			es, mine := &events{}, newFaulty(t, memory.NewServer())
			locks := newLocker(t, d(mine), &leasehold.Options{Trace: es.trace})
			cut := func(name string, by func(*leasehold.Lease)) {
				lease := acquire(t, locks, name)
				mine.Always(locktest.OpRenew, locktest.HangRequest)
				time.Sleep(ttl*4/10 + time.Millisecond)
				by(lease)
				synctest.Wait()
				mine.Always(locktest.OpRenew, nil)
				if got := es.of(leasehold.KindRenewal); !slices.Equal(got, []string{"begun", "gave_up"}) {
					t.Errorf("%s: %q", name, got)
				}
				es.forget()
			}
			cut("released", func(lease *leasehold.Lease) { lease.Release(t.Context()) })
			cut("closed", func(*leasehold.Lease) { locks.Close() })
			time.Sleep(ttl)
			synctest.Wait()
			if left := es.pairs.Open(); len(left) > 0 || es.pairs.Err() != nil {
				t.Errorf("begun, and not ended: %+v; %v", left, es.pairs.Err())
			}
		}
	})
}

// No event has an owner in it, not that of others either.
func TestTraceHasNoOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var printed, log bytes.Buffer
		var mu sync.Mutex
		server := memory.NewServer()
		tell := func(_ context.Context, e leasehold.Event) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(&printed, "%+v %#v\n", e, e)
		}
		locks := newLocker(t, server.Connect(), &leasehold.Options{Trace: leasehold.TraceAll(tell, leasehold.LogTrace(slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))})
		lease := acquire(t, locks, "a")
		locks.TryAcquire(t.Context(), "a")
		time.Sleep(ttl)
		other := acquire(t, newLocker(t, server.Connect(), nil), "b")
		locks.TryAcquire(t.Context(), "b")
		owners := []string{lease.Owner(), other.Owner()}
		server.Connect().Evict(t.Context(), "a", lease.Owner(), "test")
		lease.Release(t.Context())
		locks.Close()
		synctest.Wait()
		told := printed.String() + log.String()
		for _, owner := range owners {
			if strings.Contains(told, owner) {
				t.Errorf("an owner is in\n%s", told)
			}
		}
	})
}
