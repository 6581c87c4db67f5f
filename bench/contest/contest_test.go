package contest

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The locks of this test are files, and one that does not lock.
const (
	files = "flock"
	none  = "none"
)

var engine = Engine{Name: "files", Competitors: []Competitor{
	{Name: files, Open: func(dir string) (*Locker, error) { return &Locker{Lock: fileLock(dir)}, nil }, Leases: 20},
	{Name: none, Open: func(string) (*Locker, error) { return &Locker{Lock: noLock}, nil }},
}}

func TestMain(m *testing.M) { engine.Main(m) }

// fileLock asks every millisecond.
func fileLock(dir string) LockFunc {
	return func(ctx context.Context, name string) (Held, error) {
		file, err := os.OpenFile(filepath.Join(dir, strings.ReplaceAll(name, "/", "_")), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return Held{}, err
		}
		for err = errors.New("not yet"); err != nil; time.Sleep(time.Millisecond) {
			if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
				break
			}
			if ctx.Err() != nil {
				return Held{}, errors.Join(ctx.Err(), file.Close())
			}
		}
		return Held{Unlock: file.Close}, nil
	}
}

func noLock(context.Context, string) (Held, error) {
	return Held{Unlock: func() error { return nil }}, nil
}

func TestSectionTellsBrokenLock(t *testing.T) {
	got, err := Contend(&Locker{Lock: noLock}, "one", 16, 100*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "overlapped") {
		t.Errorf("%d sections without a lock, and no update was lost: %v", got.Sections(), err)
	}
}

func TestSectionCountsTurns(t *testing.T) {
	var s Section
	for _, who := range []struct{ process, goroutine int }{
		{0, 0}, {0, 0}, // it is the first, and has two sections in one turn
		{0, 1}, {0, 0}, // between goroutines
		{2, 0}, {2, 0}, // between processes, of the same goroutine
		{2, 3}, {0, 3},
	} {
		s.pass(holderOf(who.process, who.goroutine))
	}
	if turns, between := s.turns.Load(), s.processTurns.Load(); turns != 6 || between != 3 {
		t.Errorf("%d turns, %d of them between processes; want 6 and 3", turns, between)
	}
	if err := s.excluded(8); err != nil {
		t.Error(err)
	}
}

