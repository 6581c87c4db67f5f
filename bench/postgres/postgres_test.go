// Package postgres_test compares Leasehold on PostgreSQL with advisory locks, and with what
// one would write by hand. Advisory locks write nothing to the disk, and have no TTL and no
// fence; each takes a connection, and none works through a pool in transaction mode.
package postgres_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/e2e/servers"
)

func TestMain(m *testing.M) { engine.Main(m) }

// BenchmarkPostgres measures on a server that it starts itself, with its own defaults.
func BenchmarkPostgres(b *testing.B) {
	url := servers.StartPostgres(b, "max_connections=500").URL()
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) { alone(b, url) }},
		contest.Part{Name: "Own64", Run: func(b *testing.B) { ownKeys(b, url) }},
		contest.Part{Name: "OneProcess", Run: func(b *testing.B) { oneProcess(b, url) }},
		contest.Part{Name: "Processes", Run: func(b *testing.B) { processes(b, url) }},
		contest.Part{Name: "Gap", Run: func(b *testing.B) { gap(b, url) }},
		contest.Part{Name: "Held", Run: func(b *testing.B) { holding(b, url) }},
	)
}

func alone(b *testing.B, url string) {
	s := engine.Alone(b, url, byHand, byHand, ours, advisory)
	contest.AtMost("alone: times the two statements", s.Ratio(ours, byHand), 1.2)
	contest.AtMost("alone: statements a cycle", s.Commands(ours), 2)
}

func ownKeys(b *testing.B, url string) {
	s := engine.OwnKeys(b, url, ", 16 connections", 64, byHand, ours, byHand, advisory16, oursLong, advisory16s)
	contest.AtLeast(s.Title+": times the two statements", s.Ratio(ours, byHand), 0.8)
	contest.AtLeast(s.Title+": times pg_advisory_lock", s.Ratio(ours, advisory16), 2)
	contest.AtLeast(s.Title+", sections of 20 ms: times pg_advisory_lock", s.Ratio(oursLong, advisory16s), 2)
}

func oneProcess(b *testing.B, url string) {
	s := engine.OneProcess(b, url, ours, oursGlobal, advisory)
	contest.AtLeast("one process: times pg_advisory_lock", s.Ratio(ours, advisory), 20)
}

func processes(b *testing.B, url string) {
	s := engine.Processes(b, url, ours, oursGlobal, oursPolling, advisory)
	contest.AtLeast("8 processes: times pg_advisory_lock", s.Ratio(ours, advisory), 1)
	contest.AtLeast("8 processes: slowest process / mean", s.Typical(ours).Slowest(contest.Workers), 0.5)
}

func gap(b *testing.B, url string) {
	g := engine.Gap(b, url, ours, oursPolling, advisory)
	contest.AtMost("gap: p50 / pg_advisory_lock's", g.Percentile(ours, 50)/g.Percentile(advisory, 50), 3)
	contest.AtMost("gap without LISTEN: p50 in ms", g.Percentile(oursPolling, 50)*1000, 10)
}

func holding(b *testing.B, url string) {
	h := engine.Holding(b, url, 10000, 30*time.Second, advisory, ours, advisory)
	contest.AtMost("10,000 leases: statements a second", h[ours].CommandsASecond(), 20)
	contest.AtMost("10,000 leases: KiB a lease", h[ours].KiB(), 2)
}
