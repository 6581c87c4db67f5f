package leasehold

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/waiting"
	"github.com/leasehold-go/leasehold/memory"
)

var phaseNames = [...]string{asking: "asking", held: "held", handing: "handing", kept: "kept", leaving: "leaving", lost: "lost"}

var eventNames = [...]string{onGrant: "grant", onHandOver: "handOver", onKeep: "keep", onTake: "take", onRelease: "release", onLoss: "loss"}

// A stage is a hold in one phase, and what may act on it.
type stage struct {
	locks *Locker
	h     *hold
	lease *Lease // its last; nil: it had none
	a     *acquisition
}

// stageIn brings a hold to a phase as it comes there.
func stageIn(t *testing.T, d *agreeing, p phase, o *Options) *stage {
	l, err := New(telling{d}, o)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{locks: l, a: &acquisition{request: &request{}, locker: l, name: "a", ctx: t.Context(), waits: true}}
	if err := s.a.fill(l, "a", nil); err != nil {
		t.Fatal(err)
	}
	if p == asking {
		l.queue.take("a")
		if err = s.a.newHold("owner"); err != nil {
			t.Fatal(err)
		}
		s.h = s.a.hold
		return s
	}
	if s.lease, err = l.Acquire(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	s.h = s.lease.hold
	switch p {
	case handing:
		s.queueUp()
		if err := s.lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	case kept:
		if err := s.lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	case leaving:
		s.h.neverKeep()
		d.released = errors.New("no answer")
		if err := s.lease.Release(t.Context()); err == nil {
			t.Fatal("released although the engine does not answer")
		}
	case lost:
		s.h.lose(ErrLost)
	}
	return s
}

// queueUp has a waiter come that takes what is handed over, and does not run yet.
func (s *stage) queueUp() { s.locks.queue.enter("a", s.a.turnWaiter()) }

// cause brings about e.
func (s *stage) cause(ctx context.Context, e event) {
	switch e {
	case onGrant:
		s.a.hold, s.a.sent, s.a.grant = s.h, s.locks.clock.Now(), driver.Grant{TTL: s.a.ttl, Fence: driver.FenceStep}
		s.a.hasTurn = true
		s.a.begin()
	case onHandOver:
		s.queueUp()
		s.lease.Release(ctx)
	case onKeep:
		s.lease.Release(ctx)
	case onTake:
		s.locks.queue.take("a")
		s.h.take(s.a.newLease(s.h, StepHandedOver), s.a)
	case onLoss:
		s.h.lose(ErrLost)
	case onRelease:
		switch s.h.neverKeep(); s.h.phase {
		case kept:
			synctest.Wait()
		case held:
			s.lease.Release(ctx)
		default:
			s.h.release(ctx, nil)
		}
	}
}

// Each cell of the table is what the code does, with what follows from it: what is over is not
// renewed nor watched; a holder is told that its lease was lost, but not of one that it released;
// and the turn is the hold's while it is held or handed over, and no longer.
func TestTheTableIsWhatHappens(t *testing.T) {
	for from := range transitions {
		for e, to := range transitions[from] {
			if to == never {
				continue
			}
			t.Run(phaseNames[from]+"/"+eventNames[e], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { happens(t, phase(from), event(e), to) })
			})
		}
	}
}

func happens(t *testing.T, from phase, e event, to phase) {
	d := &agreeing{}
	var o *Options
	if from == kept || e == onKeep {
		o = &Options{Keep: time.Second}
	}
	s := stageIn(t, d, from, o)
	if s.h.phase != from {
		t.Fatalf("begins in phase %d, want %d", s.h.phase, from)
	}
	s.cause(t.Context(), e)
	synctest.Wait()
	s.check(t, from, to)
	d.released = nil
	s.h.release(t.Context(), nil)
	s.locks.Close()
}

