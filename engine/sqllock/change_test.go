package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
	"github.com/leasehold-go/leasehold/internal/rounds"
)

// A fakeRow is one row of a database, with the statements about it. Its fields are for tests in a
// synctest bubble.
type fakeRow struct {
	d *Driver

	rev, fence, served int64
	record             string
	places             string

	sent  []string      // read, write, join or other, in order
	hold  chan struct{} // each statement waits for an element; nil: none waits
	reads func()        // called after each read; nil: nothing is called
	saves func() (lost bool)
	stuck string // statements that hang
}

func newFakeRow(t *testing.T) *fakeRow {
	s := &fakeRow{rev: 3, record: nothing, places: "[]"}
	s.d = scripted(t, s.answer)
	return s
}

var errSilent = errors.New("no answer")

func (s *fakeRow) answer(ctx context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
	what := map[string]string{d.texts.state: "read", d.texts.save: "write", d.texts.join: "join"}[text]
	if what == "" {
		s.sent = append(s.sent, "other")
		return nil, nil
	}
	s.sent = append(s.sent, what)
	if what == s.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch what {
	case "read":
		now := time.Now().UnixMicro()
		row := []sqldriver.Value{now, now, "x", s.fence, "", int64(0), int64(0), "", s.rev, int64(0), s.record, s.served, int64(0), s.places}
		if s.reads != nil {
			s.reads()
		}
		return [][]sqldriver.Value{row}, nil
	case "write":
		lost := s.saves != nil && s.saves()
		if args[9].Value.(int64) != s.rev {
			return nil, nil
		}
		s.fence, s.record, s.served = args[1].Value.(int64), args[7].Value.(string), args[8].Value.(int64)
		s.rev++
		if lost {
			return nil, errSilent
		}
		return [][]sqldriver.Value{{s.rev}}, nil
	default:
		return nil, nil
	}
}

// holders returns the owners in the record.
func (s *fakeRow) holders(t *testing.T) (all []string) {
	t.Helper()
	rec, err := record.Decode([]byte(s.record))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range rec.Claims {
		if c.Status == record.Holding {
			all = append(all, c.Owner)
		}
	}
	return all
}

// write changes the row as another process would.
func (s *fakeRow) write(change func(r *record.Record)) {
	rec, _ := record.Decode([]byte(s.record)) // written by us
	change(&rec)
	s.fence, s.record = max(s.fence, int64(rec.Fence)), string(rec.Encode())
	s.rev++
}

// A tried is a claim whose Try has begun.
type tried struct {
	*claim
	outcome func() (driver.Grant, error)
}

// try begins a Try for "x".
func (s *fakeRow) try(t *testing.T, ctx context.Context, req driver.Request) tried {
	t.Helper()
	req.Resource, req.Mode, req.TTL = "x", shared, time.Minute
	c := claimed(t, s.d, req)
	type answer struct {
		g   driver.Grant
		err error
	}
	done := make(chan answer, 1)
	go func() {
		g, err := c.Try(ctx)
		done <- answer{g, err}
	}()
	synctest.Wait()
	return tried{c, func() (driver.Grant, error) { a := <-done; return a.g, a.err }}
}

// gather begins a change that lasts until the test lets it end, and gathers the Tries of reqs
// behind it.
func (s *fakeRow) gather(t *testing.T, ctx context.Context, reqs ...driver.Request) (all []tried) {
	t.Helper()
	s.hold = make(chan struct{})
	first := s.try(t, t.Context(), driver.Request{Owner: "first"})
	for _, req := range reqs {
		all = append(all, s.try(t, ctx, req))
	}
	s.hold <- struct{}{} // of its read
	synctest.Wait()
	s.hold <- struct{}{} // of its write
	if _, err := first.outcome(); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	s.sent = s.sent[2:]
	return all
}

// free lets all statements continue.
func (s *fakeRow) free() { close(s.hold); synctest.Wait() }

