package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A section is what a lock protects. Nothing else does: holders that overlap lose
// updates of the counter. It may lie in memory that processes share.
type section struct {
	counter, holder, turns atomic.Int64
}

// pass is one holder's work.
func (s *section) pass(holder int64) {
	n := s.counter.Load()
	if s.holder.Load() != holder {
		s.holder.Store(holder)
		s.turns.Store(s.turns.Load() + 1)
	}
	runtime.Gosched()
	s.counter.Store(n + 1)
}

// shareSection maps the section in the file at path, which it creates if it is missing.
func shareSection(tb testing.TB, path string) *section {
	tb.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	size := int(unsafe.Sizeof(section{}))
	if err := file.Truncate(int64(size)); err != nil {
		tb.Fatal(err)
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = syscall.Munmap(memory) }) // the process ends soon after
	return (*section)(unsafe.Pointer(&memory[0]))
}

// A tally is what came of a run.
type tally struct {
	Each     []int64 // sections of each goroutine
	Turns    int64   // how often the holder was another than before
	Longest  time.Duration
	Commands int64
	Took     time.Duration
	Server   time.Duration // CPU time of Redis, where it was measured
}

func (t *tally) sections() (n int64) {
	for _, s := range t.Each {
		n += s
	}
	return n
}

func (t *tally) rate() float64 { return float64(t.sections()) / t.Took.Seconds() }

func (t *tally) commands() float64 { return float64(t.Commands) / float64(max(1, t.sections())) }

// starved counts those with less than a tenth of the mean, or nothing.
func (t *tally) starved() (n int) {
	for _, s := range t.Each {
		if s == 0 || s*int64(len(t.Each))*10 < t.sections() {
			n++
		}
	}
	return n
}

// slowest is the least share among groups of so many goroutines, with 1 for the mean.
func (t *tally) slowest(group int) float64 {
	least := t.sections()
	for each := range slices.Chunk(t.Each, group) {
		least = min(least, (&tally{Each: each}).sections())
	}
	return float64(least) * float64(len(t.Each)/group) / float64(max(1, t.sections()))
}

// A crowd is goroutines that want locks all the time.
type crowd struct {
	lock       *locker
	goroutines int
	first      int // number of the first goroutine among all processes
	name       func(goroutine int) string
	section    func(goroutine int) *section
	lasts      time.Duration
}

// run lets the crowd loose. An error is a lock that was lost or failed.
func (c *crowd) run() (tally, error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	t := tally{Each: make([]int64, c.goroutines), Commands: -c.lock.wire.commands.Load()}
	longest := make([]time.Duration, c.goroutines)
	errs := make([]error, c.goroutines)
	start := time.Now()
	timer := time.AfterFunc(c.lasts, stop)
	defer timer.Stop()
	var wg sync.WaitGroup
	for g := range c.goroutines {
		wg.Go(func() { t.Each[g], longest[g], errs[g] = c.work(ctx, g) })
	}
	wg.Wait()
	t.Took = time.Since(start)
	t.Longest = slices.Max(longest)
	t.Commands += c.lock.wire.commands.Load()
	for _, err := range errs {
		if err != nil {
			return t, fmt.Errorf("%s: %w", c.lock.name, err)
		}
	}
	return t, nil
}

// work is one goroutine. A wait that the end cuts off counts as long as it was.
func (c *crowd) work(ctx context.Context, g int) (sections int64, longest time.Duration, err error) {
	name, section := c.name(g), c.section(g)
	for ctx.Err() == nil {
		start := time.Now()
		lock, err := c.lock.lock(ctx, name)
		longest = max(longest, time.Since(start))
		if err != nil && ctx.Err() != nil {
			break
		}
		if err != nil {
			return sections, longest, err
		}
		section.pass(int64(c.first + g + 1))
		sections++
		if err := lock.unlock(); err != nil {
			return sections, longest, fmt.Errorf("unlock: %w", err)
		}
	}
	return sections, longest, nil
}

// oneSection is a crowd of which all want the lock called name.
func oneSection(l *locker, name string, s *section, goroutines int, lasts time.Duration) *crowd {
	return &crowd{
		lock: l, goroutines: goroutines, lasts: lasts,
		name:    func(int) string { return name },
		section: func(int) *section { return s },
	}
}

func excluded(tb testing.TB, lock string, s *section, sections int64) {
	tb.Helper()
	if n := s.counter.Load(); n != sections {
		tb.Errorf("%s: %d sections were counted and %d held: holders overlapped", lock, n, sections)
	}
}

func TestSectionTellsBrokenLock(t *testing.T) {
	broken := &locker{name: "none", wire: &wire{}, lock: func(context.Context, string) (held, error) {
		return held{unlock: func() error { return nil }}, nil
	}}
	s := shareSection(t, filepath.Join(t.TempDir(), "section"))
	got, err := oneSection(broken, "one", s, 16, 100*time.Millisecond).run()
	if err != nil {
		t.Fatal(err)
	}
	if s.counter.Load() == got.sections() {
		t.Errorf("%d sections without a lock, and no update was lost", got.sections())
	}
}

func TestTallyTellsStarved(t *testing.T) {
	got := tally{Each: []int64{100, 100, 3, 97}}
	if n := got.starved(); n != 1 {
		t.Errorf("%d starved, want 1", n)
	}
	if n := (&tally{Each: []int64{0, 0}}).starved(); n != 2 {
		t.Errorf("%d of two without a section starved", n)
	}
	if share := got.slowest(2); share != 100.0*2/300 {
		t.Errorf("the slowest pair has %v of the mean, want 2/3", share)
	}
}
