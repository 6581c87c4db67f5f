// Package contest compares locks. It contains the scenarios that all engines share, but no engine.
// The parts of a scenario alternate in one run on one machine, so that ratios are meaningful. In
// each scenario, every section under a lock also increments a counter in two steps. If holders
// overlap, the run fails.
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
// Open is called in the benchmark's own process and in those that it starts. So addr, which may be
// a URL or a DSN, must contain all that Open needs. A competitor must meet these conditions:
//
//   - Each call of Open makes one client, or a pool with its limit.
//   - Lock waits until it holds or ctx ends. If a client can only try, Lock loops as its users would,
//     and Polls is the interval. A lock that never waits may take part in Alone and OwnKeys.
//   - If holders in one process do not exclude each other, as in an etcd session, wrap Lock with
//     Local, as its users must.
//   - Commands counts what the client sends, preferably on its connections. If that is impossible it
//     is nil, and the table has a dash.
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

// TTL is the TTL of every lock.
const TTL = 10 * time.Second

// An Engine describes the locks of one kind of server.
type Engine struct {
	Name        string // for titles
	Where       string // added to titles if the engine is measured on several sets of servers
	Competitors []Competitor

	// Rounds says how often each part was measured, for the conditions of the run. "" means: the
	// median of several rounds, in which locks alternate. With -short there is one round.
	Rounds string

	// CPU returns the CPU time of the server so far; nil: not measured.
	CPU func() time.Duration
}

// A Competitor is one of the compared locks.
type Competitor struct {
	Name string // for the tables

	// Open opens the lock on the server at addr, with a client of its own.
	Open func(addr string) (*Locker, error)

	// Polls is the interval at which a waiter polls. The gap is then measured over one interval. 0:
	// the waiter is woken.
	Polls time.Duration

	// Leases is the most leases that a process can hold; 0: no limit.
	Leases int
}

// A Locker is an open competitor.
type Locker struct {
	Lock     LockFunc
	Commands func() int64 // number of commands sent so far; nil: not counted
	Close    func()       // nil: there is nothing to close
}

// A LockFunc waits for the lock with this name. It returns soon after ctx has ended.
type LockFunc func(ctx context.Context, name string) (Held, error)

// A Held is a lock that is held. Its calls return an error if it was lost.
type Held struct {
	Unlock func() error
	Renew  func() error // nil: it is renewed automatically
}

// Leasehold returns a Locker on d. Its Close closes d.
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

// Main is the TestMain of an engine's package. In a child process it plays the child's part.
// Otherwise it runs the tests and benchmarks and prints the tables. It writes them to the engine's
// page if -contest.pages names a folder.
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

// A Part is a part of a benchmark. It runs once.
type Part struct {
	Name string
	Run  func(b *testing.B)
}

// Run runs each part once. The times per operation that go test prints mean nothing.
func Run(b *testing.B, parts ...Part) {
	for _, part := range parts {
		done := false
		b.Run(part.Name, func(b *testing.B) {
			if !done { // otherwise it took less than a second, and go test asks for more
				done = true
				part.Run(b)
			}
		})
	}
}

// Local adds a mutex of this process per name, for locks whose holders in one process do not
// exclude each other.
func Local(lock LockFunc) LockFunc {
	var all sync.Map // by name; values are channels of capacity 1
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

// LostUnless returns an error if held is false, for calls that report whether the lock was still
// held.
func LostUnless(held bool, err error) error {
	if err == nil && !held {
		err = errors.New("the lock was lost")
	}
	return err
}

// title adds to text where e is measured.
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

// openAll opens the lockers with these names. They are closed when tb ends.
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

// cpu returns the CPU time of the server so far, or a negative value if it is not measured.
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
