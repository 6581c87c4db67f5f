// Package contest measures locks side by side: the standing scenarios that every engine's
// comparison consists of, without an engine. The parts of a scenario take turns in one
// run on one machine, so that its ratios mean something. Whatever is measured, every
// section under a lock also counts in two steps, and a run whose holders overlap fails.
//
// # Adding an engine
//
// A comparison is a package bench/ENGINE with test files only: its competitors, its
// server and its goals. For a database server bench/databases has most of them.
//
//	var engine = contest.Engine{Name: "memcached", Competitors: []contest.Competitor{
//		{Name: "leasehold", Open: openOurs},
//		{Name: "add/delete", Open: openByHand, Polls: 100 * time.Millisecond},
//	}}
//
//	// The processes of a scenario are this test binary again; Main plays their parts.
//	func TestMain(m *testing.M) { engine.Main(m) }
//
//	func BenchmarkMemcached(b *testing.B) {
//		server := servers.StartMemcached(b)
//		engine.CPU = func() time.Duration { return crowd.ProcessCPU(b, server.Pid()) }
//		contest.Run(b,
//			contest.Part{Name: "Alone", Run: func(b *testing.B) {
//				s := engine.Alone(b, server.Addr(), "add/delete", "leasehold", "add/delete")
//				contest.AtMost("alone: times the bare commands", s.Ratio("leasehold", "add/delete"), 1.2)
//			}},
//			...
//		)
//	}
//
// Open is called in the benchmark's own process and in those it starts, so all that it
// needs is in addr, which may be a URL or a DSN; it reaches them through a pipe. What is
// wanted of a competitor:
//
//   - It has one client, or pool with its limit, for each call of Open.
//   - Lock waits until it holds or ctx ends. Where a client has only a try, Lock loops as
//     its users would, and Polls is the period. One that never waits may take part in
//     Alone and OwnKeys.
//   - Where holders in one process do not exclude each other (an etcd session, say), wrap
//     Lock with Local, as its users must.
//   - Commands counts what the client sends, best on its connections; nil where that is
//     out of reach: the table then has a dash.
//   - The TTL is contest.TTL. Unlock and Renew return an error if the lock was lost.
//
// The scenarios are methods of Engine. Each prints a table and returns what goals need.
// `go test -run '^$' -bench /Gap ./ENGINE` runs one; -short runs one round of each.
package contest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// TTL is that of every lock, whoever makes it.
const TTL = 10 * time.Second

// An Engine is the locks of one kind of server.
type Engine struct {
	Name        string // as in titles
	Where       string // added to titles, where it is measured on more than one set of servers
	Competitors []Competitor

	// Rounds says how often each part was measured, for the conditions of the run;
	// "": the median of several rounds, locks in turns. With -short it is one round.
	Rounds string

	// CPU returns what the server has used so far; nil: it is not measured.
	CPU func() time.Duration
}

// A Competitor is one of the locks that are compared.
type Competitor struct {
	Name string // as in the tables

	// Open opens the lock on the server at addr, on a client of its own.
	Open func(addr string) (*Locker, error)

	// Polls is how often a waiter asks, where nothing wakes it: the gap is then measured
	// over one period. 0: it is woken.
	Polls time.Duration

	// Leases is the most that a process can hold; 0: as many as the scenario wants.
	Leases int
}

// A Locker is an open competitor.
type Locker struct {
	Lock     LockFunc
	Commands func() int64 // how many it has sent; nil: they are not counted
	Close    func()       // nil: there is nothing to close
}

// A LockFunc waits for the lock of that name. It returns soon after ctx has ended.
type LockFunc func(ctx context.Context, name string) (Held, error)

// Held is a lock that is held. Its calls return an error if it was lost.
type Held struct {
	Unlock func() error
	Renew  func() error // nil: it is renewed without being asked
}

