//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/spf13/pflag"
)

// acquired returns the Locker and the leases of a run whose command is about to begin.
func acquired(t *testing.T, r *run, store driver.Driver, names ...string) (*leasehold.Locker, *leasehold.Leases) {
	t.Helper()
	locks, err := leasehold.New(store, r.child.options())
	if err != nil {
		t.Fatal(err)
	}
	leases, err := locks.AcquireAll(t.Context(), names, r.period.options()...)
	if err != nil {
		t.Fatal(err)
	}
	return locks, leases
}

// awayFor loses each request for d, as a store does that is away.
func awayFor(d time.Duration) locktest.Fault {
	back := time.Now().Add(d)
	return func(ctx context.Context, apply func() error) error {
		if time.Now().Before(back) {
			return locktest.LoseRequest(ctx, apply)
		}
		return apply()
	}
}

// A failed job of a period is given back by two calls: the store that goes away between them keeps its name for no longer
// than it would have.
func TestGiveBackLengthensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		r := &run{child: newChild(&app{}), period: period{oncePer: span(24 * time.Hour), retry: true}}
		r.argv = []string{"report"}
		_, r.child.ttl = r.period.ttl(0) // as checkFlags does
		store := locktest.NewFaulty(server.Connect())
		store.Always(locktest.OpRelease, locktest.LoseRequest)
		locks, leases := acquired(t, r, store, "daily")
		defer locks.Close()
		time.Sleep(time.Hour) // the command runs, and fails
		if err := r.giveBack(t.Context(), locks, leases); err == nil {
			t.Error("given back by nobody")
		}
		time.Sleep(time.Minute)
		next, err := leasehold.New(server.Connect(), r.child.options())
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		if _, err := next.TryAcquire(t.Context(), "daily", r.period.options()...); err != nil {
			t.Errorf("a minute after it was given back: %v", err)
		}
	})
}

// A failed job is given back, whichever of the two calls fails at first. No call may keep its name instead.
func TestGiveBackKeepsNothing(t *testing.T) {
	for name, fault := range map[string]func(store *locktest.Faulty){
		"resume":  func(store *locktest.Faulty) { store.Next(locktest.OpRenew, locktest.LoseRequest) },
		"release": func(store *locktest.Faulty) { store.Always(locktest.OpRelease, awayFor(6*time.Second)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := locktest.NewFaulty(memory.NewServer().Connect())
				r := &run{child: newChild(&app{stderr: t.Output()}), period: period{oncePer: span(24 * time.Hour), atMost: span(10 * time.Minute), retry: true}}
				r.name, r.argv = "daily", []string{"report"}
				_, r.child.ttl = r.period.ttl(0)
				locks, leases := acquired(t, r, store, r.name)
				defer locks.Close()
				time.Sleep(time.Minute) // the command runs, and fails
				fault(store)
				until := leases.Deadline()
				f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{leases.Lease(r.name)}, until: until, ended: time.Now(), code: 1}
				if released, stopped := f.say(t.Context()); released != nil || stopped != nil {
					t.Errorf("%v, %v", released, stopped)
				}
				if state, err := locks.Inspect(t.Context(), r.name); err != nil || len(state.Holders) > 0 {
					t.Errorf("%+v, %v, want nobody", state.Holders, err)
				}
			})
		})
	}
}

// A session is a store whose leases end with the process.
type session struct{ *locktest.Faulty }

func (s session) Features() driver.Features {
	f := s.Faulty.Features()
	f.Resumes = false
	return f
}

// A signal that comes with the grant keeps nothing: not if the wait is over too, nor on a store that resumes no lease, nor
// on one that goes away.
func TestSignalThatComesWithTheGrantKeepsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		session, over, away bool
	}{"over": {over: true}, "session": {session: true}, "away": {away: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				r := &run{child: newChild(&app{stderr: &said, json: true}), period: period{oncePer: span(time.Hour)}}
				r.name = "daily"
				r.claim.add(pflag.NewFlagSet(name, pflag.ContinueOnError), time.Minute)
				store := locktest.NewFaulty(memory.NewServer().Connect())
				var d driver.Driver = store
				if c.session {
					d = session{store}
				}
				ctx, end := context.WithCancel(t.Context())
				defer end()
				signal := func() {
					r.signals <- syscall.SIGTERM
					synctest.Wait()
					if c.over {
						end()
					}
					if c.away {
						store.Always(locktest.OpRenew, locktest.LoseRequest)
					}
				}
				granted := func(leasehold.Event) {
					if c.session {
						signal()
					}
				}
				store.Next(locktest.OpRenew, func(_ context.Context, apply func() error) error { // the whole period, but for a session
					err := apply()
					signal()
					return err
				})
				locks, err := leasehold.New(d, &leasehold.Options{Trace: locktest.On(leasehold.StepGranted, granted)})
				if err != nil {
					t.Fatal(err)
				}
				defer locks.Close()
				if _, err := r.acquire(ctx, locks, r.period.options()); exitCode(err) != 143 {
					t.Errorf("%v, want the signal", err)
				}
				state, err := locks.Inspect(t.Context(), r.name)
				if err != nil || store.Calls(locktest.OpLinger) > 0 || c.over && len(state.Holders) > 0 {
					t.Errorf("it is kept: %+v, %v", state.Holders, err)
				}
				if told := strings.Contains(said.String(), "ends by itself within"); told != c.away {
					t.Errorf("it says %q", said.String())
				}
			})
		})
	}
}