func three(limit int) []driver.Request {
	return []driver.Request{{Owner: "a", Limit: limit}, {Owner: "b", Limit: limit}, {Owner: "c", Limit: limit}}
}

// Claims that meet are granted by one write, in order, each with its own fence. A claim that does
// not fit is refused by the same write.
func TestClaimsShareAWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeRow(t)
		all := s.gather(t, t.Context(), driver.Request{Owner: "a", Limit: 4}, driver.Request{Owner: "b", Limit: 4, Weight: 3},
			driver.Request{Owner: "c", Limit: 4}, driver.Request{Owner: "d", Limit: 4})
		s.free()
		var fences []uint64
		for i, c := range all {
			g, err := c.outcome()
			if busy, isBusy := errors.AsType[*driver.Busy](err); i == 1 {
				if !isBusy || busy.Holder.Owner.Reveal() != "first" {
					t.Errorf("the heavy one: %+v, %v; want a refusal with the holder", g, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("claim %d: %v", i, err)
			}
			fences = append(fences, g.Fence)
		}
		if !slices.IsSorted(fences) || len(slices.Compact(fences)) != 3 {
			t.Errorf("fences %d; want three, one after the other", fences)
		}
		if got, want := s.holders(t), []string{"first", "a", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("holders %q, want %q", got, want)
		}
		if want := []string{"read", "write"}; !slices.Equal(s.sent, want) {
			t.Errorf("statements %q, want %q", s.sent, want)
		}
	})
}

// If a shared write gets no answer, it is unknown to all callers, whether it was applied or not.
// Each of them then finds its own lease, or ends it.
func TestLostAnswerOfASharedWrite(t *testing.T) {
	t.Parallel()
	for _, made := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newFakeRow(t)
			all := s.gather(t, t.Context(), three(0)...)
			before := *s
			s.saves = func() bool { return true }
			s.free()
			if !made {
				s.rev, s.fence, s.record = before.rev, before.fence, before.record
			}
			for i, c := range all {
				if _, err := c.outcome(); err == nil || errors.Is(err, driver.ErrBusy) || !c.uncertain() {
					t.Errorf("claim %d: %v; want unknown", i, err)
				}
			}
			s.saves = nil
			held := s.fence
			g, err := all[0].Try(t.Context())
			if again := driver.NumberOf(g.Fence) <= uint64(held); err != nil || again != made {
				t.Errorf("Try afterwards: %+v, %v; the last fence was %d, and the write was made: %v", g, err, held, made)
			}
			rev := s.rev
			for _, c := range all[1:] {
				if err := c.Release(t.Context(), driver.End{}); made && err != nil || !made && !errors.Is(err, driver.ErrLost) {
					t.Errorf("Release, made %v: %v", made, err)
				}
			}
			if s.rev != rev+2 {
				t.Errorf("%d writes of the row; want one by each release, which refuses the late write", s.rev-rev)
			}
			if got, want := s.holders(t), []string{"first", "a"}; !slices.Equal(got, want) {
				t.Errorf("made %v: holders %q, want %q", made, got, want)
			}
		})
	}
}

// If another process writes between the read and the write, all changes are applied again, to the
// new row.
func TestConflictOfASharedWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeRow(t)
		all := s.gather(t, t.Context(), three(4)...)
		took := false
		s.reads = func() {
			if !took {
				took = true
				s.write(func(r *record.Record) {
					r.Fence += 10
					r.Claims = append(r.Claims, record.Claim{Owner: "other", Mode: shared, Status: record.Holding, Fence: r.Fence, TTL: time.Hour, Ends: time.Now().Add(time.Hour).UnixMicro()})
				})
			}
		}
		s.free()
		var granted []int
		for i, c := range all {
			if _, err := c.outcome(); err == nil {
				granted = append(granted, i)
			} else if !errors.Is(err, driver.ErrBusy) {
				t.Errorf("claim %d: %v", i, err)
			}
		}
		if !slices.Equal(granted, []int{0, 1}) {
			t.Errorf("granted %d; want the first two", granted)
		}
		if got, want := s.holders(t), []string{"first", "other", "a", "b"}; !slices.Equal(got, want) {
			t.Errorf("holders %q, want %q", got, want)
		}
		if want := []string{"read", "write", "read", "write"}; !slices.Equal(s.sent, want) {
			t.Errorf("statements %q, want %q", s.sent, want)
		}
	})
}

