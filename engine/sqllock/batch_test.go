package sqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A sender answers requests, alone and in batches, when the test lets it.
type sender struct {
	batcher
	mu    sync.Mutex
	alone []string   // guarded by mu; names that were sent alone
	sent  [][]string // guarded by mu; names of each batch
	hold  chan struct{}
	fail  error
	over  map[string]int64 // the fence of a name in a batch, if it is not 7
}

func newSender() *sender {
	s := &sender{hold: make(chan struct{}), over: make(map[string]int64)}
	s.send = func(ctx context.Context, all []request) (map[grantee]int64, error) {
		var names []string
		fences := make(map[grantee]int64)
		for _, r := range all {
			names = append(names, r.Name)
			fences[grantee{r.Name, r.Owner}] = 7
			if fence, other := s.over[r.Name]; other {
				fences[grantee{r.Name, r.Owner}] = fence
			}
		}
		s.mu.Lock()
		s.sent = append(s.sent, names)
		s.mu.Unlock()
		return fences, s.told(ctx)
	}
	return s
}

func (s *sender) told(ctx context.Context) error {
	select {
	case <-s.hold:
		return s.fail
	case <-ctx.Done():
		return ctx.Err()
	}
}

// want sends a request for a name. It returns a function that waits for the answer.
func (s *sender) want(ctx context.Context, name string) (answer func() (int64, error)) {
	var fence int64
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		var alone bool
		if fence, alone, err = s.ask(ctx, request{Name: name, Owner: "me"}); alone {
			s.mu.Lock()
			s.alone = append(s.alone, name)
			s.mu.Unlock()
			fence, err = 1, s.told(ctx)
			s.answered()
		}
	}()
	synctest.Wait()
	return func() (int64, error) { <-done; return fence, err }
}

// busy puts as many requests in flight as may go alone.
func (s *sender) busy(ctx context.Context) {
	for i := range fewAlone {
		s.want(ctx, fmt.Sprint("few", i))
	}
}

func TestFewGoAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		s.busy(t.Context())
		if len(s.alone) != fewAlone || len(s.sent) > 0 {
			t.Errorf("%q went alone, %q together", s.alone, s.sent)
		}
		close(s.hold)
	})
}

// After a large batch, all but one of the next requests share a statement. After a small one, a few
// go alone again.
func TestOneGoesAloneAfterALargeBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		close(s.hold)
		for last, want := range map[int]int{fewAlone: fewAlone, fewAlone + 1: 1} {
			if s.last = last; s.few() != want {
				t.Errorf("after a batch of %d, %d go alone; want %d", last, s.few(), want)
			}
		}
		s.last = 0
		s.hold = make(chan struct{})
		s.busy(t.Context())
		for i := range fewAlone + 1 {
			s.want(t.Context(), fmt.Sprint("joins ", i))
		}
		close(s.hold)
		synctest.Wait()
		if s.last != fewAlone+1 {
			t.Errorf("the last batch had %d requests, want %d", s.last, fewAlone+1)
		}
	})
}

// Requests that come while others are in flight share a statement, which waits for them only for a
// moment.
func TestManyShareAStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		s.busy(t.Context())
		a, b, again := s.want(t.Context(), "a"), s.want(t.Context(), "b"), s.want(t.Context(), "a")
		if len(s.alone) != fewAlone+1 {
			t.Errorf("a name that is in the batch already has not gone alone: %q", s.alone)
		}
		start := time.Now()
		time.Sleep(batchPause)
		synctest.Wait()
		if len(s.sent) != 1 || len(s.sent[0]) != 2 {
			t.Fatalf("%v after others hang, %q were sent", time.Since(start), s.sent)
		}
		c := s.want(t.Context(), "c") // also behind a batch that hangs
		time.Sleep(batchPause)
		synctest.Wait()
		if len(s.sent) != 2 {
			t.Fatalf("behind a batch that hangs: %q were sent", s.sent)
		}
		close(s.hold)
		for name, answer := range map[string]func() (int64, error){"a": a, "b": b, "c": c} {
			if fence, err := answer(); fence != 7 || err != nil {
				t.Errorf("%s: %d, %v", name, fence, err)
			}
		}
		if fence, err := again(); fence != 1 || err != nil {
			t.Errorf("alone: %d, %v", fence, err)
		}
	})
}

// When a request that went alone is answered, the next batch is sent at once.
func TestBatchLeavesWithAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		s.busy(t.Context())
		s.want(t.Context(), "a")
		s.hold <- struct{}{}
		synctest.Wait()
		if len(s.sent) != 1 {
			t.Errorf("%q were sent", s.sent)
		}
		close(s.hold)
	})
}

func TestAnswersOfABatch(t *testing.T) {
	boom := errors.New("boom")
	for _, test := range []struct {
		name      string
		said      int64
		fail      error
		wantFence int64
		wantErr   error
		alone     bool
	}{
		{"granted", 7, nil, 7, nil, false},
		{"passed over", 0, nil, 1, nil, true},
		{"nothing was done", 7, ErrContended, 1, nil, true},
		{"no answer", 7, boom, 0, boom, false},
		{"ended, by this or before", untold, nil, 0, errMaybeReleased, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSender()
			s.busy(t.Context())
			s.over["a"] = test.said
			answer := s.want(t.Context(), "a")
			time.Sleep(batchPause)
			synctest.Wait()
			s.fail = test.fail
			s.hold <- struct{}{} // the batch, or one of the earlier requests
			for range fewAlone {
				s.hold <- struct{}{}
			}
			synctest.Wait()
			s.fail = nil
			close(s.hold)
			fence, err := answer()
			if fence != test.wantFence || !errors.Is(err, test.wantErr) {
				t.Errorf("%s: %d, %v", test.name, fence, err)
			}
			if alone := len(s.alone) > fewAlone; alone != test.alone {
				t.Errorf("%s: asked alone afterwards: %v", test.name, alone)
			}
		})
	}
}

