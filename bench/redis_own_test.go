package bench

import (
	"fmt"
	"testing"
	"time"
)

// alone is one goroutine with a lock that nobody else wants.
func alone(b *testing.B, addr string) {
	const blocks, cycles = 60, 50
	names := []string{byHand, byHandPiped, ours, bsmLock, redsyncLoc, rueidisLoc}
	lockers := openLockers(b, addr, names...)
	took := make(map[string][]time.Duration)
	medians := make(map[string][]time.Duration) // of each block
	var s section
	for block := range blocks + 1 {
		for _, l := range lockers {
			all, err := cycle(l.lock, "alone", &s, cycles)
			if err != nil {
				b.Fatalf("%s: %v", l.name, err)
			}
			if block == 0 { // opens connections, loads scripts
				l.wire.commands.Store(0)
				continue
			}
			took[l.name] = append(took[l.name], all...)
			medians[l.name] = append(medians[l.name], median(all))
		}
	}
	excluded(b, "alone", &s, int64(len(names)*(blocks+1)*cycles))
	t := newTable("One goroutine, own key", "lock", "p50", "p99", "× bare", "commands/cycle")
	for _, l := range lockers {
		ratio := medianRatio(medians[l.name], medians[byHand])
		commands := float64(l.wire.commands.Load()) / (blocks * cycles)
		t.row(l.name, median(took[l.name]), percentile(took[l.name], 99), ratio, commands)
		if l.name == ours {
			atMost("alone: times the bare two commands", ratio, 1.15)
			atMost("alone: commands a cycle, with the subscription's pings", commands, 2.01)
		}
	}
}

// medianRatio is the median of a/b, block by block.
func medianRatio(a, b []time.Duration) float64 {
	var all []float64
	for i := range a {
		all = append(all, float64(a[i])/float64(b[i]))
	}
	return median(all)
}

// ownKeys is many goroutines, each with a lock that nobody else wants.
func ownKeys(b *testing.B, addr, where string, goroutines int) {
	names := []string{ours, byHand, byHandPiped, bsmLock, redsyncLoc, rueidisLoc}
	lockers := make(map[string]*locker)
	for _, l := range openLockers(b, addr, names...) {
		lockers[l.name] = l
	}
	s := compare(b, names, 3, func(name string, round int) (tally, error) {
		sections := make([]section, goroutines)
		crowd := &crowd{
			lock: lockers[name], goroutines: goroutines, lasts: 700 * time.Millisecond,
			name:    func(g int) string { return fmt.Sprintf("own/%d/%d/%d", goroutines, round, g) },
			section: func(g int) *section { return &sections[g] },
		}
		before := serverCPU(b, addr)
		got, err := crowd.run()
		got.Server = serverCPU(b, addr) - before
		for g, n := range got.Each {
			excluded(b, name, &sections[g], n)
		}
		return got, err
	})
	title := fmt.Sprintf("%d goroutines, own keys%s", goroutines, where)
	t := newTable(title, "lock", "cycles/s", "× bsm/redislock", "commands/cycle", "Redis CPU/cycle", "longest wait", "starved")
	for _, name := range names {
		got := s.typical(name)
		t.row(name, got.rate(), s.ratio(name, bsmLock), got.commands(), got.Server/time.Duration(max(1, got.sections())), got.Longest, got.starved())
	}
	wanted := 2.5
	switch {
	case where != "":
		wanted = 10
	case goroutines == 512:
		wanted = 3.5
	}
	atLeast(title+": times bsm/redislock", s.ratio(ours, bsmLock), wanted)
}
