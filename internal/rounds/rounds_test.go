package rounds

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A writer runs rounds and records the changes of each. A round lasts until the test lets it end.
type writer struct {
	*Rounds[string]
	mu    sync.Mutex
	begun [][]string // guarded by mu; the changes of each round, in the order in which rounds began
	ended int        // guarded by mu; rounds whose context has ended
	let   map[string]chan error
}

func newWriter(names ...string) *writer {
	w := &writer{let: make(map[string]chan error)}
	for _, name := range names {
		w.let[name] = make(chan error)
	}
	w.Rounds = New(func(ctx context.Context, name string, all iter.Seq[string]) error {
		w.mu.Lock()
		w.begun = append(w.begun, slices.Collect(all))
		w.mu.Unlock()
		select {
		case err := <-w.let[name]:
			return err
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended++
			return ctx.Err()
		}
	})
	return w
}

// do begins a change, and returns a function that waits for its outcome.
func (w *writer) do(ctx context.Context, name, change string) (outcome func() error) {
	done := make(chan error, 1)
	go func() { done <- w.Do(ctx, name, change) }()
	synctest.Wait()
	return func() error { return <-done }
}

func (w *writer) rounds(t *testing.T, want ...[]string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.EqualFunc(w.begun, want, slices.Equal) {
		t.Errorf("rounds %q, want %q", w.begun, want)
	}
}

// idle checks that nothing is left behind.
func (w *writer) idle(t *testing.T) {
	t.Helper()
	synctest.Wait()
	w.Rounds.mu.Lock()
	defer w.Rounds.mu.Unlock()
	if len(w.lines) > 0 {
		t.Errorf("%d lines are left", len(w.lines))
	}
}

// Changes gather while another is in progress, and are made together, in order. Other values do not
// wait.
func TestChangesGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter("x", "y")
		first := w.do(t.Context(), "x", "a")
		second, third := w.do(t.Context(), "x", "b"), w.do(t.Context(), "x", "c")
		other := w.do(t.Context(), "y", "d")
		w.rounds(t, []string{"a"}, []string{"d"})
		w.let["x"] <- nil
		if err := first(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		w.rounds(t, []string{"a"}, []string{"d"}, []string{"b", "c"})
		boom := errors.New("boom")
		w.let["x"] <- boom
		if err, err2 := second(), third(); err != boom || err2 != boom {
			t.Errorf("%v and %v; want the round's error", err, err2)
		}
		w.let["y"] <- nil
		if err := other(); err != nil {
			t.Error(err)
		}
		w.idle(t)
	})
}

// A change whose caller leaves before its round begins is not made, and others do not wait for it.
func TestLeavesBeforeItsRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, others := range []bool{true, false} {
			w := newWriter("x")
			ctx, leave := context.WithCancel(t.Context())
			first, gone := w.do(t.Context(), "x", "a"), w.do(ctx, "x", "b")
			want, stays := [][]string{{"a"}}, func() error { return nil }
			if others {
				stays, want = w.do(t.Context(), "x", "c"), append(want, []string{"c"})
			}
			leave()
			if err := gone(); err != context.Canceled {
				t.Errorf("left: %v", err)
			}
			w.let["x"] <- nil
			if others {
				w.let["x"] <- nil
			}
			if err, err2 := first(), stays(); err != nil || err2 != nil {
				t.Error(err, err2)
			}
			w.rounds(t, want...)
			w.idle(t)
		}
	})
}

// A caller that leaves during its round does not end it for others. The last one that leaves does.
func TestLeavesDuringItsRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter("x")
		ctx, leave := context.WithCancel(t.Context())
		later, leaveLater := context.WithCancel(t.Context())
		first, gone, stays := w.do(t.Context(), "x", "a"), w.do(ctx, "x", "b"), w.do(later, "x", "c")
		w.let["x"] <- nil
		if err := first(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		leave()
		if err := gone(); err != context.Canceled {
			t.Errorf("left: %v", err)
		}
		synctest.Wait()
		if w.ended > 0 {
			t.Error("the round of another has ended")
		}
		leaveLater()
		if err := stays(); err != context.Canceled {
			t.Errorf("left last: %v", err)
		}
		synctest.Wait()
		if w.ended != 1 {
			t.Error("nobody waits for the round, but it goes on")
		}
		w.idle(t)
	})
}

// A round that repeats its work omits the changes of callers that have left.
func TestRepeatsWithoutThoseWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again, seen := make(chan bool), [][]string{}
		r := New(func(_ context.Context, _ string, all iter.Seq[string]) error {
			for seen = append(seen, slices.Collect(all)); <-again; {
				seen = append(seen, slices.Collect(all))
			}
			return nil
		})
		ctx, leave := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for _, c := range []struct {
			ctx    context.Context
			change string
		}{{t.Context(), "a"}, {ctx, "b"}, {t.Context(), "c"}} {
			callers.Go(func() {
				if err := r.Do(c.ctx, "x", c.change); err != c.ctx.Err() {
					t.Error(c.change, err)
				}
			})
			synctest.Wait()
		}
		again <- false
		synctest.Wait()
		leave()
		synctest.Wait()
		again <- true
		again <- false
		callers.Wait()
		if want := [][]string{{"a"}, {"b", "c"}, {"c"}}; !slices.EqualFunc(seen, want, slices.Equal) {
			t.Errorf("%q, want %q", seen, want)
		}
	})
}