func TestProcessesTellBrokenLock(t *testing.T) {
	o := order{Addr: t.TempDir(), Name: "one", Workers: 2, Lasts: 500 * time.Millisecond}
	for _, lock := range []string{files, none} {
		o.Lock, o.Path = lock, filepath.Join(t.TempDir(), "section")
		got, err := contendInProcesses(t, o, 3)
		if lock == none {
			if err == nil || !strings.Contains(err.Error(), "overlapped") {
				t.Errorf("%d sections without a lock, and no update was lost: %v", got.Sections(), err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
		}
		if len(got.Each) != 6 || got.Sections() == 0 || got.ProcessTurns == 0 || got.Turns < got.ProcessTurns || got.Longest == 0 || got.Commands >= 0 {
			t.Errorf("the tally of three processes with two goroutines each is %+v", got)
		}
	}
}

func TestGapStartsAtTheRelease(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "section")
	s, unmap, err := shareSection(path)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap()
	r := rivalry{locker: &Locker{Lock: fileLock(dir)}, lock: "gap", section: s}
	r.waiter = startChild(t, waitPart, order{Addr: dir, Lock: files, Name: "gap", Path: path})
	got, err := r.measure(5)
	if err != nil {
		t.Error(err)
	}
	for _, gap := range got {
		if gap < 0 {
			t.Errorf("the waiter returned %v before the release", -gap)
		}
	}
}

func TestHoldingCountsWhatLeasesTake(t *testing.T) {
	o := order{Addr: t.TempDir(), Lock: files, Name: "held", Leases: 50, Lasts: 100 * time.Millisecond}
	c := startChild(t, holdPart, o)
	var ok bool
	c.hear(&ok)
	c.tell("go")
	c.hear(&ok)
	var u Upkeep
	c.hear(&u)
	if u.Leases != 50 || u.Lost != 0 || u.Lasted != o.Lasts || !math.IsNaN(u.CommandsASecond()) {
		t.Errorf("the upkeep of 50 leases is %+v", u)
	}
}

func TestLocalExcludesInOneProcess(t *testing.T) {
	if _, err := Contend(&Locker{Lock: Local(noLock)}, "one", 16, 100*time.Millisecond); err != nil {
		t.Error(err)
	}
	lock := Local(noLock)
	held, err := lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := lock(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a waiter whose context has ended got %v", err)
	}
	if _, err := lock(t.Context(), "b"); err != nil {
		t.Errorf("another name: %v", err)
	}
	if err := held.Unlock(); err != nil {
		t.Error(err)
	}
	if _, err := lock(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

func TestSeckillTellsBrokenLock(t *testing.T) {
	var stock atomic.Int64
	shop := Shop{
		Stock: func(context.Context) (int, error) {
			n := stock.Load()
			time.Sleep(time.Microsecond)
			return int(n), nil
		},
		SetStock: func(_ context.Context, n int) error { stock.Store(int64(n)); return nil },
	}
	if _, _, err := shop.sell(Local(noLock), "one"); err != nil {
		t.Error(err)
	}
	if _, _, err := shop.sell(noLock, "one"); err == nil {
		t.Error("without a lock the right number of pieces was sold")
	}
}

func TestTallyTellsStarved(t *testing.T) {
	got := Tally{Each: []int64{100, 100, 3, 97}}
	if n := got.Starved(); n != 1 {
		t.Errorf("%d starved, want 1", n)
	}
	if n := (&Tally{Each: []int64{0, 0}}).Starved(); n != 2 {
		t.Errorf("%d of two without a section starved", n)
	}
	if share := got.Slowest(2); share != 100.0*2/300 {
		t.Errorf("the slowest pair has %v of the mean, want 2/3", share)
	}
}

func TestWaitsKeepTheirLength(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 8, 15, 16, 17, 1000, time.Millisecond, time.Second, time.Hour, math.MaxInt64} {
		var w Waits
		w.count(d)
		if got := w.percentile(99); got > max(d, 8) || got < d-d/8 {
			t.Errorf("a wait of %v is remembered as %v", d, got)
		}
	}
	var w Waits
	for i := range 100 {
		w.count(time.Duration(i) * time.Millisecond)
	}
	if got := w.percentile(50); got < 43*time.Millisecond || got > 50*time.Millisecond {
		t.Errorf("the median of 0 to 99 ms is %v", got)
	}
}

func TestTallyAddsProcesses(t *testing.T) {
	var all Tally
	for range 4 {
		one := Tally{Each: []int64{25}, Took: time.Second, Commands: 50}
		for range 25 {
			one.Waits.count(20 * time.Millisecond)
		}
		all.add(one)
	}
	if all.Rate() != 100 || all.CommandsEach() != 2 {
		t.Errorf("%v sections/s with %v commands each, want 100 and 2", all.Rate(), all.CommandsEach())
	}
	// Four take turns of 10 ms: the fair share is 40 ms.
	if fair := all.Fair99(); fair < 0.43 || fair > 0.5 {
		t.Errorf("waits of 20 ms are %v of the fair share, want a half", fair)
	}
	all.add(Tally{Commands: uncounted})
	if !math.IsNaN(all.CommandsEach()) {
		t.Error("the commands of a process that does not count them are counted")
	}
}

func TestReportSaysWhatIsMissed(t *testing.T) {
	var b book
	table := &Table{title: "One", rows: [][]string{{"lock", "rate"}}}
	table.Row("a", 1234.5, math.NaN(), time.Duration(-1), 1500*time.Microsecond)
	b.tables, b.goals = []*Table{table}, []goal{{"fast", 2, false, 1}, {"cheap", 2, true, 1}}
	var text strings.Builder
	b.print(&text, "Files")
	for _, want := range []string{"== Files ==", "a", "1234", "–  –  1.50 ms", "at least 1  met", "at most 1   MISSED"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, &text)
		}
	}
}

func TestTitlesSayWhere(t *testing.T) {
	for where, want := range map[string]string{"": "Alone", "three servers": "Alone, three servers"} {
		if got := (&Engine{Where: where}).title("Alone"); got != want {
			t.Errorf("the title of what is measured at %q is %q", where, got)
		}
	}
}

// A lock that hangs is told from one that fails.
func TestHangIsTold(t *testing.T) {
	ctx, end := patiently()
	end()
	if context.Cause(ctx) != context.Canceled {
		t.Errorf("%v", context.Cause(ctx))
	}
	var s Section
	hangs := func(context.Context, string) (Held, error) { return Held{}, errHung }
	if all, err := Cycle(hangs, "one", &s, 3); len(all) > 0 || !errors.Is(err, errHung) {
		t.Errorf("%d cycles, %v", len(all), err)
	}
}
