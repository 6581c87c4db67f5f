// Package databases compares Leasehold on a database server with the server's own locks, and with
// locks that users write by hand. The server's own locks write nothing to the disk, have no TTL and
// no fence, and take a connection each.
package databases

import (
	"database/sql"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// A Server describes what differs between database servers.
type Server struct {
	Name string // for titles
	Own  string // name of its own lock

	// Open opens a client. statements counts the statements that it sends.
	Open func(addr string) (db *sql.DB, statements func() int64, err error)

	Drivers []Driver // drivers of Leasehold; the first is called leasehold
	OwnKeys float64  // goal for many goroutines with own keys, times the two statements

	// The statements of ByHand, and those that lock and unlock a name by the server's own lock. The
	// latter return true or false.
	Create, Take, Free, Lock, Unlock string
}

// A Driver is a driver of Leasehold.
type Driver struct {
	Name  string // for the tables
	New   func(addr string, db *sql.DB) (*sqllock.Driver, error)
	Polls time.Duration // see contest.Competitor
}

// Engine returns the engine for TestMain.
func (s *Server) Engine() *contest.Engine {
	return &contest.Engine{Name: s.Name, Competitors: s.competitors()}
}

// Compare measures on the server at addr. The server must allow 500 connections.
func (s *Server) Compare(b *testing.B, addr string) {
	c := &comparison{s, s.Engine(), addr}
	contest.Run(b,
		contest.Part{Name: "Alone", Run: c.alone},
		contest.Part{Name: "Own64", Run: c.ownKeys},
		contest.Part{Name: "OneProcess", Run: c.oneProcess},
		contest.Part{Name: "Processes", Run: c.processes},
		contest.Part{Name: "Gap", Run: c.gap},
		contest.Part{Name: "Held", Run: c.holding},
	)
}

// A comparison is a run of all parts on one server.
type comparison struct {
	*Server
	engine *contest.Engine
	addr   string
}

func (c *comparison) alone(b *testing.B) {
	s := c.engine.Alone(b, c.addr, byHand, byHand, ours, c.Own)
	contest.AtMost("alone: times the two statements", s.Ratio(ours, byHand), 1.2)
	contest.AtMost("alone: statements a cycle", s.Commands(ours), 2)
}

func (c *comparison) ownKeys(b *testing.B) {
	own, ownLong := c.Own+pooled, c.Own+pooled+ofLong
	s := c.engine.OwnKeys(b, c.addr, pooled, 64, byHand, ours, byHand, own, oursLong, ownLong)
	contest.AtLeast(s.Title+": times the two statements", s.Ratio(ours, byHand), c.OwnKeys)
	contest.AtLeast(s.Title+": times "+c.Own, s.Ratio(ours, own), 2)
	contest.AtLeast(s.Title+ofLong+": times "+c.Own, s.Ratio(oursLong, ownLong), 2)
}

func (c *comparison) oneProcess(b *testing.B) {
	s := c.engine.OneProcess(b, c.addr, ours, oursGlobal, c.Own)
	contest.AtLeast("one process: times "+c.Own, s.Ratio(ours, c.Own), 20)
}

func (c *comparison) processes(b *testing.B) {
	names := []string{ours, oursGlobal}
	for _, d := range c.Drivers[1:] {
		names = append(names, d.Name)
	}
	s := c.engine.Processes(b, c.addr, append(names, c.Own)...)
	contest.AtLeast("8 processes, most turns inside them: times "+c.Own, s.Ratio(ours, c.Own), 1)
	contest.AtLeast("8 processes: slowest process / mean", s.Typical(ours).Slowest(contest.Workers), 0.5)
}

func (c *comparison) gap(b *testing.B) {
	var names []string
	for _, d := range c.Drivers {
		names = append(names, d.Name)
	}
	g := c.engine.Gap(b, c.addr, append(names, c.Own)...)
	for _, d := range c.Drivers {
		if d.Polls > 0 {
			contest.AtMost("gap, "+d.Name+": p50 in ms", g.Percentile(d.Name, 50)*1000, 10)
		} else {
			contest.AtMost("gap: p50 / "+c.Own+"'s", g.Percentile(d.Name, 50)/g.Percentile(c.Own, 50), 3)
		}
	}
}

func (c *comparison) holding(b *testing.B) {
	h := c.engine.Holding(b, c.addr, c.Own, ours, c.Own)
	contest.AtMost("10,000 leases: statements a second", h[ours].CommandsASecond(), 20)
	contest.AtMost("10,000 leases: KiB a lease", h[ours].KiB(), 2)
}