// Leasehold is ours on any engine. It closes d at its end.
func Leasehold(d driver.Driver, opts *leasehold.Options) (*Locker, error) {
	locks, err := leasehold.New(d, opts)
	if err != nil {
		return nil, err
	}
	lock := func(ctx context.Context, name string) (Held, error) {
		lease, err := locks.Acquire(ctx, name)
		if err != nil {
			return Held{}, err
		}
		return Held{Unlock: func() error { return lease.Release(context.Background()) }}, nil
	}
	return &Locker{Lock: lock, Close: func() { locks.Close(); d.Close() }}, nil
}

func (l *Locker) commands() int64 {
	if l.Commands == nil {
		return uncounted
	}
	return l.Commands()
}

func (l *Locker) close() {
	if l.Close != nil {
		l.Close()
	}
}

// Main is the TestMain of an engine's package: it plays the part of a child when this
// process is one. Otherwise it runs the tests and benchmarks, prints the tables, and writes them
// into the engine's page where -contest.pages names a folder.
func (e *Engine) Main(m *testing.M) {
	if part := os.Getenv(childEnv); part != "" {
		if err := e.play(part); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", part, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	began := beginRun()
	code := m.Run()
	report.print(os.Stdout, e.Name)
	if *pages != "" && code == 0 {
		if err := e.writePage(*pages, began); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// A Part of a benchmark runs once.
type Part struct {
	Name string
	Run  func(b *testing.B)
}

// Run runs the parts, each once. The times per operation that go test prints mean nothing.
func Run(b *testing.B, parts ...Part) {
	for _, part := range parts {
		done := false
		b.Run(part.Name, func(b *testing.B) {
			if !done { // else it was over within a second and go test wants more of it
				done = true
				part.Run(b)
			}
		})
	}
}

// Local puts a mutex of this process in front of each name, for a lock whose holders in
// one process do not exclude each other.
func Local(lock LockFunc) LockFunc {
	var all sync.Map // by name, of chan struct{} with one place
	return func(ctx context.Context, name string) (Held, error) {
		place, _ := all.LoadOrStore(name, make(chan struct{}, 1))
		mutex := place.(chan struct{})
		select {
		case mutex <- struct{}{}:
		case <-ctx.Done():
			return Held{}, context.Cause(ctx)
		}
		held, err := lock(ctx, name)
		if err != nil {
			<-mutex
			return Held{}, err
		}
		unlock := held.Unlock
		held.Unlock = func() error { defer func() { <-mutex }(); return unlock() }
		return held, nil
	}
}

// LostUnless is for calls that answer whether the lock was still held.
func LostUnless(held bool, err error) error {
	if err == nil && !held {
		err = errors.New("the lock was lost")
	}
	return err
}

// title says where e is measured, too.
func (e *Engine) title(text string) string {
	if e.Where == "" {
		return text
	}
	return text + ", " + e.Where
}

func (e *Engine) table(title string, columns ...string) *Table {
	return NewTable(e.title(title), columns...)
}

func (e *Engine) find(name string) (Competitor, error) {
	for _, c := range e.Competitors {
		if c.Name == name {
			return c, nil
		}
	}
	return Competitor{}, fmt.Errorf("no lock is called %q", name)
}

func (e *Engine) open(name, addr string) (*Locker, error) {
	c, err := e.find(name)
	if err != nil {
		return nil, err
	}
	l, err := c.Open(addr)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return l, nil
}

// openAll opens the lockers with these names until tb is done.
func (e *Engine) openAll(tb testing.TB, addr string, names []string) map[string]*Locker {
	tb.Helper()
	all := make(map[string]*Locker)
	for _, name := range names {
		l, err := e.open(name, addr)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(l.close)
		all[name] = l
	}
	return all
}

// cpu is what the server has used so far, or less than 0.
func (e *Engine) cpu() time.Duration {
	if e.CPU == nil {
		return -1
	}
	return e.CPU()
}

func (e *Engine) cpuSince(before time.Duration) time.Duration {
	if before < 0 {
		return -1
	}
	return e.cpu() - before
}
