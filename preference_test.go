package leasehold_test

import (
	"context"
	"errors"
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

// A leader steps down at once for a candidate of higher preference, in another process or in its
// own, and comes back behind it.
func TestLeaderStepsDownForAHigherPreference(t *testing.T) {
	for where, elsewhere := range map[string]bool{"elsewhere": true, "in the process": false} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memory.NewServer()
				locks := newLocker(t, server.Connect(), nil)
				others := func() *leasehold.Locker {
					if elsewhere {
						return newLocker(t, server.Connect(), nil)
					}
					return locks
				}
				low := runForLeader(t, locks, leasehold.Preference(1))
				first := <-low.tokens
				equal := runForLeader(t, others(), leasehold.Preference(1))
				synctest.Wait()
				none := runForLeader(t, others()) // counts as 0
				time.Sleep(time.Minute)
				if len(low.ended)+len(equal.tokens)+len(none.tokens) > 0 {
					t.Fatal("replaced by a candidate of no higher preference")
				}
				start := time.Now()
				high := runForLeader(t, others(), leasehold.Preference(2))
				wantErr(t, <-low.ended, leasehold.ErrOutranked)
				wantDuration(t, "heard", time.Since(start), 0, 0)
				second := <-none.tokens // steps down for nobody, and gives up for nobody
				if second <= first || equal.leads() {
					t.Errorf("token %d after %d; the equal one leads: %v", second, first, equal.leads())
				}
				none.end <- nil
				third := <-high.tokens
				wantDuration(t, "led", time.Since(start), 0, 0)
				if third <= second {
					t.Errorf("token %d after %d", third, second)
				}
				time.Sleep(time.Minute)
				if low.leads() || equal.leads() || none.leads() || len(high.ended) > 0 {
					t.Fatal("the preferred leader was replaced")
				}
				high.cancel()
				select { // they came back at the same time
				case <-equal.tokens:
				case <-low.tokens:
				case <-none.tokens:
				}
			})
		})
	}
}

// Those in between are granted, and give up before they begin.
func TestLowerCandidatesGiveUpBeforeTheyBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locker := func() *leasehold.Locker { return newLocker(t, server.Connect(), nil) }
		none := runForLeader(t, locker())
		<-none.tokens
		var low []*candidate
		for range 5 {
			low = append(low, runForLeader(t, locker(), leasehold.Preference(-1)))
			synctest.Wait()
		}
		high := runForLeader(t, locker(), leasehold.Preference(1))
		synctest.Wait()
		start := time.Now()
		none.cancel()
		<-high.tokens
		wantDuration(t, "led", time.Since(start), 0, 0)
		time.Sleep(time.Minute)
		high.cancel()
		synctest.Wait()
		leaders := 0
		for _, c := range low {
			leaders += len(c.tokens)
		}
		if leaders != 1 {
			t.Errorf("%d terms of the others, want that of one after the preferred leader", leaders)
		}
	})
}

// A candidate of low preference calls first, and one of high preference while the leader looks.
func TestLeaderLooksAfterEachRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		low := runForLeader(t, newLocker(t, mine, nil), leasehold.Preference(1))
		<-low.tokens
		synctest.Wait()
		mine.Next(locktest.OpInspect, locktest.SlowReply(time.Second))
		runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Preference(0))
		time.Sleep(time.Second / 2)
		runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Preference(0))
		high := runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Preference(2))
		synctest.Wait()
		if n := mine.Calls(locktest.OpInspect); n != 2 {
			t.Errorf("%d looks, want one before the term and one that is under way", n)
		}
		wantErr(t, <-low.ended, leasehold.ErrOutranked)
		<-high.tokens
		if n := mine.Calls(locktest.OpInspect); n != 3 {
			t.Errorf("%d looks, want one for the two recalls that came during the second", n)
		}
	})
}

// Nor does a leader miss one because its lease was handed over by a call that looks only once.
func TestLeaderAfterACallThatYieldsLooksAfterEachRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		locks := newLocker(t, server.Connect(), nil)
		first := acquire(t, locks, "scheduler", leasehold.Yields())
		low := runForLeader(t, locks, leasehold.Preference(1))
		synctest.Wait()
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-low.tokens
		runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Preference(0))
		synctest.Wait()
		start := time.Now()
		high := runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Preference(2))
		wantErr(t, <-low.ended, leasehold.ErrOutranked)
		<-high.tokens
		wantDuration(t, "heard", time.Since(start), 0, 0)
	})
}

// A leader that cannot learn who waits leads, and asks again.
func TestLeaderThatCannotLookLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		none := runForLeader(t, newLocker(t, server.Connect(), nil))
		<-none.tokens
		low := runForLeader(t, newLocker(t, mine, nil), leasehold.Preference(1))
		synctest.Wait()
		high := runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Preference(2))
		synctest.Wait()
		mine.Always(locktest.OpInspect, locktest.HangRequest)
		start := time.Now()
		none.cancel()
		<-low.tokens
		wantDuration(t, "led", time.Since(start), time.Second, time.Second)
		mine.Always(locktest.OpInspect, locktest.LoseRequest)
		time.Sleep(time.Minute)
		if len(low.ended) > 0 {
			t.Error("stepped down although it does not know for whom")
		}
		if n := mine.Calls(locktest.OpInspect); n > 250 {
			t.Errorf("%d looks in a minute", n)
		}
		mine.Always(locktest.OpInspect, nil)
		start = time.Now()
		<-high.tokens
		wantDuration(t, "led after the engine answered", time.Since(start), 0, time.Second)
		wantErr(t, <-low.ended, leasehold.ErrOutranked)
	})
}

