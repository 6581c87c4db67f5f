package contest

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// uncounted is the number of commands if they were not counted.
const uncounted = -1

// A Tally is the result of a run.
type Tally struct {
	Each         []int64 // sections per goroutine
	Turns        int64   // how often the holder was another goroutine than the previous one
	ProcessTurns int64   // how often it was in another process
	Waits        Waits
	Longest      time.Duration // longest wait
	Commands     int64         // negative: not counted
	Took         time.Duration
	Server       time.Duration // CPU time of the server; negative: not measured
	Mallocs      uint64        // allocations of this process, if each goroutine had its own lock
}

// Sections returns the number of sections.
func (t *Tally) Sections() (n int64) {
	for _, s := range t.Each {
		n += s
	}
	return n
}

// Rate returns the sections per second.
func (t *Tally) Rate() float64 { return t.ASecond(t.Sections()) }

// ASecond returns n per second.
func (t *Tally) ASecond(n int64) float64 { return float64(n) / t.Took.Seconds() }

// CommandsEach returns the commands per section; NaN: not counted.
func (t *Tally) CommandsEach() float64 {
	if t.Commands < 0 {
		return math.NaN()
	}
	return float64(t.Commands) / float64(max(1, t.Sections()))
}

// MallocsEach returns the allocations per section. The section's own count too.
func (t *Tally) MallocsEach() float64 { return float64(t.Mallocs) / float64(max(1, t.Sections())) }

// ServerEach returns the server's CPU time per section.
func (t *Tally) ServerEach() time.Duration {
	if t.Server < 0 {
		return t.Server
	}
	return t.Server / time.Duration(max(1, t.Sections()))
}

// Starved counts goroutines with less than a tenth of the mean, or nothing.
func (t *Tally) Starved() (n int) {
	for _, s := range t.Each {
		if s == 0 || s*int64(len(t.Each))*10 < t.Sections() {
			n++
		}
	}
	return n
}

// Slowest returns the smallest share of any group of goroutines, relative to the mean.
func (t *Tally) Slowest(group int) float64 {
	least := t.Sections()
	for each := range slices.Chunk(t.Each, group) {
		least = min(least, (&Tally{Each: each}).Sections())
	}
	return float64(least) * float64(len(t.Each)/group) / float64(max(1, t.Sections()))
}

// Fair99 returns the 99th percentile of the waits, relative to the time in which every goroutine
// could have one turn.
func (t *Tally) Fair99() float64 {
	fair := t.Took.Seconds() / float64(max(1, t.Sections())) * float64(len(t.Each))
	return t.Waits.percentile(99).Seconds() / fair
}

// add adds the tally of another process that ran at the same time.
func (t *Tally) add(other Tally) {
	t.Each = append(t.Each, other.Each...)
	t.Longest, t.Took = max(t.Longest, other.Longest), max(t.Took, other.Took)
	t.Waits.add(&other.Waits)
	if other.Commands < 0 {
		t.Commands = uncounted
	} else if t.Commands >= 0 {
		t.Commands += other.Commands
	}
}

// Waits is a histogram of waits, with a resolution of an eighth.
type Waits [61 * 8]int64

func (w *Waits) count(d time.Duration) {
	n := uint64(max(8, d))
	exponent := bits.Len64(n) - 4 // the four leading bits of n remain
	w[min(len(w)-1, exponent*8+int(n>>exponent)&7)]++
}

func (w *Waits) add(other *Waits) {
	for i, n := range other {
		w[i] += n
	}
}

// percentile returns the shortest wait of the bucket of the p-th percentile.
func (w *Waits) percentile(p int64) time.Duration {
	var all, seen int64
	for _, n := range w {
		all += n
	}
	for i, n := range w {
		seen += n
		if n > 0 && seen*100 >= all*p {
			return time.Duration(8+i%8) << (i / 8)
		}
	}
	return 0
}