// What the store shows decides about a release without an answer.
func TestReleaseWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		r := &run{child: newChild(&app{}), period: period{atLeast: span(time.Hour)}}
		r.argv, r.child.ttl = []string{"job"}, time.Minute
		unanswered := errors.New("away")
		for name, c := range map[string]struct {
			end  func(locks *leasehold.Locker, lease *leasehold.Lease) error
			want error
		}{
			"held": {func(*leasehold.Locker, *leasehold.Lease) error { return nil }, unanswered},
			"kept": {func(_ *leasehold.Locker, lease *leasehold.Lease) error { return lease.Release(t.Context()) }, nil},
			"lost": {func(locks *leasehold.Locker, lease *leasehold.Lease) error {
				return locks.Evict(t.Context(), lease.Name(), lease.Owner(), "test")
			}, leasehold.ErrLost},
			"slept": {func(locks *leasehold.Locker, lease *leasehold.Lease) error {
				err := locks.Evict(t.Context(), lease.Name(), lease.Owner(), "test")
				boottime.Machine().Sleep(time.Hour) // what it kept is over
				return err
			}, unanswered},
			"over": {func(_ *leasehold.Locker, lease *leasehold.Lease) error {
				err := lease.Release(t.Context())
				time.Sleep(time.Hour) // nothing is left of what it kept
				return err
			}, unanswered},
		} {
			locks, err := leasehold.New(server.Connect(), r.child.options())
			if err != nil {
				t.Fatal(err)
			}
			r.asked = boottime.Now()
			leases, err := locks.AcquireAll(t.Context(), []string{name}, r.period.options()...)
			if err != nil {
				t.Fatal(err)
			}
			lease := leases.Lease(name)
			if err := c.end(locks, lease); err != nil {
				t.Fatal(err)
			}
			f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{lease}}
			if err := f.learned(t.Context(), unanswered); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			locks.Close()
		}
	})
}

// The command has ended, and the store is away. The lease is over when the machine wakes up: it was not lost.
func TestLeaseThatEndsWhileTheMachineSleepsIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &run{child: newChild(&app{stderr: t.Output()}), period: period{oncePer: span(24 * time.Hour), atMost: span(8 * time.Hour)}}
		r.name, r.argv = "daily", []string{"report"}
		_, r.child.ttl = r.period.ttl(0)
		store := locktest.NewFaulty(memory.NewServer().Connect())
		locks, leases := acquired(t, r, store, r.name)
		defer locks.Close()
		store.Always(locktest.OpNote, func(context.Context, func() error) error {
			boottime.Machine().Sleep(9 * time.Hour)
			leases.Context().Err() // finds out, as on a resume
			return locktest.ErrInjected
		})
		f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{leases.Lease(r.name)}, until: leases.Deadline(), ended: time.Now(), keeps: time.Now().Add(r.length())}
		if released, stopped := f.say(t.Context()); !errors.Is(released, leasehold.ErrLost) || f.foundLost(released) || stopped != nil {
			t.Errorf("%v, %v, lost: %v", released, stopped, f.foundLost(released))
		}
	})
}