// A caller that leaves while its round ends gets no answer of a round that was made without it.
func TestLeavesAsItsRoundEnds(t *testing.T) {
	for _, conflict := range []bool{false, true} { // the round used the change before its caller left
		begun, again := make(chan bool), make(chan bool)
		r := New(func(_ context.Context, _ string, all iter.Seq[string]) error {
			for begun <- true; <-again; {
				uses(all)
				begun <- true
			}
			uses(all)
			return nil
		})
		ctx, leave := context.WithCancel(t.Context())
		first, gone := make(chan error, 1), make(chan error, 1)
		go func() { first <- r.Do(t.Context(), "x", "a") }()
		<-begun
		go func() { gone <- r.Do(ctx, "x", "b") }()
		var part *change[string]
		until(t, func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			if next := r.lines["x"].next; next != nil {
				part = next.changes[0]
			}
			return part != nil
		})
		again <- false
		if err := <-first; err != nil {
			t.Error(err)
		}
		<-begun
		if conflict {
			again <- true
			<-begun
		}
		r.mu.Lock() // others that leave keep it busy
		leave()
		until(t, func() bool { part.mu.Lock(); defer part.mu.Unlock(); return part.left })
		again <- false
		<-r.lines["x"].current.done
		r.mu.Unlock()
		if err := <-gone; err != context.Canceled {
			t.Errorf("left after its change was used, %v: %v; want %v", conflict, err, context.Canceled)
		}
	}
}

func uses(all iter.Seq[string]) {
	for range all {
	}
}

// until polls until so reports true.
func until(t *testing.T, so func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing happens")
		}
	}
}

// A round that hangs delays the next one only for a moment, and later ones not at all.
func TestHungRoundIsPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter("x")
		hung := w.do(t.Context(), "x", "a")
		second := w.do(t.Context(), "x", "b")
		time.Sleep(patience)
		synctest.Wait()
		w.rounds(t, []string{"a"}, []string{"b"})
		third := w.do(t.Context(), "x", "c")
		w.let["x"] <- nil // one of them
		w.let["x"] <- nil
		synctest.Wait()
		w.rounds(t, []string{"a"}, []string{"b"}, []string{"c"})
		w.let["x"] <- nil
		if err, err2, err3 := hung(), second(), third(); err != nil || err2 != nil || err3 != nil {
			t.Error(err, err2, err3)
		}
		w.idle(t)
	})
}

// Callers with little time are served beside a round that hangs, and have most of it for that.
func TestCallersWithLittleTimePassAHungRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, within := range []time.Duration{patience / 5, patience * 4 / 5, 2 * patience} {
			begun := make(chan time.Time, 1)
			hang := make(chan error)
			r := New(func(ctx context.Context, _ string, all iter.Seq[string]) error {
				for c := range all {
					if c == "hangs" {
						return <-hang
					}
				}
				begun <- time.Now()
				return nil
			})
			hung := make(chan error, 1)
			go func() { hung <- r.Do(t.Context(), "x", "hangs") }()
			synctest.Wait()
			start := time.Now()
			ctx, stop := context.WithTimeout(t.Context(), within)
			if err := r.Do(ctx, "x", "short"); err != nil {
				t.Errorf("within %v: %v", within, err)
			} else if waited := (<-begun).Sub(start); waited > within/2 {
				t.Errorf("within %v: began after %v", within, waited)
			}
			stop()
			hang <- nil
			if err := <-hung; err != nil {
				t.Error(err)
			}
		}
	})
}

// Callers that leave do not postpone the round of those who come later.
func TestLeavingPostponesNoRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter("x")
		hung := w.do(t.Context(), "x", "a")
		ctx, leave := context.WithCancel(t.Context())
		gone := w.do(ctx, "x", "b")
		time.Sleep(patience - 20*time.Millisecond)
		leave()
		if err := gone(); err != context.Canceled {
			t.Errorf("left: %v", err)
		}
		second := w.do(t.Context(), "x", "c")
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		w.rounds(t, []string{"a"}, []string{"c"})
		third := w.do(t.Context(), "x", "d")
		time.Sleep(patience - 1)
		synctest.Wait()
		w.rounds(t, []string{"a"}, []string{"c"}) // the second has as long as the first
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		w.rounds(t, []string{"a"}, []string{"c"}, []string{"d"})
		for range 3 {
			w.let["x"] <- nil
		}
		if err, err2, err3 := hung(), second(), third(); err != nil || err2 != nil || err3 != nil {
			t.Error(err, err2, err3)
		}
		w.idle(t)
	})
}

// With a context that has ended, no change is made.
func TestEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := newWriter("x")
	if err := w.Do(ctx, "x", "a"); err != context.Canceled || len(w.begun) > 0 {
		t.Errorf("%v, rounds %q", err, w.begun)
	}
}