// A call that has been handed the lease before it recalls the former holder does not recall itself.
func TestNobodyRecallsItself(t *testing.T) {
	l, err := New(telling{&agreeing{}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lease, err := l.Acquire(t.Context(), "a", Yields())
	if err != nil {
		t.Fatal(err)
	}
	for _, waits := range []bool{false, true} {
		if waits {
			l.queue.enter("a", turnWaiter{})
		}
		lease.hold.recallLocally()
		if is := waiting.Closed(lease.wanted.closes); is != waits {
			t.Errorf("wanted: %v, waited for: %v", is, waits)
		}
	}
}

// A call that the lease being released has just begun must not change what the next one takes.
func TestNothingIsKeptWhileACallBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stageIn(t, &agreeing{}, held, &Options{Keep: time.Second})
		if !s.h.calling.TryBegin() { // as the keeper does
			t.Fatal("another call is in flight")
		}
		go s.lease.call(t.Context(), func() error { return nil })
		synctest.Wait()
		go s.lease.Release(t.Context())
		synctest.Wait()
		if s.h.phase != leaving {
			t.Errorf("phase %s", phaseNames[s.h.phase])
		}
		s.h.calling.End()
		synctest.Wait()
		s.locks.Close()
	})
}

// Whatever happens between a Release and its offer, nobody is left with a hold that is over or
// recalled, nor with one of a Locker that is closed.
func TestHoldChangesBeforeItIsOffered(t *testing.T) {
	for what, change := range map[string]func(s *stage){
		"recalled": func(s *stage) { s.h.recall() },
		"lost":     func(s *stage) { s.h.lose(ErrLost) },
		"known":    func(s *stage) { s.h.neverKeep() },
		"closed":   func(s *stage) { s.locks.queue.close() },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := stageIn(t, &agreeing{}, held, &Options{Keep: time.Hour})
				s.h.mu.Lock()
				s.h.drop(s.lease)
				s.h.mu.Unlock()
				change(s)
				if err := s.h.offer(s.lease); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if !s.h.over() || s.locks.queue.turns["a"] != nil {
					t.Errorf("phase %s, and the turn is left: %v", phaseNames[s.h.phase], s.locks.queue.turns["a"] != nil)
				}
				s.locks.Close()
			})
		})
	}
}

// A recall on the way to a call leaves it the hold, as long as that may be handed over.
func TestHoldIsRecalledBeforeItIsTaken(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := stageIn(t, &agreeing{}, kept, &Options{Keep: time.Hour})
			defer s.locks.Close()
			s.locks.queue.take("a")
			if late {
				time.Sleep(DefaultHandOver)
			}
			s.h.recall()
			lease, err := s.a.take(s.h, StepTaken)
			if (lease == nil) != late || err != nil {
				t.Fatalf("late: %v: %v, %v", late, lease, err)
			}
			if late {
				s.locks.queue.pass("a")
				return
			}
			if err := lease.Release(t.Context()); err != nil || s.h.phase == kept {
				t.Errorf("released in phase %s, %v", phaseNames[s.h.phase], err)
			}
		})
	}
}

// Whatever happens between the call that finds a hold kept and its take, that call has the turn.
func TestHoldChangesBeforeItIsTaken(t *testing.T) {
	for what, change := range map[string]func(s *stage){
		"recalled": func(s *stage) { time.Sleep(DefaultHandOver); s.h.recall() },
		"lost":     func(s *stage) { s.h.lose(ErrLost) },
		"known":    func(s *stage) { s.h.neverKeep() },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := stageIn(t, &agreeing{}, kept, &Options{Keep: time.Hour})
				s.locks.queue.take("a")
				change(s)
				synctest.Wait()
				if s.locks.queue.turns["a"] == nil {
					t.Fatal("the turn is gone")
				}
				lease, err := s.a.take(s.h, StepTaken)
				if lease != nil || err != nil || !s.a.hasTurn || s.h.holders.hasTurn {
					t.Errorf("%v, %v; has the turn: %v, %v", lease, err, s.a.hasTurn, s.h.holders.hasTurn)
				}
				s.locks.queue.pass("a")
				if !s.h.over() || s.locks.queue.turns["a"] != nil {
					t.Errorf("phase %s, and the turn is left: %v", phaseNames[s.h.phase], s.locks.queue.turns["a"] != nil)
				}
				s.locks.Close()
			})
		})
	}
}

