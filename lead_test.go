package leasehold_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// A candidate leads in the background and tells of its terms.
type candidate struct {
	locks  *leasehold.Locker
	tokens chan uint64          // of terms that begin
	ended  chan error           // why terms ended
	end    chan error           // ends the present term by a return
	cancel context.CancelFunc   // ends Lead
	result chan error           // of Lead
	delay  atomic.Int64         // from the end of a term to the return
	ctx    chan context.Context // of terms that begin
}

func runForLeader(t *testing.T, locks *leasehold.Locker, opts ...leasehold.Option) *candidate {
	ctx, cancel := context.WithCancel(t.Context())
	c := &candidate{locks: locks, tokens: make(chan uint64, 100), ended: make(chan error, 100), ctx: make(chan context.Context, 100),
		end: make(chan error), cancel: cancel, result: make(chan error, 1)}
	var running sync.WaitGroup
	running.Go(func() { c.result <- locks.Lead(ctx, "scheduler", c.lead, opts...) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

func (c *candidate) lead(ctx context.Context) error {
	lease, _ := leasehold.FromContext(ctx)
	c.ctx <- ctx
	c.tokens <- lease.Token()
	select {
	case err := <-c.end:
		return err
	case <-ctx.Done():
		c.ended <- context.Cause(ctx)
		time.Sleep(time.Duration(c.delay.Load()))
		return errors.New("interrupted") // comes of the end, as that of a database would
	}
}

// leads reports whether c has begun a term that nobody has asked for.
func (c *candidate) leads() bool { return len(c.tokens) > 0 }

func TestTermsFollowEachOtherWithLargerTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		a := runForLeader(t, newLocker(t, server.Connect(), nil))
		last := <-a.tokens
		b := runForLeader(t, newLocker(t, server.Connect(), nil))
		synctest.Wait()
		for range 5 { // each steps down in turn, and campaigns behind the other
			a.end <- nil
			for _, c := range []*candidate{b, a} {
				token := <-c.tokens
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				last = token
				time.Sleep(time.Minute)
				if a.leads() || b.leads() {
					t.Fatal("somebody else leads")
				}
				if c == b {
					b.end <- nil
				}
			}
		}
		a.cancel()
		wantErr(t, <-a.result, context.Canceled)
		<-b.tokens
		b.cancel()
		wantErr(t, <-b.result, context.Canceled)
		wantFree(t, a.locks, "scheduler")
	})
}

// The lease is given up only after the callback has returned, and the callback hears of
// the end at once.
func TestNobodyElseLeadsUntilTheCallbackHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		a := runForLeader(t, newLocker(t, server.Connect(), nil))
		<-a.tokens
		b := runForLeader(t, newLocker(t, server.Connect(), nil))
		synctest.Wait()
		a.delay.Store(int64(time.Hour))
		for i, end := range []func(){func() { a.locks.Resign("scheduler") }, a.cancel} {
			start := time.Now()
			end()
			<-a.ended
			wantDuration(t, "heard", time.Since(start), 0, 0)
			<-b.tokens
			wantDuration(t, "led by the next", time.Since(start), time.Hour, time.Hour)
			if i == 0 {
				time.Sleep(time.Minute) // so that it waits again
				b.end <- nil
				<-a.tokens
			}
		}
		wantErr(t, <-a.result, context.Canceled)
	})
}

func TestResignEndsTheTermAndCampaignsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := runForLeader(t, newLocker(t, memory.New(), nil))
		<-a.tokens
		if a.locks.Resign("other") || !a.locks.Resign("scheduler") {
			t.Error("resigned from what it does not lead, or not from what it does")
		}
		wantErr(t, <-a.ended, leasehold.ErrResigned)
		synctest.Wait()
		if a.locks.Resign("scheduler") {
			t.Error("resigned between two terms")
		}
		start := time.Now()
		<-a.tokens // there is nobody else
		wantDuration(t, "away", time.Since(start), 100*time.Millisecond, time.Second)
	})
}