// Whoever leads without a preference asks nothing of the engine.
func TestLeadWithoutPreferenceLooksAtNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		d := &recaller{Driver: server.Connect()}
		first := runForLeader(t, newLocker(t, mine, nil))
		<-first.tokens
		runForLeader(t, newLocker(t, d, nil))
		runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Preference(5))
		time.Sleep(time.Minute)
		if n := mine.Calls(locktest.OpInspect); n > 0 || d.asked.Load() > 0 || len(first.ended) > 0 {
			t.Errorf("%d looks, %d claims that ask for recalls", n, d.asked.Load())
		}
	})
}

// The watch of a term ends with it, and with the Locker.
func TestWatchOfALeaderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks := newLocker(t, mine, nil)
		low := runForLeader(t, locks, leasehold.Preference(1))
		<-low.tokens
		mine.Always(locktest.OpInspect, locktest.HangRequest)
		runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Preference(1))
		synctest.Wait()
		low.end <- nil
		looks := mine.Calls(locktest.OpInspect)
		time.Sleep(time.Hour)
		if n := mine.Calls(locktest.OpInspect) - looks; n != 0 {
			t.Errorf("%d looks after the term", n)
		}
		mine.Always(locktest.OpInspect, nil)
		low.cancel()
		locks = newLocker(t, mine, nil)
		last := runForLeader(t, locks, leasehold.Preference(2))
		<-last.tokens
		start := time.Now()
		locks.Close()
		wantDuration(t, "Close waited for the term", time.Since(start), 0, 0)
		wantErr(t, <-last.ended, leasehold.ErrLost)
	})
}

// A lease that does not yield is not recalled for a leader inside it.
func TestLeaderInsideALeaseThatDoesNotYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		outer, done := acquire(t, locks, "a"), errors.New("done")
		err := locks.Lead(outer.Context(), "a", func(context.Context) error {
			time.Sleep(time.Minute)
			return done
		}, leasehold.Preference(1), leasehold.Reentrant())
		wantErr(t, err, done)
	})
}

func TestPreferenceIsForLead(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	_, err := locks.Acquire(t.Context(), "a", leasehold.Preference(1))
	wantErr(t, err, leasehold.ErrInvalidOption)
	lead := func(l *leasehold.Locker, opts ...leasehold.Option) error {
		return l.Lead(t.Context(), "a", func(context.Context) error { return context.Canceled }, opts...)
	}
	for _, n := range []int{-1_000_000_001, 1_000_000_001} {
		wantErr(t, lead(locks, leasehold.Preference(n)), leasehold.ErrInvalidOption)
	}
	wantErr(t, lead(locks, leasehold.Preference(-1_000_000_000)), context.Canceled)
	wantErr(t, lead(newLocker(t, noWakes{memory.New()}, nil), leasehold.Preference(1)), leasehold.ErrUnsupported) // hides Inspect
	features := memory.New().Features()
	features.Tells, features.Recalls, features.Keeps = false, false, false
	wantErr(t, lead(newLocker(t, limited{memory.New(), features}, nil), leasehold.Preference(1)), leasehold.ErrUnsupported)
}

// The preference is not what gives way when a note is long.
func TestPreferenceIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Repeat("x", driver.MaxNote-20)
		locks := newLocker(t, memory.New(), nil)
		first := runForLeader(t, locks, leasehold.Preference(7), leasehold.Note(text))
		<-first.tokens
		runForLeader(t, newLocker(t, memory.New(), nil))
		state, err := locks.Inspect(t.Context(), "scheduler")
		if err != nil {
			t.Fatal(err)
		}
		if d := state.Holders[0].Details(); d.Preference != 7 || d.Text != text || d.Host != "" {
			t.Errorf("%d, %d bytes, host %q", d.Preference, len(d.Text), d.Host)
		}
	})
}

// Of candidates that come one after the other, the preferred one leads in the end, and never two
// at once.
func TestPreferredCandidateLeadsInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		leading := 0
		var terms []int
		var candidates sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for _, n := range []int{3, 1, 4, 1, 5, 9, 2, 6} {
			locks := newLocker(t, server.Connect(), nil)
			candidates.Go(func() {
				locks.Lead(ctx, "a", func(ctx context.Context) error {
					if leading++; leading > 1 { // the lease guards it
						t.Error("two lead")
					}
					terms = append(terms, n)
					<-ctx.Done()
					time.Sleep(time.Second)
					leading--
					return nil
				}, leasehold.Preference(n))
			})
			time.Sleep(3 * time.Second / 2)
		}
		time.Sleep(time.Minute)
		cancel()
		candidates.Wait()
		if !slices.Equal(terms, []int{3, 4, 5, 9}) {
			t.Errorf("led by %v, want each above the former", terms)
		}
	})
}