// A claim whose context ends while it waits for a round never enters the row. If its context ends
// during the write, it may be in the row, and its release finds it. The others get their answers in
// both cases.
func TestContextEndsInASharedWrite(t *testing.T) {
	t.Parallel()
	for _, after := range []int{0, 1, 2} { // statements of the round that are answered
		synctest.Test(t, func(t *testing.T) {
			s := newFakeRow(t)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			s.hold = make(chan struct{})
			first := s.try(t, t.Context(), driver.Request{Owner: "first"})
			gone, stays := s.try(t, ctx, driver.Request{Owner: "gone"}), s.try(t, t.Context(), driver.Request{Owner: "stays"})
			if after == 0 {
				leave()
				synctest.Wait()
			}
			for range 2 + after {
				s.hold <- struct{}{}
				synctest.Wait()
			}
			leave()
			_, err := gone.outcome()
			if answered := after == 2; answered != (err == nil) || !answered && !errors.Is(err, context.Canceled) {
				t.Errorf("after %d statements: %v", after, err)
			}
			s.free()
			for _, c := range []tried{first, stays} {
				if _, err := c.outcome(); err != nil {
					t.Errorf("another, after %d statements: %v", after, err)
				}
			}
			want := []string{"first", "gone", "stays"}
			if after == 0 {
				want = []string{"first", "stays"}
			}
			if got := s.holders(t); !slices.Equal(got, want) {
				t.Errorf("after %d statements: holders %q, want %q", after, got, want)
			}
			if err := gone.Release(t.Context(), driver.End{}); after > 0 && err != nil || after == 0 && !errors.Is(err, driver.ErrLost) {
				t.Errorf("Release after %d statements: %v", after, err)
			}
			if got, want := s.holders(t), []string{"first", "stays"}; !slices.Equal(got, want) {
				t.Errorf("released after %d statements: holders %q, want %q", after, got, want)
			}
		})
	}
}

// A closed driver waits neither for the changes of others, nor for its turn among those who wait.
func TestClosedDriverWaitsForNoChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeRow(t)
		s.stuck = "read"
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var hung []tried
		for i := range 8 {
			hung = append(hung, s.try(t, ctx, driver.Request{Owner: fmt.Sprint(i), Queue: i > 0}))
		}
		try := func(c *claim) error { _, err := c.Try(t.Context()); return err }
		calls := []func(c *claim) error{
			try,
			func(c *claim) error { c.req.Queue = true; return try(c) },
			func(c *claim) error { return c.Note(t.Context(), "") },
			func(c *claim) error { c.holds(7, time.Minute); return c.Release(t.Context(), driver.End{}) },
		}
		var claims []*claim
		for range calls {
			claims = append(claims, claimed(t, s.d, driver.Request{Resource: "x", Owner: "me", Mode: shared, TTL: time.Minute}))
		}
		if err := s.d.Close(); err != nil {
			t.Fatal(err)
		}
		for i, call := range calls {
			start := time.Now()
			if err := call(claims[i]); !errors.Is(err, driver.ErrClosed) || time.Since(start) > 0 {
				t.Errorf("call %d: %v after %v; want ErrClosed at once", i, err, time.Since(start))
			}
		}
		stop()
		for _, c := range hung {
			if _, err := c.outcome(); err == nil {
				t.Error("a Try that hangs: no error")
			}
		}
	})
}