func TestLostTermEndsTheCallbackAndCampaignsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		a := runForLeader(t, newLocker(t, mine, nil))
		first := <-a.tokens
		b := runForLeader(t, newLocker(t, server.Connect(), nil))
		time.Sleep(time.Minute)
		heal := mine.Sever()
		start := time.Now()
		wantErr(t, <-a.ended, leasehold.ErrLost)
		if b.leads() {
			t.Error("the next leads before the former has learnt")
		}
		second := <-b.tokens
		wantDuration(t, "led by the next", time.Since(start), 0, leasehold.DefaultTTL+10*time.Millisecond) // a waiter comes a millisecond after the end
		heal()
		b.end <- nil
		if third := <-a.tokens; first >= second || second >= third { // its first calls failed meanwhile
			t.Errorf("tokens %d, %d, %d do not grow", first, second, third)
		}
		// Inside one Locker, the end of a lost term leaves its successor alone.
		a.delay.Store(int64(time.Hour))
		other := runForLeader(t, a.locks)
		synctest.Wait()
		state, err := a.locks.Inspect(t.Context(), "scheduler")
		if err != nil {
			t.Fatal(err)
		}
		b.cancel()
		<-b.result
		if err := a.locks.Evict(t.Context(), "scheduler", state.Holders[0].Owner.Reveal(), "for the test"); err != nil {
			t.Fatal(err)
		}
		<-other.tokens
		time.Sleep(2 * time.Hour)
		if !a.locks.Resign("scheduler") {
			t.Error("the end of a lost term has ended its successor's")
		}
		wantErr(t, <-other.ended, leasehold.ErrResigned)
	})
}

// What ends Lead, and what does not.
func TestLeadEndsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks, other := newLocker(t, mine, nil), newLocker(t, server.Connect(), nil)
		lead := func(opts ...leasehold.Option) error {
			return locks.Lead(t.Context(), "scheduler", func(context.Context) error { return nil }, opts...)
		}
		wantErr(t, lead(leasehold.Shared()), leasehold.ErrInvalidOption)
		wantErr(t, lead(leasehold.TTL(-1)), leasehold.ErrInvalidOption)
		if n := mine.Calls(locktest.OpTry); n > 0 {
			t.Errorf("%d calls to the engine", n)
		}
		mine.Next(locktest.OpTry, locktest.LoseRequest)
		wantErr(t, lead(), locktest.ErrInjected) // a wrong address more often than not
		lease := acquire(t, other, "scheduler")
		wantErr(t, lead(leasehold.Wait(time.Second)), leasehold.ErrBusy)
		lease.Release(t.Context())

		// A later campaign that takes too long ends it too.
		a := runForLeader(t, locks, leasehold.Wait(time.Second))
		<-a.tokens
		b := runForLeader(t, other)
		synctest.Wait()
		a.end <- nil
		wantErr(t, <-a.result, leasehold.ErrBusy)
		b.cancel()
		<-b.result

		a = runForLeader(t, locks)
		<-a.tokens
		why := errors.New("broken")
		a.end <- why
		wantErr(t, <-a.result, why)
		wantFree(t, other, "scheduler")

		a = runForLeader(t, locks)
		<-a.tokens
		mine.Always(locktest.OpTry, locktest.LoseRequest)
		a.end <- nil
		time.Sleep(time.Minute) // away in a later campaign: tried again, without spinning
		if n := mine.Calls(locktest.OpTry); n > 400 || n < 60 {
			t.Errorf("%d tries in a minute", n)
		}
		mine.Always(locktest.OpTry, nil)
		<-a.tokens
		locks.Close()
		wantErr(t, <-a.ended, leasehold.ErrLost)
		wantErr(t, <-a.result, leasehold.ErrClosed)
	})
}