// A caller that cannot wait leaves. Its request may still be served.
func TestBatchIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender()
		s.busy(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := s.want(ctx, "a")(); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		close(s.hold)
	})
}

// If a join does not change the row, a write after which nobody is known to wait keeps newcomers
// away as long as before, but not longer than places last: another may have joined since the places
// were read. If a join changes the row, the write lets newcomers in.
func TestNewcomersAfterTheLast(t *testing.T) {
	t.Parallel()
	const late = 1000 + int64(placeTTL/time.Microsecond)
	for name, last := range map[string]struct {
		before int64 // until when newcomers are refused
		claims []record.Claim
		places string
		does   func(r *row) bool
		after  int64 // where joining does not change the row
	}{
		"waiter is granted": {5000, nil, `[[7, "me", 0, 0, 1000000, "", 9000000]]`, func(r *row) bool {
			a, changed := r.try(&driver.Request{Owner: "me", TTL: time.Second})
			return a.Granted && changed
		}, 5000},
		"sharer leaves":      {5000, []record.Claim{one("me", shared, record.Holding, 5000)}, "[]", func(r *row) bool { return r.Release("me") == nil }, 5000},
		"long sharer leaves": {2 * late, []record.Claim{one("me", shared, record.Holding, 2*late)}, "[]", func(r *row) bool { return r.Release("me") == nil }, late},
	} {
		for _, joins := range []bool{false, true} {
			var crowd any
			d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
				switch text {
				case d.texts.state:
					r := rowOf("x", last.claims...)
					r[0][12], r[0][13] = last.before, last.places
					return r, nil
				case d.texts.save:
					crowd = args[6].Value
					return [][]sqldriver.Value{{int64(4)}}, nil
				}
				return nil, nil
			})
			want := int64(0)
			if !joins {
				d.texts.join, want = "", last.after
			}
			err := d.rows.Do(t.Context(), "x", change{decide: last.does, waits: true})
			if err != nil || crowd != want {
				t.Errorf("%s, joining changes the row %v: %v, newcomers are refused until %v; want %v", name, joins, err, crowd, want)
			}
		}
	}
}

// A release in a batch succeeds only if its row proves it, or the number of leases that the batch has
// ended. A row that another has taken since proves nothing.
func TestSharedReleaseIsToldApart(t *testing.T) {
	t.Parallel()
	all := []request{{Name: "ended", Owner: "me", Fence: 7}, {Name: "held", Owner: "me", Fence: 8}, {Name: "taken", Owner: "me", Fence: 9}}
	for _, test := range []struct {
		name string
		rows int // written by giveAll
		err  error
		want map[string]int64
	}{
		{"all ended", 3, nil, map[string]int64{"ended": 7, "held": 8, "taken": 9}},
		{"all that are not held", 2, nil, map[string]int64{"ended": 7, "held": 0, "taken": 9}},
		{"some", 1, nil, map[string]int64{"ended": 7, "held": 0, "taken": untold}},
		{"no answer to what ended", 1, ErrContended, nil},
	} {
		d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			if text == d.texts.giveAll {
				return make([][]sqldriver.Value, test.rows), nil
			}
			return [][]sqldriver.Value{{"ended", "me", int64(7)}, {"held", "me", int64(0)}}, test.err
		})
		d.texts.gaveAll = "what ended"
		fences, err := d.giveBatch(t.Context(), all)
		if test.want == nil {
			if !errors.Is(err, errMaybeReleased) {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		for name, want := range test.want {
			if got := fences[grantee{name, "me"}]; err != nil || got != want {
				t.Errorf("%s: %s is %d, %v; want %d", test.name, name, got, err, want)
			}
		}
	}
}

// A release in a batch of a lease that was evicted before tells why, and one whose row was only taken
// by another since tells that it is unknown.
func TestSharedReleaseOfAnEvictedLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		taken := one("other", exclusive, record.Holding, 1_001_000)
		evicted := func(fence uint64) record.Claim {
			return record.Claim{Owner: "me", Status: record.Evicted, Fence: fence, Ends: 1_001_000, Note: "maintenance"}
		}
		for _, test := range []struct {
			name   string
			claims []record.Claim
			want   error
		}{
			{"evicted", []record.Claim{evicted(7)}, driver.ErrEvicted},
			{"evicted, and then taken", []record.Claim{taken, evicted(7)}, driver.ErrEvicted},
			{"taken", []record.Claim{taken}, errMaybeReleased},
			{"taken, and a former lease was evicted", []record.Claim{taken, evicted(6)}, errMaybeReleased},
		} {
			d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
				switch text {
				case d.texts.giveAll:
					return make([][]sqldriver.Value, 1), nil // the lease of another request
				case d.texts.state:
					return rowOf("x", test.claims...), nil
				}
				return nil, nil
			})
			d.texts.gaveAll = "what ended"
			d.batches.gives.alone = fewAlone // so that others share a statement
			var all sync.WaitGroup
			for _, name := range []string{"x", "y", "z"} {
				c := claimed(t, d, driver.Request{Resource: name, Owner: "me"})
				c.holds(7, time.Minute)
				c.lease.alone = time.Now()
				all.Go(func() {
					if err := c.Release(t.Context(), driver.End{}); name == "x" && !errors.Is(err, test.want) {
						t.Errorf("%s: %v; want %v", test.name, err, test.want)
					}
				})
			}
			all.Wait()
		}
	})
}
