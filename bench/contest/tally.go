package contest

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// uncounted is the number of commands where nobody counted them.
const uncounted = -1

// A Tally is what came of a run.
type Tally struct {
	Each         []int64 // sections of each goroutine
	Turns        int64   // how often the holder was another goroutine than before
	ProcessTurns int64   // how often it was one of another process
	Waits        Waits
	Longest      time.Duration // wait
	Commands     int64         // less than 0: not counted
	Took         time.Duration
	Server       time.Duration // CPU time of the server; less than 0: not measured
	Mallocs      uint64        // of this process, where locks of its own were measured
}

// Sections is how many there were.
func (t *Tally) Sections() (n int64) {
	for _, s := range t.Each {
		n += s
	}
	return n
}

// Rate is the sections a second.
func (t *Tally) Rate() float64 { return t.ASecond(t.Sections()) }

// ASecond is how many a second n are.
func (t *Tally) ASecond(n int64) float64 { return float64(n) / t.Took.Seconds() }

// CommandsEach is the commands for each section; NaN: not counted.
func (t *Tally) CommandsEach() float64 {
	if t.Commands < 0 {
		return math.NaN()
	}
	return float64(t.Commands) / float64(max(1, t.Sections()))
}

// MallocsEach is the allocations for each section, those of the section among them.
func (t *Tally) MallocsEach() float64 { return float64(t.Mallocs) / float64(max(1, t.Sections())) }

// ServerEach is the server's time for each section.
func (t *Tally) ServerEach() time.Duration {
	if t.Server < 0 {
		return t.Server
	}
	return t.Server / time.Duration(max(1, t.Sections()))
}

// Starved counts those with less than a tenth of the mean, or nothing.
func (t *Tally) Starved() (n int) {
	for _, s := range t.Each {
		if s == 0 || s*int64(len(t.Each))*10 < t.Sections() {
			n++
		}
	}
	return n
}

// Slowest is the least share among groups of so many goroutines, with 1 for the mean.
func (t *Tally) Slowest(group int) float64 {
	least := t.Sections()
	for each := range slices.Chunk(t.Each, group) {
		least = min(least, (&Tally{Each: each}).Sections())
	}
	return float64(least) * float64(len(t.Each)/group) / float64(max(1, t.Sections()))
}

// Fair99 is the 99th percentile of the waits, with 1 for the time in which everybody has
// one turn.
func (t *Tally) Fair99() float64 {
	fair := t.Took.Seconds() / float64(max(1, t.Sections())) * float64(len(t.Each))
	return t.Waits.percentile(99).Seconds() / fair
}

// add is for what another process has tallied at the same time.
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

// Waits counts waits by their length, to an eighth of it.
type Waits [61 * 8]int64

func (w *Waits) count(d time.Duration) {
	n := uint64(max(8, d))
	exponent := bits.Len64(n) - 4 // the first digit, and three more
	w[min(len(w)-1, exponent*8+int(n>>exponent)&7)]++
}

func (w *Waits) add(other *Waits) {
	for i, n := range other {
		w[i] += n
	}
}

// percentile is the shortest wait of the group that it falls in.
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
