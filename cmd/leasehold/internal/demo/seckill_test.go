package demo

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func playSeckill(t *testing.T, s *Seckill, strategy Strategy) *SeckillResult {
	t.Helper()
	return play(t, newStage(t), s, strategy).Runs[strategy].(*SeckillResult)
}

func TestOversoldWithoutLock(t *testing.T) {
	t.Parallel()
	for _, s := range []*Seckill{{4, 1, 2, false, -1}, {30, 29, 3, false, -1}} {
		res := playSeckill(t, s, None)
		if res.Sold != s.Buyers || res.Oversold != s.Buyers-s.Stock {
			t.Errorf("%+v: %+v, want a piece sold to each buyer", s, res)
		}
		if res.P50 < milliseconds(thinkLeast) || res.P99 < res.P50 || res.Total < res.P99-1 {
			t.Errorf("%+v: impossible times: %+v", s, res)
		}
	}
}

func TestExactlyTheStockIsSold(t *testing.T) {
	t.Parallel()
	for _, strategy := range []Strategy{Lock, Optimistic} {
		for _, s := range []*Seckill{{1, 1, 1, false, -1}, {4, 9, 2, false, -1}, {7, 7, 2, false, -1}} {
			res, want := playSeckill(t, s, strategy), min(s.Buyers, s.Stock)
			if res.Sold != want || res.Left != s.Stock-want || res.TurnedAway != s.Buyers-want || len(res.Broken) > 0 {
				t.Errorf("%s of %+v: %+v, want exactly the stock sold", strategy, s, res)
			}
		}
	}
}

// Buyers who do not wait give up; nobody is sold what is not there.
func TestBuyersWhoDoNotWait(t *testing.T) {
	t.Parallel()
	s := &Seckill{Buyers: 20, Stock: 20, Processes: 2, NoWait: true, Retries: -1}
	res := playSeckill(t, s, Lock)
	if res.Sold < 1 || res.Sold+res.GaveUp != s.Buyers || len(res.Broken) > 0 {
		t.Errorf("%+v: want some sold, the others gone", res)
	}
	s.Retries = 500
	if res := playSeckill(t, s, Lock); res.Sold != s.Buyers || res.GaveUp > 0 {
		t.Errorf("with retries: %+v, want all sold", res)
	}
	s.NoWait, s.Retries = false, 0
	if res := playSeckill(t, s, Optimistic); res.Sold != 1 || res.GaveUp != s.Buyers-1 || len(res.Broken) > 0 {
		t.Errorf("optimistic without retries: %+v, want one who was first", res)
	}
}

// A buyer who finds the lock busy gives up after as many retries as it makes.
func TestBuyerGivesUpWhileTheLockIsBusy(t *testing.T) {
	t.Parallel()
	d, tries := memory.New(), 0
	locker := func(trace leasehold.Trace) *leasehold.Locker {
		l, err := leasehold.New(d, &leasehold.Options{Trace: trace})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	if _, err := locker(nil).Acquire(t.Context(), "sale"); err != nil {
		t.Fatal(err)
	}
	w := &worker{order: order{Resource: "sale"}, locks: locker(locktest.On(leasehold.StepRefused, func(leasehold.Event) { tries++ }))}
	for s, want := range map[*Seckill]int{{NoWait: true, Retries: -1}: 1, {NoWait: true, Retries: 3}: 4} {
		tries = 0
		if outcome, err := s.buy(t.Context(), w, 0); outcome != gaveUp || err != nil || tries != want {
			t.Errorf("%+v: outcome %d, %v, after %d tries, want it given up after %d", s, outcome, err, tries, want)
		}
	}
}

// The write of a holder that was overtaken must not slip in, even when its successor has
// only read so far.
func TestOvertakenHolderWritesNothing(t *testing.T) {
	ctx := t.Context()
	b, err := createBooks(ctx, "", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer b.drop(ctx)
	if err := b.create(ctx, `CREATE TABLE n (n INTEGER NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	old, present := &ticket{"r", "a", 5}, &ticket{"r", "b", 6}
	read := func(tx *tx) error { return tx.row(`SELECT count(*) FROM n`).Scan(new(int)) }
	write := func(tx *tx) error {
		_, err := tx.write(`INSERT INTO n VALUES (?)`, 1)
		return err
	}
	for _, step := range []struct {
		by   *ticket
		do   func(tx *tx) error
		want error
	}{{old, read, nil}, {present, read, nil}, {old, write, fence.ErrStale}, {present, write, nil}} {
		if err := b.step(ctx, step.by, step.do); !errors.Is(err, step.want) {
			t.Errorf("token %d: %v, want %v", step.by.token, err, step.want)
		}
	}
	if all, err := readNumbers(t, b, `SELECT n FROM n`); len(all) != 1 || err != nil {
		t.Errorf("%v, %v; want one row", all, err)
	}
}

func readNumbers(t *testing.T, b *books, query string) (all []int, err error) {
	return all, b.read(t.Context(), func(tx *tx) (err error) {
		all, err = tx.numbers(query)
		return err
	})
}

func TestEachWrongSaleIsToldSo(t *testing.T) {
	s := &Seckill{Buyers: 10, Stock: 5, Processes: 1}
	right := SeckillResult{Sold: 5, Left: 0, TurnedAway: 5}
	if v := s.judge(&right, 5); len(v.Broken) > 0 {
		t.Errorf("right: %q", v.Broken)
	}
	for name, spoil := range map[string]func(r *SeckillResult, told *int){
		"oversold":            func(r *SeckillResult, told *int) { r.Sold, r.Oversold, r.Left, r.TurnedAway, *told = 6, 1, -1, 4, 6 },
		"left is wrong":       func(r *SeckillResult, _ *int) { r.Left = 1 },
		"told but not sold":   func(r *SeckillResult, told *int) { *told = 6 },
		"no answer":           func(r *SeckillResult, _ *int) { r.TurnedAway = 4 },
		"turned away early":   func(r *SeckillResult, told *int) { r.Sold, r.Left, r.TurnedAway, *told = 4, 1, 6, 4 },
		"given up is counted": func(r *SeckillResult, _ *int) { r.GaveUp = 1 },
	} {
		r, told := right, 5
		spoil(&r, &told)
		if v := s.judge(&r, told); len(v.Broken) == 0 {
			t.Errorf("%s is not noticed", name)
		}
	}
}

func TestEachWrongLongJobIsToldSo(t *testing.T) {
	s := &LongJob{Steps: 12, TTL: time.Second}
	right := LongJobResult{Steps: 12, Changes: 1, StoppedAt: 6}
	if v := s.judge(&right, Lock); len(v.Broken) > 0 {
		t.Errorf("right: %q", v.Broken)
	}
	for name, spoil := range map[string]func(r *LongJobResult){
		"a step is missing":      func(r *LongJobResult) { r.Steps = 11 },
		"a step was done twice":  func(r *LongJobResult) { r.Twice = 1 },
		"both worked":            func(r *LongJobResult) { r.Changes = 2 },
		"the first went on":      func(r *LongJobResult) { r.StoppedAt = 0 },
		"the first stopped late": func(r *LongJobResult) { r.StoppedLate = true },
	} {
		r := right
		spoil(&r)
		if v := s.judge(&r, Lock); len(v.Broken) != 1 {
			t.Errorf("%s: %q", name, v.Broken)
		}
	}
}

func TestWaitsAreThoseOfTheActors(t *testing.T) {
	w := newWaits([]time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond}, 4*time.Millisecond)
	if w.P50 != 2 || w.P99 != 3 || w.Total != 4 {
		t.Errorf("got %+v", w)
	}
}
