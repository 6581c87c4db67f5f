package contest

import (
	"cmp"
	"slices"
	"testing"
)

// A Series holds the tallies of each lock, by round.
type Series struct {
	Title   string
	tallies map[string][]Tally
}

// Compare runs each lock once per round. In each round another lock is first, because a server may
// still be warming up.
func Compare(tb testing.TB, title string, names []string, rounds int, run func(name string, round int) (Tally, error)) *Series {
	tb.Helper()
	if testing.Short() {
		rounds = 1
	}
	s := &Series{title, make(map[string][]Tally)}
	for round := range rounds {
		for i := range names {
			name := names[(i+round)%len(names)]
			t, err := run(name, round)
			if err != nil {
				tb.Errorf("%s, round %d: %s: %v", title, round, name, err)
			}
			s.tallies[name] = append(s.tallies[name], t)
		}
	}
	return s
}

// Typical returns the tally of the round with the median rate.
func (s *Series) Typical(name string) *Tally {
	var rates []float64
	for _, t := range s.tallies[name] {
		rates = append(rates, t.Rate())
	}
	if len(rates) == 0 {
		return &Tally{}
	}
	return &s.tallies[name][max(0, slices.Index(rates, Median(rates)))]
}

// Ratio returns the median over the rounds of the rate of name divided by the one of other.
func (s *Series) Ratio(name, other string) float64 {
	var all []float64
	for i, t := range s.tallies[name] {
		all = append(all, t.Rate()/s.tallies[other][i].Rate())
	}
	return Median(all)
}

// Best returns the fastest of names.
func (s *Series) Best(names ...string) string {
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(s.Typical(a).Rate(), s.Typical(b).Rate()) })
}

// contended prints the results of a scenario with one lock. group is the number of goroutines that
// contend as one: 1, or all of a process.
func (s *Series) contended(names []string, group int) {
	columns := []string{"lock", "sections/s", "× ours", "commands/section", "turns/s", "longest wait", "starved", "slowest/mean"}
	if group > 1 {
		columns = append(columns, "turns between processes/s")
	}
	t := NewTable(s.Title, columns...)
	for _, name := range names {
		got := s.Typical(name)
		row := []any{name, got.Rate(), s.Ratio(name, names[0]), got.CommandsEach(), got.ASecond(got.Turns),
			got.Longest, got.Starved(), got.Slowest(group), got.ASecond(got.ProcessTurns)}
		t.Row(row[:len(columns)]...)
	}
}