// Once --at-least is over, a release decides only when the lease ends: it is not insisted on, and nothing is said of a
// command that may run too soon.
func TestReleaseAfterAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for ran, tries := range map[time.Duration]bool{10 * time.Second: true, time.Minute: false} {
			var said strings.Builder
			r := &run{child: newChild(&app{stderr: &said}), period: period{atLeast: span(20 * time.Second)}}
			r.name, r.argv, r.child.ttl = "job", []string{"job"}, time.Hour
			store := locktest.NewFaulty(memory.NewServer().Connect())
			locks, leases := acquired(t, r, store, r.name)
			began := time.Now()
			time.Sleep(ran)
			store.Always(locktest.OpLinger, locktest.LoseRequest)
			store.Always(locktest.OpRelease, locktest.LoseRequest)
			store.Always(locktest.OpInspect, locktest.LoseRequest)
			until := leases.Deadline()
			f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{leases.Lease(r.name)}, until: until, ended: time.Now(), keeps: began.Add(r.length())}
			released, stopped := f.say(t.Context())
			took := time.Since(began)
			time.Sleep(time.Minute) // what it has left ends
			synctest.Wait()
			if answered(released) || stopped != nil || strings.Contains(fmt.Sprint(released), "before its time") {
				t.Errorf("after %v: %v, %v", ran, released, stopped)
			}
			if told := strings.Contains(said.String(), "Trying again until "); told != tries {
				t.Errorf("after %v it says %q", ran, said.String())
			}
			if took > max(ran, 20*time.Second)+6*time.Second {
				t.Errorf("after %v it tried for %v", ran, took-ran)
			}
			locks.Close()
		}
	})
}

// A release that begins just before --at-least is over has as long as any other to be answered. Before that, its record is
// tried again for half of the time for which it decides something, however long the lease would last.
func TestReleaseBeforeAtLeastEnds(t *testing.T) {
	all := []locktest.Op{locktest.OpNote, locktest.OpLinger, locktest.OpRelease}
	for name, c := range map[string]struct {
		left         time.Duration
		ops          []locktest.Op
		fault        locktest.Fault
		known, again bool
		holders      int
	}{
		"slow":   {10 * time.Millisecond, all, locktest.SlowReply(50 * time.Millisecond), true, false, 0},
		"hung":   {10 * time.Millisecond, all, locktest.HangRequest, false, false, 1},
		"record": {10 * time.Second, all[:1], locktest.LoseRequest, true, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				r := &run{child: newChild(&app{stderr: &said}), period: period{atLeast: span(20 * time.Second)}}
				r.name, r.argv, r.child.ttl = "job", []string{"job"}, time.Hour
				store := locktest.NewFaulty(memory.NewServer().Connect())
				locks, leases := acquired(t, r, store, r.name)
				defer locks.Close()
				keeps, until := time.Now().Add(r.length()), leases.Deadline()
				time.Sleep(20*time.Second - c.left)
				for _, op := range c.ops {
					store.Next(op, c.fault)
				}
				f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{leases.Lease(r.name)}, until: until, ended: time.Now(), keeps: keeps}
				if released, stopped := f.say(t.Context()); answered(released) != c.known || stopped != nil {
					t.Errorf("%v, %v", released, stopped)
				}
				time.Sleep(time.Second) // what it has left ends
				synctest.Wait()
				if again := strings.Contains(said.String(), "Trying again until "); again != c.again || !again && said.Len() > 0 {
					t.Errorf("it says %q", said.String())
				}
				state, err := locks.Inspect(t.Context(), r.name)
				if err != nil || len(state.Holders) != c.holders || c.again && !strings.Contains(state.Holders[0].Note, "(exit code 0 after ") {
					t.Errorf("it keeps %+v, %v", state.Holders, err)
				}
			})
		})
	}
}

// A record for which the labels leave no room is never written. Nothing waits for it.
func TestReleaseDoesNotWaitForARecordWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		r := &run{child: newChild(&app{stderr: &said}), period: period{oncePer: span(24 * time.Hour), atMost: span(2 * time.Hour)}}
		r.name, r.argv, r.who.Labels = "daily", []string{"report"}, map[string]string{"k": strings.Repeat("x", 4070)}
		_, r.child.ttl = r.period.ttl(0)
		locks, leases := acquired(t, r, memory.NewServer().Connect(), r.name)
		defer locks.Close()
		f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{leases.Lease(r.name)}, until: leases.Deadline(), ended: time.Now(), keeps: time.Now().Add(r.length())}
		released, stopped := f.say(t.Context())
		if took := time.Since(f.ended); released != nil || stopped != nil || said.Len() > 0 || took > time.Second {
			t.Errorf("%v, %v after %v: it says %q", released, stopped, took, said.String())
		}
	})
}