// A round that ends well without a decision on the claim is no grant.
func TestUndecidedIsNoGrant(t *testing.T) {
	t.Parallel()
	s := newFakeRow(t)
	s.d.rows = rounds.New(func(context.Context, string, iter.Seq[change]) error { return nil })
	c := claimed(t, s.d, driver.Request{Resource: "x", Owner: "me", Mode: shared, Limit: 4, TTL: time.Minute})
	if g, err := c.Try(t.Context()); err == nil || errors.Is(err, driver.ErrBusy) || !c.uncertain() {
		t.Errorf("Try: %+v, %v; want unknown", g, err)
	}
}

// A claim that has left is not in the write after a conflict.
func TestConflictWithoutThoseWhoLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeRow(t)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		s.hold = make(chan struct{})
		first := s.try(t, t.Context(), driver.Request{Owner: "first"})
		gone, stays := s.try(t, ctx, driver.Request{Owner: "gone"}), s.try(t, t.Context(), driver.Request{Owner: "stays"})
		for range 3 {
			s.hold <- struct{}{}
			synctest.Wait()
		}
		leave()
		if _, err := gone.outcome(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.write(func(*record.Record) {})
		s.free()
		for _, c := range []tried{first, stays} {
			if _, err := c.outcome(); err != nil {
				t.Error(err)
			}
		}
		if got, want := s.holders(t), []string{"first", "stays"}; !slices.Equal(got, want) {
			t.Errorf("holders %q, want %q", got, want)
		}
	})
}

// A write that hangs delays no other name, and its own name only for a moment.
func TestHungWriteHoldsUpNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeRow(t)
		s.stuck = "write"
		ctx, stop := context.WithCancel(t.Context())
		hung := s.try(t, ctx, driver.Request{Owner: "hung"})
		s.stuck = ""
		start := time.Now()
		other := claimed(t, s.d, driver.Request{Resource: "y", Owner: "other", Mode: shared, TTL: time.Minute})
		if _, err := other.Try(t.Context()); err != nil || time.Since(start) > 0 {
			t.Errorf("another name: %v after %v", err, time.Since(start))
		}
		for _, owner := range []string{"a", "b"} {
			start := time.Now()
			if _, err := s.try(t, t.Context(), driver.Request{Owner: owner}).outcome(); err != nil || time.Since(start) > time.Second {
				t.Errorf("the same name: %v after %v", err, time.Since(start))
			}
		}
		stop()
		if _, err := hung.outcome(); !errors.Is(err, context.Canceled) {
			t.Errorf("the one that hung: %v", err)
		}
	})
}

// A shared claim without competition costs what it must. The first one takes a place, because
// another may have come before. Once there was room, the row is enough.
func TestStatementsOfASharedClaimAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			queue       bool
			first, next []string
		}{
			{true, []string{"other", "join", "read", "write", "read", "write"}, []string{"read", "write", "read", "write"}},
			{false, []string{"read", "write", "read", "write"}, []string{"read", "write", "read", "write"}},
		} {
			s := newFakeRow(t)
			for i, want := range [][]string{test.first, test.next, test.next} {
				s.sent = nil
				c := s.try(t, t.Context(), driver.Request{Owner: fmt.Sprint(i), Queue: test.queue, Limit: 2})
				if _, err := c.outcome(); err != nil {
					t.Fatal(err)
				}
				if err := c.Release(t.Context(), driver.End{}); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(s.sent, want) {
					t.Errorf("queue %v, cycle %d: %q, want %q", test.queue, i, s.sent, want)
				}
			}
			s.d.watch.close()
		}
	})
}