// telling is an engine that tells of waiters.
type telling struct{ *agreeing }

func (telling) Features() driver.Features {
	return driver.Features{Fencing: true, Tells: true, Keeps: true}
}

func (s *stage) check(t *testing.T, from, to phase) {
	t.Helper()
	h, l := s.h, s.locks
	if h.phase != to {
		t.Fatalf("ends in phase %d, want %d", h.phase, to)
	}
	if planned := !l.deadlines.due.Empty(); planned != (to == held || to == handing || to == kept) {
		t.Errorf("its deadline is watched: %v", planned)
	}
	if !l.keeper.due.Empty() && h.over() {
		t.Error("it is to be renewed although it is over")
	}
	if keeps := to == held || to == handing || to == kept || from == handing && to == lost; !h.holders.hasTurn && keeps {
		t.Error("it does not keep the turn")
	} else if h.holders.hasTurn && !keeps && h.phase == lost {
		t.Error("it keeps the turn although it is lost")
	}
	if told := errors.Is(h.cause, ErrLost); told != (to == lost) {
		t.Errorf("its cause is %v", h.cause)
	}
	if s.lease == nil || to == held && from != handing && from != kept {
		return
	}
	want := ErrReleased
	if to == lost && from != handing && from != kept {
		want = ErrLost
	}
	if got := context.Cause(s.lease.Context()); !errors.Is(got, want) {
		t.Errorf("the lease's context ended with %v, want %v", got, want)
	}
}

// A lease whose renewal hangs delays the release of no other.
func TestHungRenewalDelaysNoOtherRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New()
		locks, err := New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		all, err := locks.AcquireAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		hung := all.leases[1].hold.calling
		if err := hung.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		released := make(chan error)
		go func() { released <- all.Release(t.Context()) }()
		synctest.Wait()
		if state, err := d.Inspect(t.Context(), "a"); err != nil || len(state.Holders) > 0 {
			t.Errorf("while the renewal of b hangs, a has %+v, %v", state.Holders, err)
		}
		hung.End()
		if err := <-released; err != nil {
			t.Error(err)
		}
		if state, err := d.Inspect(t.Context(), "b"); err != nil || len(state.Holders) > 0 {
			t.Errorf("b has %+v, %v", state.Holders, err)
		}
	})
}

// hungReleases is an engine that answers no release of several claims.
type hungReleases struct{ *memory.Driver }

func (hungReleases) ReleaseAll(ctx context.Context, endings []driver.Ending) {
	<-ctx.Done()
	for i := range endings {
		endings[i].Err = ctx.Err()
	}
}

// A lease with a call in flight does not wait, unrenewed, for the release of the others. The first is
// held until they are released.
func TestHungReleaseDelaysNoOther(t *testing.T) {
	for busy, want := range []bool{true, false} { // whether it is held during the release of the others
		synctest.Test(t, func(t *testing.T) {
			d := memory.New()
			locks, err := New(hungReleases{d}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			all, err := locks.AcquireAll(t.Context(), []string{"a", "b", "c"}, TTL(2*time.Second), AtLeast(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			le := all.leases[busy]
			le.hold.calling.TryBegin()
			time.AfterFunc(10*time.Millisecond, le.hold.calling.End)
			kept := func() (held bool) {
				state, err := d.Inspect(t.Context(), le.Name())
				if err != nil || len(state.Holders) == 0 {
					t.Fatalf("AtLeast does not keep %s: %+v, %v", le.Name(), state, err)
				}
				return state.Holders[0].Owner.Reveal() != ""
			}
			time.AfterFunc(time.Second, func() {
				if held := kept(); held != want {
					t.Errorf("%s is held during the release of the others: %v", le.Name(), held)
				}
			})
			if errs := releaseAll(t.Context(), all.leases, false); errs[busy] != nil || errs[2] == nil {
				t.Errorf("released: %v, want an error of c", errs)
			}
			if kept() {
				t.Errorf("%s is held still", le.Name())
			}
		})
	}
}
