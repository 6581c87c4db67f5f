package bench

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/e2e/servers"
)

// BenchmarkRedis compares Leasehold on Redis with other locks, on servers that it starts
// itself. Each part runs once, with the locks in turns; the table is printed at the end,
// and is what counts: the times per operation that go test prints mean nothing here.
func BenchmarkRedis(b *testing.B) {
	redis.SetLogger(quiet{}) // a dead node is meant to be
	five := startFive(b)
	addr := servers.StartRedis(b).Addr()
	for _, part := range []struct {
		name string
		run  func(b *testing.B)
	}{
		{"Alone", func(b *testing.B) { alone(b, addr) }},
		{"Own64", func(b *testing.B) { ownKeys(b, addr, "", 64) }},
		{"Own512", func(b *testing.B) { ownKeys(b, addr, "", 512) }},
		{"Distant512", func(b *testing.B) { ownKeys(b, distant(b, addr), ", 0.5 ms further away", 512) }},
		{"OneProcess", func(b *testing.B) { oneProcess(b, addr) }},
		{"Processes", func(b *testing.B) { processes(b, addr) }},
		{"Gap", func(b *testing.B) { gap(b, addr) }},
		{"Seckill", func(b *testing.B) { seckill(b, addr) }},
		{"Held", func(b *testing.B) { holding(b, addr) }},
		{"Redlock", func(b *testing.B) { redlock(b, five) }},
	} {
		done := false
		b.Run(part.name, func(b *testing.B) {
			if !done { // else it was over within a second and go test wants more of it
				done = true
				part.run(b)
			}
		})
	}
}

// quiet is go-redis' logger.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// openLockers opens all the lockers with these names.
func openLockers(tb testing.TB, addr string, names ...string) []*locker {
	tb.Helper()
	var all []*locker
	for _, name := range names {
		l := newLocker(tb, name, addr)
		tb.Cleanup(l.close)
		all = append(all, l)
	}
	return all
}

// A series is the tallies of each locker, by round.
type series map[string][]tally

// compare has each locker run once a round.
func compare(tb testing.TB, names []string, rounds int, run func(name string, round int) (tally, error)) series {
	tb.Helper()
	s := make(series)
	for round := range rounds {
		for _, name := range names {
			t, err := run(name, round)
			if err != nil {
				tb.Errorf("round %d: %v", round, err)
			}
			s[name] = append(s[name], t)
		}
	}
	return s
}

// typical is the tally of the round with the median rate.
func (s series) typical(name string) *tally {
	var rates []float64
	for _, t := range s[name] {
		rates = append(rates, t.rate())
	}
	want := median(rates)
	for i, r := range rates {
		if r == want {
			return &s[name][i]
		}
	}
	return &tally{}
}

// ratio is the median over the rounds of how many times faster name was than other.
func (s series) ratio(name, other string) float64 {
	var all []float64
	for i, t := range s[name] {
		all = append(all, t.rate()/s[other][i].rate())
	}
	return median(all)
}

// best is the fastest of names.
func (s series) best(names ...string) string {
	best := names[0]
	for _, name := range names {
		if s.typical(name).rate() > s.typical(best).rate() {
			best = name
		}
	}
	return best
}

// contended prints what a scenario with one lock has brought.
func (s series) contended(title string, names []string, workers int) {
	t := newTable(title, "lock", "sections/s", "× ours", "commands/section", "turns/s", "longest wait", "starved", "slowest/mean")
	for _, name := range names {
		got := s.typical(name)
		t.row(name, got.rate(), s.ratio(name, names[0]), got.commands(), float64(got.Turns)/got.Took.Seconds(),
			got.Longest, got.starved(), got.slowest(workers))
	}
}
