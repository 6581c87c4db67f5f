// Package mysql_test compares Leasehold on MariaDB with GET_LOCK, and with what one would
// write by hand. GET_LOCK writes nothing to the disk, and has no TTL and no fence; each
// lock takes a connection.
package mysql_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/e2e/servers"
)

func TestMain(m *testing.M) { engine.Main(m) }

// BenchmarkMySQL measures on a MariaDB that it starts itself, with its own defaults.
func BenchmarkMySQL(b *testing.B) {
	dsn := servers.StartMariaDB(b, "--max-connections=500").DSN()
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) { alone(b, dsn) }},
		contest.Part{Name: "Own64", Run: func(b *testing.B) { ownKeys(b, dsn) }},
		contest.Part{Name: "OneProcess", Run: func(b *testing.B) { oneProcess(b, dsn) }},
		contest.Part{Name: "Processes", Run: func(b *testing.B) { processes(b, dsn) }},
		contest.Part{Name: "Gap", Run: func(b *testing.B) { gap(b, dsn) }},
		contest.Part{Name: "Held", Run: func(b *testing.B) { holding(b, dsn) }},
	)
}

func alone(b *testing.B, dsn string) {
	s := engine.Alone(b, dsn, byHand, byHand, ours, getLock)
	contest.AtMost("alone: times the two statements", s.Ratio(ours, byHand), 1.2)
	contest.AtMost("alone: statements a cycle", s.Commands(ours), 2)
}

func ownKeys(b *testing.B, dsn string) {
	s := engine.OwnKeys(b, dsn, ", 16 connections", 64, byHand, ours, byHand, getLock16, oursLong, getLock16s)
	contest.AtLeast(s.Title+": times the two statements", s.Ratio(ours, byHand), 0.8)
	contest.AtLeast(s.Title+": times GET_LOCK", s.Ratio(ours, getLock16), 2)
	contest.AtLeast(s.Title+", sections of 20 ms: times GET_LOCK", s.Ratio(oursLong, getLock16s), 2)
}

func oneProcess(b *testing.B, dsn string) {
	s := engine.OneProcess(b, dsn, ours, oursGlobal, getLock)
	contest.AtLeast("one process: times GET_LOCK", s.Ratio(ours, getLock), 20)
}

func processes(b *testing.B, dsn string) {
	s := engine.Processes(b, dsn, ours, oursGlobal, getLock)
	contest.AtLeast("8 processes: times GET_LOCK", s.Ratio(ours, getLock), 1)
	contest.AtLeast("8 processes: slowest process / mean", s.Typical(ours).Slowest(contest.Workers), 0.5)
}

func gap(b *testing.B, dsn string) {
	g := engine.Gap(b, dsn, ours, getLock)
	contest.AtMost("gap: p50 in ms", g.Percentile(ours, 50)*1000, 10)
}

func holding(b *testing.B, dsn string) {
	h := engine.Holding(b, dsn, 10000, 30*time.Second, getLock, ours, getLock)
	contest.AtMost("10,000 leases: statements a second", h[ours].CommandsASecond(), 20)
	contest.AtMost("10,000 leases: KiB a lease", h[ours].KiB(), 2)
}