// The release of the last term may have an unknown outcome, which must not be hidden.
func TestLeadTellsOfAnUnknownRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newFaulty(t, memory.NewServer())
		a := runForLeader(t, newLocker(t, mine, nil))
		<-a.tokens
		mine.Always(locktest.OpRelease, locktest.LoseRequest)
		a.cancel()
		err := <-a.result
		wantErr(t, err, context.Canceled)
		wantErr(t, err, locktest.ErrInjected)
	})
}

// Neither is it hidden when Lead ends before the next term.
func TestLeadTellsOfAnUnknownReleaseAfterTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		a := runForLeader(t, newLocker(t, mine, nil))
		<-a.tokens
		mine.Always(locktest.OpRelease, locktest.LoseRequest)
		a.end <- nil
		time.Sleep(5*time.Second + 100*time.Millisecond) // in the pause after the release
		a.cancel()
		err := <-a.result
		wantErr(t, err, context.Canceled)
		wantErr(t, err, locktest.ErrInjected)

		time.Sleep(time.Minute)
		a = runForLeader(t, newLocker(t, mine, nil), leasehold.Wait(time.Second))
		<-a.tokens
		a.end <- nil
		err = <-a.result // in the way of itself
		wantErr(t, err, leasehold.ErrBusy)
		wantErr(t, err, locktest.ErrInjected)
	})
}

// The context of a term looks at the clock, as that of its lease does.
func TestContextOfATermLooksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := runForLeader(t, newLocker(t, memory.New(), nil), leasehold.NoRenew())
		ctx := <-a.ctx
		lease, ok := leasehold.FromContext(ctx)
		if !ok {
			t.Fatal("no lease")
		}
		time.Sleep(time.Until(lease.Deadline()))
		if ctx.Err() == nil {
			t.Error("live at the deadline")
		}
	})
}

func TestCallbackThatPanicsReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memory.New(), nil)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is gone")
				}
			}()
			locks.Lead(t.Context(), "scheduler", func(context.Context) error { panic("broken") })
		}()
		wantFree(t, locks, "scheduler")
		if locks.Resign("scheduler") {
			t.Error("a term is left")
		}
	})
}

func TestObserverSeesEachLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		mine := newFaulty(t, server)
		watcher := newLocker(t, mine, nil)
		var mu sync.Mutex
		var seen []string
		observing, stop := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() {
			for leader, err := range watcher.Observe(observing, "scheduler", time.Second) {
				mu.Lock()
				if err != nil {
					leader.Note = "error"
				}
				seen = append(seen, leader.Note)
				mu.Unlock()
			}
			close(done)
		}()
		synctest.Wait()
		a := runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Note("a"))
		<-a.tokens
		b := runForLeader(t, newLocker(t, server.Connect(), nil), leasehold.Note("b"), leasehold.AtLeast(time.Minute))
		time.Sleep(5500 * time.Millisecond) // so that nothing happens at the instant it looks
		a.cancel()
		<-b.tokens
		time.Sleep(5 * time.Second)
		mine.Next(locktest.OpInspect, locktest.LoseRequest)
		time.Sleep(5 * time.Second)
		b.cancel() // what AtLeast leaves leads nothing
		time.Sleep(5 * time.Second)
		stop()
		<-done
		if want := []string{"", "a", "b", "error", ""}; !slices.Equal(seen, want) {
			t.Errorf("saw %q, want %q", seen, want)
		}
		for _, err := range newLocker(t, noWakes{server.Connect()}, nil).Observe(t.Context(), "scheduler", time.Second) {
			wantErr(t, err, leasehold.ErrUnsupported) // and that is the end
		}
		for _, err := range watcher.Observe(t.Context(), "scheduler", 0) {
			wantErr(t, err, leasehold.ErrInvalidOption)
		}
		for leader, err := range watcher.Observe(t.Context(), "scheduler", time.Second) {
			if leader != (leasehold.Holder{}) || err != nil {
				t.Errorf("%+v, %v", leader, err)
			}
			break // stops asking
		}
	})
}
