// Package sqlite_test compares Leasehold on SQLite with what one would write by hand.
package sqlite_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/bench/contest"
)

// polling is the slowest of sqllock's paces.
const polling = 20 * time.Millisecond

func TestMain(m *testing.M) { engine.Main(m) }

// BenchmarkSQLite measures in processes that share one file.
func BenchmarkSQLite(b *testing.B) {
	path := filepath.Join(b.TempDir(), "locks.db")
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) { alone(b, path) }},
		contest.Part{Name: "OneProcess", Run: func(b *testing.B) { engine.OneProcess(b, path, ours, oursGlobal) }},
		contest.Part{Name: "Processes", Run: func(b *testing.B) { processes(b, path) }},
		contest.Part{Name: "Gap", Run: func(b *testing.B) { gap(b, path) }},
	)
}

func alone(b *testing.B, path string) {
	s := engine.Alone(b, path, byHand, byHand, ourDriver, ours)
	contest.AtMost("alone, driver: times the two statements", s.Ratio(ourDriver, byHand), 3)
	contest.AtMost("alone: times the two statements", s.Ratio(ours, byHand), 3)
}

func processes(b *testing.B, path string) {
	s := engine.Processes(b, path, ours, oursGlobal)
	contest.AtMost("8 processes, HandOver -1: 99th percentile of waits / fair share", s.Typical(oursGlobal).Fair99(), 3)
}

func gap(b *testing.B, path string) {
	g := engine.Gap(b, path, ours)
	contest.AtMost("gap: p50 in ms", g.Percentile(ours, 50)*1000, 10)
}