// A claim that reads the row first overtakes no waiter: it takes a place behind them.
func TestAskingTheRowPassesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeRow(t)
		s.d.roomy.note("x", true)
		s.write(func(r *record.Record) {
			r.Fence = 7
			r.Claims = []record.Claim{{Owner: "holder", Mode: shared, Limit: 3, Status: record.Holding, Fence: 7, TTL: time.Hour, Ends: time.Now().Add(time.Hour).UnixMicro()}}
		})
		_, limit := stored(&driver.Request{Mode: shared, Limit: 3, Weight: 3})
		s.places = fmt.Sprintf(`[[7, "heavy", 0, %d, 1000000, "", %d]]`, limit, time.Now().Add(time.Hour).UnixMicro())
		c := s.try(t, t.Context(), driver.Request{Owner: "light", Queue: true, Limit: 3})
		if _, err := c.outcome(); !errors.Is(err, driver.ErrBusy) || c.phase != queued {
			t.Errorf("%v in phase %d; want a place behind the heavy one", err, c.phase)
		}
		if s.d.roomy.has("x") || !slices.Contains(s.sent, "join") || slices.Contains(s.sent, "write") {
			t.Errorf("statements %q, still taken for roomy: %v", s.sent, s.d.roomy.has("x"))
		}
		s.d.watch.close()
	})
}

// Behind a crowd too: its place cannot be behind those in view before it has taken one.
func TestAskingTheRowTakesAPlaceBehindACrowd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeRow(t)
		s.d.roomy.note("x", true)
		s.places = list(crowdOf(inView)...)
		c := s.try(t, t.Context(), driver.Request{Owner: "new", Queue: true})
		if _, err := c.outcome(); !errors.Is(err, driver.ErrBusy) || c.phase != queued {
			t.Errorf("%v in phase %d; want a place", err, c.phase)
		}
		if !slices.Contains(s.sent, "join") {
			t.Errorf("statements %q without a join, and answered as one with a place", s.sent)
		}
		s.d.watch.close()
	})
}

// crowdOf returns the places 11, 12 and so on of exclusive waiters.
func crowdOf(n int) (all [][]sqldriver.Value) {
	for i := range n {
		all = append(all, []sqldriver.Value{int64(11 + i), fmt.Sprint("of others ", i), int64(0), int64(0), int64(1), "", time.Now().Add(time.Hour).UnixMicro()})
	}
	return all
}

// On MySQL a place may come late, with a number that is over. Behind a crowd it is not missed until a
// heartbeat, or until the next Try if it had no answer. Then it gets a number that counts, whether or
// not the heartbeat has removed it yet.
func TestPlaceThatCameLateCountsAgain(t *testing.T) {
	t.Parallel()
	for _, unknown := range []bool{false, true} { // whether the first insert has an answer
		synctest.Test(t, func(t *testing.T) {
			const late, served = int64(5), int64(10)
			var numbers []int64 // from which the place may be, in each insert
			var d *Driver
			db := sql.OpenDB(script{func(_ context.Context, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
				now := time.Now().UnixMicro()
				switch text {
				case d.texts.state:
					return [][]sqldriver.Value{{now, now, "x", int64(7), "", int64(0), int64(0), "", int64(3), int64(0), nothing, served, now + 8_000_000, ""}}, nil
				case d.texts.first:
					return crowdOf(inView), nil
				case d.texts.insert:
					numbers = append(numbers, args[slices.Index(d.dialect.(*mysql).order[text], 7)].Value.(int64))
					if unknown && len(numbers) == 1 {
						return nil, errSilent
					}
				case d.texts.mine:
					return [][]sqldriver.Value{{"x", "late", late, int64(1), int64(7), int64(0), int64(8_000_000)}}, nil
				}
				return nil, nil
			}})
			defer db.Close()
			d, err := NewMySQL(db, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			var on runner = db
			d.checked.Store(&on)
			c := claimed(t, d, driver.Request{Resource: "x", Owner: "late", Mode: shared, TTL: time.Minute, Queue: true})
			for range 2 {
				_, err := c.Try(t.Context())
				if busy, isBusy := errors.AsType[*driver.Busy](err); isBusy {
					<-busy.Wake
				} else if !errors.Is(err, errSilent) {
					t.Fatal(err)
				}
			}
			if !slices.Equal(numbers, []int64{0, served + 1}) {
				t.Errorf("places from the numbers %d on; want any, then one above %d", numbers, served)
			}
		})
	}
}
