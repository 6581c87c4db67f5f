package contest

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"
)

// A Solo holds the results of one goroutine with its own lock.
type Solo struct {
	blocks   map[string][]time.Duration // median of each block
	commands map[string]float64
}

// Ratio returns the median over the blocks of the time of name divided by the one of other.
func (s *Solo) Ratio(name, other string) float64 {
	var all []float64
	for i, d := range s.blocks[name] {
		all = append(all, ratio(d, s.blocks[other][i]))
	}
	return Median(all)
}

// Commands returns the commands per cycle; NaN: not counted.
func (s *Solo) Commands(name string) float64 { return s.commands[name] }

// Alone measures one goroutine with a lock that nobody else wants. The others are compared with
// bare.
func (e *Engine) Alone(b *testing.B, addr, bare string, names ...string) *Solo {
	const cycles = 50
	blocks := 60
	if testing.Short() {
		blocks = 10
	}
	lockers := e.openAll(b, addr, names)
	took, before := make(map[string][]time.Duration), make(map[string]int64)
	solo := &Solo{make(map[string][]time.Duration), make(map[string]float64)}
	var s Section
	sections := 0
	hung := make(map[string]bool) // a lock that hung is left out from then on
	for block := range blocks + 1 {
		for _, name := range names {
			if hung[name] {
				continue
			}
			l := lockers[name]
			all, err := Cycle(l.Lock, "alone", &s, cycles)
			sections += len(all)
			if hung[name] = errors.Is(err, errHung); hung[name] {
				continue
			}
			if err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			if block == 0 { // this opens connections and loads scripts
				before[name] = l.commands()
				continue
			}
			took[name] = append(took[name], all...)
			solo.blocks[name] = append(solo.blocks[name], Median(all))
		}
	}
	if err := s.excluded(int64(sections)); err != nil {
		b.Error(err)
	}
	t := e.table("One goroutine, own key", "lock", "p50", "p99", "× bare", "commands/cycle")
	for _, name := range names {
		solo.commands[name] = math.NaN()
		if hung[name] {
			t.Row(name, errHung)
			continue
		}
		if before[name] >= 0 {
			solo.commands[name] = float64(lockers[name].commands()-before[name]) / float64(blocks*cycles)
		}
		t.Row(name, Median(took[name]), Percentile(took[name], 99), solo.Ratio(name, bare), solo.commands[name])
	}
	return solo
}

// ownRounds is the number of rounds per lock. Rounds are short, and their rates differ by a fifth.
const ownRounds = 9

// OwnKeys measures many goroutines of one process, each with a lock that nobody else wants. where
// is added to the title. The others are compared with than.
func (e *Engine) OwnKeys(b *testing.B, addr, where string, goroutines int, than string, names ...string) *Series {
	lockers := e.openAll(b, addr, names)
	title := e.title(fmt.Sprintf("%d goroutines, own keys%s", goroutines, where))
	s := Compare(b, title, names, ownRounds, func(name string, round int) (Tally, error) {
		sections := make([]Section, goroutines)
		crowd := &crowd{
			locker: lockers[name], goroutines: goroutines, lasts: 700 * time.Millisecond,
			name:    func(g int) string { return fmt.Sprintf("own/%d/%d/%d", goroutines, round, g) },
			section: func(g int) *Section { return &sections[g] },
		}
		var start, end runtime.MemStats
		runtime.ReadMemStats(&start)
		before := e.cpu()
		got, err := crowd.run()
		got.Server = e.cpuSince(before)
		runtime.ReadMemStats(&end)
		got.Mallocs = end.Mallocs - start.Mallocs
		for g, n := range got.Each {
			err = errors.Join(err, sections[g].excluded(n))
		}
		return got, err
	})
	t := NewTable(title, "lock", "cycles/s", "× "+than, "commands/cycle", e.Name+" CPU/cycle", "allocations/cycle", "longest wait", "starved")
	for _, name := range names {
		got := s.Typical(name)
		t.Row(name, got.Rate(), s.Ratio(name, than), got.CommandsEach(), got.ServerEach(), got.MallocsEach(), got.Longest, got.Starved())
	}
	return s
}