// Nobody needs the record of a job that is given back: a store without room for it delays nothing.
func TestGiveBackNeedsNoRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		r := &run{child: newChild(&app{stderr: &said}), period: period{oncePer: span(24 * time.Hour), retry: true}}
		r.name, r.argv = "daily", []string{"report"}
		_, r.child.ttl = r.period.ttl(0)
		store := locktest.NewFaulty(memory.NewServer().Connect())
		locks, leases := acquired(t, r, store, r.name)
		defer locks.Close()
		store.Always(locktest.OpNote, func(context.Context, func() error) error { return driver.ErrFull })
		f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{leases.Lease(r.name)}, until: leases.Deadline(), ended: time.Now(), code: 3}
		released, stopped := f.say(t.Context())
		if took := time.Since(f.ended); released != nil || stopped != nil || said.Len() > 0 || took > time.Second {
			t.Errorf("%v, %v after %v: it says %q", released, stopped, took, said.String())
		}
		if state, err := locks.Inspect(t.Context(), r.name); err != nil || len(state.Holders) > 0 {
			t.Errorf("%+v, %v, want nobody", state.Holders, err)
		}
	})
}

// The end of several leases is known when it is known of each.
func TestEachReleaseIsAnswered(t *testing.T) {
	lost := fmt.Errorf("release: %w", driver.Evicted("test"))
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, true}, {lost, true}, {errors.Join(lost, leasehold.ErrReleased), true}, {errors.New("away"), false},
		{errors.Join(lost, errors.New("away")), false}, {errors.Join(errors.New("away"), lost), false},
	} {
		if got := answered(c.err); got != c.want {
			t.Errorf("%q: %v", c.err, got)
		}
	}
}

// One of two leases was lost, and the store goes away before it has answered the release of the other: that is insisted on.
func TestOneLeaseIsLostAndAnotherUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &run{child: newChild(&app{stderr: t.Output()}), period: period{atLeast: span(time.Hour)}}
		r.name, r.argv, r.child.ttl = "a", []string{"job"}, time.Minute
		store := locktest.NewFaulty(memory.NewServer().Connect())
		locks, leases := acquired(t, r, store, "a", "b")
		defer locks.Close()
		a, b, until := leases.Lease("a"), leases.Lease("b"), leases.Deadline()
		if err := locks.Evict(t.Context(), "b", b.Owner(), "test"); err != nil {
			t.Fatal(err)
		}
		store.Always(locktest.OpLinger, awayFor(6*time.Second))
		f := farewell{run: r, locks: locks, leases: leases, each: []*leasehold.Lease{a, b}, until: until, ended: time.Now(), keeps: time.Now().Add(r.length())}
		if released, stopped := f.say(t.Context()); !errors.Is(released, leasehold.ErrLost) || stopped != nil {
			t.Errorf("%v, %v, want the loss of b", released, stopped)
		}
		if state, err := locks.Inspect(t.Context(), "a"); err != nil || len(state.Holders) != 1 || state.Holders[0].Owner.Reveal() != "" {
			t.Errorf("%+v, %v, want what a keeps", state.Holders, err)
		}
	})
}

// The leases that come with a signal are given back at once, however long the store takes for each.
// Another signal ends that.
func TestLeasesThatComeWithASignalAreGivenBackAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		signals int
		bound   time.Duration
	}{"one": {1, 11 * time.Second}, "another": {2, lastWord}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &run{child: newChild(&app{stderr: t.Output()}), period: period{atLeast: span(time.Hour)}}
				r.name, r.also = "a", []string{"b", "c", "d"}
				r.claim.add(pflag.NewFlagSet(name, pflag.ContinueOnError), time.Minute)
				store := locktest.NewFaulty(memory.NewServer().Connect())
				store.Always(locktest.OpRenew, func(ctx context.Context, apply func() error) error {
					select {
					case <-time.After(4 * time.Second):
						return apply()
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				locks, err := leasehold.New(store, &leasehold.Options{Trace: locktest.On(leasehold.StepGranted, func(e leasehold.Event) {
					if e.Name == "d" {
						r.signals <- syscall.SIGTERM
						synctest.Wait()
					}
				})})
				if err != nil {
					t.Fatal(err)
				}
				defer locks.Close()
				time.AfterFunc(time.Second, func() {
					for range c.signals - 1 {
						r.signals <- syscall.SIGTERM
					}
				})
				began := time.Now()
				if _, err := r.acquire(t.Context(), locks, r.period.options()); exitCode(err) != 143 {
					t.Errorf("%v, want the signal", err)
				}
				if took := time.Since(began); took > time.Second+c.bound {
					t.Errorf("took %v", took)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}
